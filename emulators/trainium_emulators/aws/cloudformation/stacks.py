"""Updates stacks in CloudFormation's order, and protects exports that other stacks import.

Rules: CloudFormation template reference, Fn::ImportValue. Messages: serverless/serverless issue
3589 (removal by an update), linz/geostore issue 630 (change), aws/aws-cdk issue 33395 (deletion of
the stack). moto does neither, and does not record exports that an update adds, changes or removes.
"""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from moto.cloudformation import parsing
from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend, Stack
from moto.cloudformation.parsing import clean_json

_SUB_REFERENCE = re.compile(r"\$\{(\w+)")
"""A reference in a string for Fn::Sub."""


def depends_on(resource_json: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the logical ids in a resource's DependsOn, which is a string or a list."""
    given = resource_json.get("DependsOn", ())
    return (given,) if isinstance(given, str) else tuple(given)


def in_order(template_resources: Mapping[str, Any]) -> list[str]:
    """Return logical ids in CloudFormation's order: a resource follows its dependencies."""
    needs = {
        name: {*depends_on(resource), *_references(resource.get("Properties", {}))}
        & set(template_resources)
        for name, resource in template_resources.items()
    }
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        raise ValidationError(
            message=f"Circular dependency between resources: [{', '.join(error.args[1])}]"
        ) from None


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        match key, item:
            case "Ref", str(name):
                yield name
            case "Fn::GetAtt", [str(name), *_]:
                yield name
            case "Fn::GetAtt", str(path):
                yield path.partition(".")[0]
            case "Fn::Sub", str(text) | [str(text), *_]:
                yield from _SUB_REFERENCE.findall(text)
        yield from _references(item)


def resolved_properties(resource_json: dict[str, Any], resources: parsing.ResourceMap) -> Any:
    """Return a copy of a resource's properties with every reference resolved."""
    resolved = parsing.clean_json({"Properties": {}, **resource_json}, resources)
    return copy.deepcopy(resolved["Properties"])


def update_stack_resources(
    self: parsing.ResourceMap,
    template: dict[str, Any],
    parameters: dict[str, Any] | None = None,
) -> None:
    """Create new, update changed, then delete removed resources, as CloudFormation does.

    moto compares templates, so it does not update a resource that references a replaced one, and
    it deletes resources that are still in use.
    """
    before = self._resource_json_map
    self._template = template
    if parameters:
        self.input_parameters = parameters
    self.load_mapping()
    self.load_parameters()
    self.load_conditions()
    self._resource_json_map = {**before, **template["Resources"]}
    for name in in_order(template["Resources"]):
        resource = self[name]  # creates the resource if it does not exist
        if resource is not None:
            _update_if_changed(self, name)
    names = list(reversed(list(self._parsed_resources)))
    for name in names:
        resource = self._parsed_resources[name]
        for replaced in getattr(resource, "rehearsal_replaces", ()):
            self._delete_resource(replaced, before[name])
            resource.rehearsal_replaces = []
    for name in filter(before.__contains__, names):
        if name in template["Resources"]:
            continue
        resource = self._parsed_resources.pop(name)
        if resource is not None and before[name].get("DeletionPolicy") != "Retain":
            self._delete_resource(resource, before[name])
    self._resource_json_map = template["Resources"]


def _update_if_changed(resources: parsing.ResourceMap, name: str) -> None:
    resource_json = resources._resource_json_map[name]
    if resolved_properties(resource_json, resources) == resources[name].rehearsal_resolved:
        return
    resources._parsed_resources[name] = parsing.parse_and_update_resource(
        name, resource_json, resources, resources._account_id, resources._region_name
    )


def values_of(stack: Stack) -> dict[str, Any]:
    """Return a stack's exports by name."""
    return {export.name: export.value for export in stack.exports}


def names_in(template: Mapping[str, Any], stack: Stack) -> set[str]:
    """Return the names that a stack would export with another template."""
    return {
        clean_json(output["Export"]["Name"], stack.resource_map)
        for output in (template.get("Outputs") or {}).values()
        if output.get("Export")
    }


def refuse_if_imported(
    backend: CloudFormationBackend, stack: Stack, names: Iterable[str], message: str
) -> None:
    """Refuse to delete or change exports of a stack that other stacks import.

    ``message`` has placeholders for the ``name`` and for its ``users``.
    """
    for name in names:
        users = sorted(
            other.name
            for other in backend.stacks.values()
            if other is not stack and name in _imports(other.template_dict, other)
        )
        if users:
            raise ValidationError(message=message.format(name=name, users=", ".join(users)))


def remember(backend: CloudFormationBackend, stack: Stack, before: Mapping[str, Any]) -> None:
    """Publish the current exports of an updated stack to other stacks."""
    for name in before:
        backend.exports.pop(name, None)
    backend.exports.update((export.name, export) for export in stack.exports)


def _imports(node: Any, stack: Stack) -> Iterator[str]:
    match node:
        case {"Fn::ImportValue": name}:
            yield clean_json(name, stack.resource_map)
        case dict():
            for each in node.values():
                yield from _imports(each, stack)
        case list():
            for each in node:
                yield from _imports(each, stack)
