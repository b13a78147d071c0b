"""Looks up the stacks' resources in moto by name, for the table of refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import cloudformation_backends

from trainium_emulators.aws import refusals
from trainium_emulators.aws.cloudformation.contributions import AccountRegion, Properties
from trainium_emulators.aws.refusals.request import AwsRequest


class StackAccount:
    """Resources of all stacks in an account and region, including a stack being created."""

    def __init__(self, place: AccountRegion) -> None:
        self._place = place

    @property
    def region(self) -> str:
        """Region of the stacks."""
        return self._place.region

    def find(self, kind: str, value: Any) -> Properties | None:
        """Return the properties of the resource with this id, name or ARN."""
        for resource in self._resources(kind):
            if value in _names(resource):
                properties: Properties = resource.rehearsal_resolved
                return properties
        return None

    def all(self, kind: str) -> list[Properties]:
        """Return the properties of every resource of a type."""
        return [resource.rehearsal_resolved for resource in self._resources(kind)]

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two values name the same resource."""
        if one is None or one == other:
            return one is not None
        return any({one, other} <= _names(resource) for resource in self._resources(None))

    def _resources(self, kind: str | None) -> Iterator[Any]:
        stacks = cloudformation_backends[self._place.account_id][self.region].stacks
        for stack in list(stacks.values()):
            # Indexing the resource map itself would create resources that do not exist yet.
            for resource in list(stack.resource_map._parsed_resources.values()):
                own = getattr(resource, "rehearsal_kind", None)
                if own is None or getattr(resource, "rehearsal_gone", False):
                    continue
                if kind is None or own == kind:
                    yield resource


def _names(resource: Any) -> set[str]:
    """Collect all values that a reference to a resource can resolve to."""
    own = [getattr(resource, name, None) for name in ("physical_resource_id", "arn", "id")]
    attributes = getattr(resource, "attributes", None)
    values = attributes.values() if isinstance(attributes, dict) else ()
    return {value for value in (*own, *values) if isinstance(value, str)}


def refuse_resource(
    logical_id: str,
    kind: str,
    properties: Properties,
    place: AccountRegion,
    previous: Properties | None = None,
) -> None:
    """Fail with AWS's message if AWS would refuse the resource."""
    request = AwsRequest(properties=properties, account=StackAccount(place), previous=previous)
    for message in refusals.messages(kind, request):
        raise ValidationError(message=f"{logical_id}: {message}")
