"""Exports, which CloudFormation neither deletes nor changes while another stack imports them.

Rules: CloudFormation template reference, Fn::ImportValue. Messages: serverless/serverless issue
3589 (delete by an update), linz/geostore issue 630 (change), aws/aws-cdk issue 33395 (deletion of
the stack). moto knows neither, and forgets what an update adds, changes or takes away.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend, Stack
from moto.cloudformation.parsing import clean_json


def values_of(stack: Stack) -> dict[str, Any]:
    """What a stack exports, by name."""
    return {export.name: export.value for export in stack.exports}


def names_in(template: Mapping[str, Any], stack: Stack) -> set[str]:
    """What a stack would export with another template; a name refers to no resource."""
    return {
        clean_json(output["Export"]["Name"], stack.resource_map)
        for output in (template.get("Outputs") or {}).values()
        if output.get("Export")
    }


def refuse_deletion(backend: CloudFormationBackend, stack: Stack, kept: set[str]) -> None:
    """Refuse an update after which an export that is in use would be missing."""
    for name in values_of(stack).keys() - kept:
        if users := importers(backend, name, stack):
            raise ValidationError(
                message=f"Export {name} cannot be deleted as it is in use by {users}"
            )


def refuse_deletion_of_stack(backend: CloudFormationBackend, stack: Stack) -> None:
    """Refuse to delete a stack that has an export in use."""
    for name in values_of(stack):
        if users := importers(backend, name, stack):
            raise ValidationError(
                message=f"Delete canceled. Cannot delete export {name} as it is in use by {users}."
            )


def refuse_change(backend: CloudFormationBackend, stack: Stack, before: Mapping[str, Any]) -> None:
    """Refuse another value of an export in use. AWS rolls the update back; nothing here can."""
    for name, value in values_of(stack).items():
        if name in before and before[name] != value and (users := importers(backend, name, stack)):
            raise ValidationError(
                message=f"Export {name} cannot be updated as it is in use by {users}"
            )


def remember(backend: CloudFormationBackend, stack: Stack, before: Mapping[str, Any]) -> None:
    """Offer other stacks what an updated stack exports by now."""
    for name in before:
        backend.exports.pop(name, None)
    backend.exports.update((export.name, export) for export in stack.exports)


def importers(backend: CloudFormationBackend, name: str, exporting: Stack) -> str:
    """Names of the stacks that import ``name``; empty if there is none."""
    found = (
        stack.name
        for stack in backend.stacks.values()
        if stack is not exporting and name in _imports(stack.template_dict, stack)
    )
    return ", ".join(sorted(found))


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
