"""Resolves the synthesised templates of all stacks of a deployment, without guessing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainium_emulators.aws.refusals.request import (
    UNKNOWN,
    AwsRequest,
    PartialText,
    Properties,
    ResourceReference,
    Unknown,
)

Template = Mapping[str, Any]

_NOTHING = object()
"""Marks ``AWS::NoValue``: the property is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateAccount:
    """An account that contains only what the templates will create."""

    templates: Mapping[str, Template]
    """Templates by stack name."""
    region: str
    account_id: str = "111111111111"
    _resolved: dict[tuple[str, str], Properties] = field(default_factory=dict)

    def requests(self) -> Iterator[tuple[str, str, AwsRequest]]:
        """Yield logical id, type and request of every resource."""
        for stack, template in self.templates.items():
            for logical_id, resource in template.get("Resources", {}).items():
                properties = self.properties(stack, logical_id)
                yield logical_id, resource["Type"], AwsRequest(properties=properties, account=self)

    def whole(self) -> Iterator[tuple[str, AwsRequest]]:
        """Yield stack name and request of every template, with outputs and resources resolved."""
        for stack, template in self.templates.items():
            resources = {
                logical_id: {
                    "Type": resource["Type"],
                    "Properties": self.properties(stack, logical_id),
                }
                for logical_id, resource in template.get("Resources", {}).items()
            }
            outputs = self.resolve(template.get("Outputs", {}), stack)
            properties = {**template, "Outputs": outputs, "Resources": resources}
            yield stack, AwsRequest(properties=properties, account=self)

    def properties(self, stack: str, logical_id: str) -> Properties:
        """Return the resolved properties of a resource."""
        key = (stack, logical_id)
        if key not in self._resolved:
            resource = self.templates[stack]["Resources"][logical_id]
            resolved = self.resolve(resource.get("Properties", {}), stack)
            self._resolved[key] = resolved if isinstance(resolved, Mapping) else {}
        return self._resolved[key]

    def find(self, kind: str, value: Any) -> Properties | None:
        """Return the properties of the referenced resource, if it is of the type."""
        if not isinstance(value, ResourceReference):
            return None
        resource = self.templates[value.stack]["Resources"].get(value.logical_id, {})
        if resource.get("Type") != kind:
            return None
        return self.properties(value.stack, value.logical_id)

    def all(self, kind: str) -> Iterable[Properties]:
        """Return the properties of every resource of a type, in all stacks."""
        return [
            self.properties(stack, logical_id)
            for stack, template in self.templates.items()
            for logical_id, resource in template.get("Resources", {}).items()
            if resource["Type"] == kind
        ]

    def same(self, one: Any, other: Any) -> bool:
        """Tell whether two values name the same resource, through any attribute."""
        if isinstance(one, ResourceReference) and isinstance(other, ResourceReference):
            return (one.stack, one.logical_id) == (other.stack, other.logical_id)
        return one is not UNKNOWN and one is not None and one == other

    def resolve(self, value: Any, stack: str) -> Any:
        """Evaluate the functions in ``value`` as far as the templates allow."""
        if isinstance(value, list):
            entries = [self.resolve(entry, stack) for entry in value]
            return [entry for entry in entries if entry is not _NOTHING]
        if not isinstance(value, Mapping):
            return value
        if len(value) == 1:
            ((name, argument),) = value.items()
            if name == "Ref":
                return self._ref(argument, stack)
            if name.startswith("Fn::"):
                return self._function(name, argument, stack)
        resolved = {name: self.resolve(entry, stack) for name, entry in value.items()}
        return {name: entry for name, entry in resolved.items() if entry is not _NOTHING}

    def _ref(self, name: str, stack: str) -> Any:
        match name:
            case "AWS::NoValue":
                return _NOTHING
            case "AWS::Region":
                return self.region
            case "AWS::AccountId":
                return self.account_id
            case "AWS::Partition":
                return "aws"
            case "AWS::URLSuffix":
                return "amazonaws.com"
            case "AWS::StackName":
                return stack
        if name in self.templates[stack].get("Resources", {}):
            return ResourceReference(stack=stack, logical_id=name, attribute="Ref")
        return UNKNOWN

    def _function(self, name: str, argument: Any, stack: str) -> Any:
        match name, argument:
            case "Fn::GetAtt", [str(logical_id), str(attribute)]:
                return ResourceReference(stack=stack, logical_id=logical_id, attribute=attribute)
            case "Fn::GetAtt", str(path):
                logical_id, _, attribute = path.partition(".")
                return ResourceReference(stack=stack, logical_id=logical_id, attribute=attribute)
            case "Fn::ImportValue", _:
                return self._import(self.resolve(argument, stack))
            case "Fn::Base64", _:
                # Sizes and characters refer to the text before encoding.
                return self.resolve(argument, stack)
            case "Fn::Join", [str(separator), parts]:
                return _joined(separator, self.resolve(parts, stack))
            case "Fn::Sub", str(text):
                return self._substituted(text, {}, stack)
            case "Fn::Sub", [str(text), Mapping() as variables]:
                return self._substituted(text, variables, stack)
        return UNKNOWN

    def _import(self, name: Any) -> Any:
        for stack, template in self.templates.items():
            for output in template.get("Outputs", {}).values():
                if "Export" in output and self.resolve(output["Export"]["Name"], stack) == name:
                    return self.resolve(output["Value"], stack)
        return UNKNOWN

    def _substituted(self, text: str, variables: Mapping[str, Any], stack: str) -> Any:
        parts: list[Any] = []
        while "${" in text:
            before, _, rest = text.partition("${")
            name, _, text = rest.partition("}")
            parts.append(before)
            if name.startswith("!"):
                parts.append("${" + name[1:] + "}")
            elif name in variables:
                parts.append(self.resolve(variables[name], stack))
            elif "." in name:
                parts.append(self._function("Fn::GetAtt", name, stack))
            else:
                parts.append(self._ref(name, stack))
        return _joined("", [*parts, text])


def _joined(separator: str, parts: Any) -> Any:
    """Join the known parts of a text; a single part stays as it is."""
    if not isinstance(parts, list):
        return UNKNOWN
    pieces = [part for part in parts if part != ""] if separator == "" else parts
    if len(pieces) == 1:
        return pieces[0]
    if all(type(part) is str for part in parts):
        return separator.join(parts)
    if any(not isinstance(part, (str, Unknown, ResourceReference)) for part in parts):
        return UNKNOWN
    return PartialText(separator.join(part if isinstance(part, str) else "" for part in parts))
