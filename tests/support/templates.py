"""Resolves the synthesized templates of all stacks of a deployment, without guessing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainium_emulators.aws.refusals.request import (
    UNKNOWN,
    AwsRequest,
    Properties,
    ResourceReference,
)

_NOTHING = object()
"""Marks ``AWS::NoValue``: the property is omitted."""


class TemplateAccount:
    """An account that contains only what the templates will create."""

    def __init__(self, templates: Mapping[str, Mapping[str, Any]], region: str) -> None:
        self.region = region
        self._templates = templates
        """By stack name."""
        self._resources: dict[ResourceReference, tuple[str, Properties]] = {
            ResourceReference(stack, logical_id): (
                resource["Type"],
                self.resolve(resource.get("Properties", {}), stack),
            )
            for stack, template in templates.items()
            for logical_id, resource in template.get("Resources", {}).items()
        }

    def requests(self) -> Iterator[tuple[str, str, AwsRequest]]:
        """Yield logical id, type and request of every resource."""
        for name, (kind, properties) in self._resources.items():
            yield name.logical_id, kind, AwsRequest(properties=properties, account=self)

    def find(self, kind: str, value: Any) -> Properties | None:
        """Return the properties of the referenced resource, if it is of the type."""
        if not isinstance(value, ResourceReference):
            return None
        own, properties = self._resources.get(value, ("", {}))
        return properties if own == kind else None

    def all(self, kind: str) -> list[Properties]:
        """Return the properties of every resource of a type, in all stacks."""
        return [properties for own, properties in self._resources.values() if own == kind]

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two values name the same resource, through any attribute."""
        return one is not None and one != UNKNOWN and one == other

    def resolve(self, value: Any, stack: str) -> Any:
        """Evaluate the functions in ``value`` as far as the templates allow."""
        if isinstance(value, list):
            entries = [self.resolve(entry, stack) for entry in value]
            return [entry for entry in entries if entry is not _NOTHING]
        match value:
            case {"Ref": str(name)}:
                return self._ref(name, stack)
            case {"Fn::GetAtt": [str(logical_id), str(_)]}:
                return ResourceReference(stack, logical_id)
            case {"Fn::ImportValue": name}:
                return self._import(self.resolve(name, stack))
            case {"Fn::Base64": inner}:
                # Limits on size and characters refer to the string before encoding.
                return self.resolve(inner, stack)
            case {"Fn::Join": [str(separator), list(parts)]}:
                return _join(separator, self.resolve(parts, stack))
        if not isinstance(value, Mapping):
            return value
        if any(name.startswith("Fn::") for name in value):
            return UNKNOWN
        resolved = {name: self.resolve(entry, stack) for name, entry in value.items()}
        return {name: entry for name, entry in resolved.items() if entry is not _NOTHING}

    def _ref(self, name: str, stack: str) -> Any:
        match name:
            case "AWS::NoValue":
                return _NOTHING
            case "AWS::Region":
                return self.region
            case "AWS::Partition":
                return "aws"
        return (
            ResourceReference(stack, name)
            if name in self._templates[stack]["Resources"]
            else UNKNOWN
        )

    def _import(self, name: Any) -> Any:
        for stack, template in self._templates.items():
            for output in template.get("Outputs", {}).values():
                if "Export" in output and self.resolve(output["Export"]["Name"], stack) == name:
                    return self.resolve(output["Value"], stack)
        return UNKNOWN


def _join(separator: str, parts: list[Any]) -> Any:
    """Join the parts of a string, which is known if they all are; return a single part as is."""
    if len(parts) == 1:
        return parts[0]
    return separator.join(parts) if all(isinstance(part, str) for part in parts) else UNKNOWN
