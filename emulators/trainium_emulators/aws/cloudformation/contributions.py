"""Contributions of this package's modules to moto: resources, hooks around its models, deleters."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from moto.cloudformation.exceptions import ValidationError

Properties = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRegion:
    """A stack's account and region."""

    account_id: str
    region: str


Create = Callable[[str, Properties, AccountRegion], Any]
"""Creates a resource; the first argument is the name that CloudFormation would generate."""
Before = Callable[[Properties, AccountRegion], None]
"""Changes the properties before moto's model reads them."""
After = Callable[[Any, Properties, AccountRegion], None]
"""Completes the resource that moto's model created."""
Delete = Callable[[Any, Properties, AccountRegion], None]
"""Deletes the resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyChange:
    """The new properties of an update, and the names of those that differ."""

    properties: Properties
    changed: AbstractSet[str]
    """Names of the properties that were changed, added or removed."""

    def refuse_others(self, kind: str, known: AbstractSet[str]) -> None:
        """Fail on a changed property that an update would not apply."""
        if unknown := sorted(self.changed - known):
            raise ValidationError(
                message=f"the rehearsal cannot change {', '.join(unknown)} of {kind} in place; "
                "destroy the stacks first"
            )


Update = Callable[[Any, PropertyChange, AccountRegion], Any]
"""Changes or replaces the resource, and returns the resulting one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Additions to moto by CloudFormation type."""

    create: Mapping[str, Create] = field(default_factory=dict)
    before: Mapping[str, Before] = field(default_factory=dict)
    after: Mapping[str, After] = field(default_factory=dict)
    update: Mapping[str, Update] = field(default_factory=dict)
    replaced_by: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Properties whose change forces replacement."""
    delete: Mapping[str, Delete] = field(default_factory=dict)


class ModeledResource:
    """A created resource of a type that moto lacks."""

    def __init__(self, physical_resource_id: str, attributes: Mapping[str, Any] | None = None):
        self.physical_resource_id = physical_resource_id
        self.attributes = dict(attributes or {})

    def get_cfn_attribute(self, attribute_name: str) -> Any:
        return self.attributes[attribute_name]

    @staticmethod
    def is_created() -> bool:
        return True
