"""Registers the models with moto, and makes moto refuse types without a model."""

import copy
import json
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from moto.batch.models import ComputeEnvironment, JobDefinition, JobQueue
from moto.cloudformation import parsing
from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend, Stack
from moto.core.exceptions import ServiceException
from moto.ec2.responses import EC2Response

from trainium_emulators.aws.cloudformation import (
    access,
    batch,
    billing,
    ec2,
    eks,
    eks_cluster,
    eks_members,
    eks_nodes,
    notifications,
    stacks,
    storage,
)
from trainium_emulators.aws.cloudformation.account import refuse_resource
from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    After,
    Before,
    Contribution,
    Create,
    Delete,
    PropertyChange,
    Update,
)
from trainium_emulators.aws.cloudformation.stacks import (
    depends_on,
    resolved_properties,
    update_stack_resources,
)

_CONTRIBUTIONS: tuple[Contribution, ...] = (
    access.CONTRIBUTION,
    batch.CONTRIBUTION,
    billing.CONTRIBUTION,
    ec2.CONTRIBUTION,
    eks.CONTRIBUTION,
    eks_members.CONTRIBUTION,
    eks_cluster.CONTRIBUTION,
    notifications.CONTRIBUTION,
    storage.CONTRIBUTION,
)


def _merge(field: str) -> dict[str, Any]:
    """Merge one field of all contributions."""
    return {kind: item for each in _CONTRIBUTIONS for kind, item in getattr(each, field).items()}


CREATE: Mapping[str, Create] = _merge("create")
BEFORE: Mapping[str, Before] = _merge("before")
AFTER: Mapping[str, After] = _merge("after")
UPDATE: Mapping[str, Update] = _merge("update")
DELETE: Mapping[str, Delete] = _merge("delete")
REPLACED_BY: Mapping[str, frozenset[str]] = _merge("replaced_by")

SUPPORTED_PROPERTIES: Mapping[str, frozenset[str]] = {
    name: frozenset(entry.get("honored", []) + entry.get("accepted", []))
    for name, entry in tomllib.loads(
        (files("trainium_emulators.aws.cloudformation") / "properties.toml").read_text()
    ).items()
}
"""Properties of each type that have an effect here, or are accepted without one."""

_WITHOUT_EFFECT = frozenset({"AWS::CDK::Metadata"})

_UPDATED_BY_MOTO = frozenset(
    {
        "AWS::EC2::LaunchTemplate",
        "AWS::IAM::Policy",
        "AWS::Lambda::Function",
        "AWS::SSM::Parameter",
    }
)
"""Types that moto updates in place without losing unchanged properties."""


def refusal_of(resource_type: str, properties: Mapping[str, Any]) -> str | None:
    """Return why a resource cannot be rehearsed; None if it can."""
    if resource_type not in SUPPORTED_PROPERTIES:
        return (
            f"the rehearsal has no model of {resource_type}; "
            "add one to trainium_emulators/aws/cloudformation and its properties to properties.toml"
        )
    unknown = sorted(set(properties) - SUPPORTED_PROPERTIES[resource_type])
    if unknown:
        return (
            f"the rehearsal does not support {', '.join(unknown)} of {resource_type}; honor it in "
            "trainium_emulators/aws/cloudformation or accept it in properties.toml"
        )
    return None


@dataclass(frozen=True, slots=True)
class _Model:
    """A function of ours, as moto calls its models."""

    create: Create

    def create_from_cloudformation_json(
        self, name: str, resource_json: Any, account_id: str, region: str, **kwargs: Any
    ) -> Any:
        place = AccountRegion(account_id=account_id, region=region)
        return self.create(name, resource_json["Properties"], place)

    @staticmethod
    def has_cfn_attr(attr: str) -> bool:
        return True


def model_of(resource_type: str) -> Any:
    """Return our model or moto's; ``check_template`` refuses a type that has neither."""
    if resource_type in CREATE:
        return _Model(CREATE[resource_type])
    return parsing.get_model_map().get(resource_type)


def check_template(template: Mapping[str, Any], *, lenient: bool) -> None:
    """Refuse a template with unsupported types or properties before creating any resource.

    ``lenient`` is for the CDK's own bootstrap stack, which we do not rehearse.
    """
    for logical_id, resource in template.get("Resources", {}).items():
        kind = resource["Type"]
        refusal = (
            None
            if lenient or kind in _WITHOUT_EFFECT
            else refusal_of(kind, resource.get("Properties", {}))
        )
        if refusal is None and kind not in _WITHOUT_EFFECT and model_of(kind) is None:
            refusal = f"the rehearsal has no model of {kind}"
        if refusal:
            raise ValidationError(message=f"{logical_id}: {refusal}")


def _create(
    logical_id: str,
    resource_json: dict[str, Any],
    resources_map: parsing.ResourceMap,
    account_id: str,
    region_name: str,
) -> Any:
    kind = resource_json["Type"]
    if kind in _WITHOUT_EFFECT:
        return None
    place = AccountRegion(account_id=account_id, region=region_name)
    # moto creates referenced resources first, but ignores DependsOn.
    for other in depends_on(resource_json):
        _ = resources_map[other]
    resolved = resolved_properties(resource_json, resources_map)
    refuse_resource(logical_id, kind, resolved, place)
    properties = copy.deepcopy(resolved)
    if kind in BEFORE:
        BEFORE[kind](properties, place)
    complete = {**resource_json, "Properties": properties}
    resource = _moto_create(logical_id, complete, resources_map, account_id, region_name)
    if resource is None:
        return None
    if kind in AFTER:
        AFTER[kind](resource, properties, place)
    # Deletion uses the properties from creation, even if references then resolve differently.
    resource.rehearsal_kind = kind
    resource.rehearsal_properties = properties
    resource.rehearsal_resolved = resolved
    return resource


_moto_create = parsing.parse_and_create_resource


def _delete_resource(self: parsing.ResourceMap, resource: Any, resource_json: Any) -> None:
    """Delete a resource with our function or moto's; unlike moto, fail if there is neither."""
    kind = resource_json["Type"]
    account_id, region = self._account_id, self._region_name
    if kind in DELETE:
        place = AccountRegion(account_id=account_id, region=region)
        DELETE[kind](resource, resource.rehearsal_properties, place)
    elif hasattr(resource, "delete"):
        resource.delete(account_id, region)
    else:
        model = model_of(kind)
        assert model is not None
        delete = model.delete_from_cloudformation_json
        if hasattr(delete, "__isabstractmethod__"):
            raise ValidationError(message=f"the rehearsal cannot delete {kind}")
        delete(
            resource.physical_resource_id,
            {"Type": kind, "Properties": resource.rehearsal_properties},
            account_id,
            region,
        )


def _delete_stack_resources(self: parsing.ResourceMap) -> None:
    """Delete in reverse order of creation; moto retries in random order until it succeeds.

    Entries are kept, because moto renders the outputs of deleted stacks again and would recreate
    the resources that they reference.
    """
    for logical_id, resource in reversed(list(self._parsed_resources.items())):
        template = self._resource_json_map.get(logical_id)
        if template is None or resource is None or getattr(resource, "rehearsal_gone", False):
            continue
        if template.get("DeletionPolicy") == "Retain":
            continue
        self._delete_resource(resource, template)
        resource.rehearsal_gone = True


def _update(
    logical_id: str,
    resource_json: dict[str, Any],
    resources_map: parsing.ResourceMap,
    account_id: str,
    region_name: str,
) -> Any:
    """Update with our function, or with moto's model if that is known to be correct; otherwise
    fail."""
    kind = resource_json["Type"]
    place = AccountRegion(account_id=account_id, region=region_name)
    old = resources_map._parsed_resources[logical_id]
    resolved = resolved_properties(resource_json, resources_map)
    refuse_resource(logical_id, kind, resolved, place, previous=old.rehearsal_resolved)
    properties = copy.deepcopy(resolved)
    if kind in BEFORE:
        BEFORE[kind](properties, place)
    changed = {
        key
        for key in {*resolved, *old.rehearsal_resolved}
        if resolved.get(key) != old.rehearsal_resolved.get(key)
    }
    if changed & REPLACED_BY.get(kind, frozenset()):
        replacement = _create(logical_id, resource_json, resources_map, account_id, region_name)
        # The replaced resources are deleted at the end of the update, when none references them.
        replacement.rehearsal_replaces = [old, *getattr(old, "rehearsal_replaces", ())]
        return replacement
    if kind in UPDATE:
        resource = UPDATE[kind](old, PropertyChange(properties=properties, changed=changed), place)
    elif kind in _UPDATED_BY_MOTO:
        complete = {**resource_json, "Properties": properties}
        resource = _moto_update(logical_id, complete, resources_map, account_id, region_name)
    else:
        raise ValidationError(
            message=f"{logical_id}: the rehearsal cannot update {kind} in place; destroy the "
            "stacks first"
        )
    resource.cf_resource_type, resource.logical_resource_id = kind, logical_id
    if kind in AFTER:
        AFTER[kind](resource, properties, place)
    resource.rehearsal_kind = kind
    resource.rehearsal_properties = properties
    resource.rehearsal_resolved = resolved
    return resource


_moto_update = parsing.parse_and_update_resource


def _update_parameters(
    self: CloudFormationBackend, instance: Any, incoming_params: list[dict[str, Any]]
) -> dict[str, str]:
    """Resolve parameters; moto keeps only explicit previous values, not defaults.

    The previous value of a Systems Manager parameter is its name, which is looked up every time
    (CloudFormation user guide, supplied parameter types).
    """
    declared = instance.template_dict.get("Parameters", {})
    defaults = {name: parameter.get("Default") for name, parameter in declared.items()}
    known = {**defaults, **instance.parameters}
    return {
        parameter["ParameterKey"]: known[parameter["ParameterKey"]]
        if parameter.get("UsePreviousValue")
        else parameter["ParameterValue"]
        for parameter in incoming_params
    }


def _parse_template(template: str) -> Any:
    """Parse the CLI's JSON as JSON, because moto's YAML parser takes 200 times as long."""
    try:
        return json.loads(template)
    except ValueError:
        return _moto_parse_template(template)


_moto_parse_template = Stack.parse_template


def _wrap_operation(operation: Any) -> Any:
    """Wrap a stack operation: check the template first, and raise errors that the CLI shows."""

    def run(self: CloudFormationBackend, name: str, template: str, *args: Any, **kw: Any) -> Any:
        if template:
            parsed = Stack.parse_template(template)
            check_template(parsed, lenient=name == "CDKToolkit")
        with _as_cloudformation_errors():
            return operation(self, name, template, *args, **kw)

    return run


def _update_stack(
    self: CloudFormationBackend, name: str, template: str, *args: Any, **kw: Any
) -> Stack:
    """Update a stack unless the update removes or changes an export in use."""
    stack = self.get_stack(name)
    before = stacks.values_of(stack)
    if template:
        removed = before.keys() - stacks.names_in(Stack.parse_template(template), stack)
        message = "Export {name} cannot be deleted as it is in use by {users}"
        stacks.refuse_if_imported(self, stack, removed, message)
    updated = _moto_update_stack(self, name, template, *args, **kw)
    after = stacks.values_of(stack)
    changed = [name for name in before.keys() & after.keys() if before[name] != after[name]]
    # AWS would roll back the update; the emulator cannot.
    message = "Export {name} cannot be updated as it is in use by {users}"
    stacks.refuse_if_imported(self, stack, changed, message)
    stacks.remember(self, stack, before)
    return updated


_moto_update_stack = CloudFormationBackend.update_stack
_moto_delete_stack = CloudFormationBackend.delete_stack


def _delete_stack(self: CloudFormationBackend, name: str) -> None:
    with _as_cloudformation_errors():
        for stack in list(self.stacks.values()):
            if name in (stack.name, stack.stack_id):
                message = "Delete canceled. Cannot delete export {name} as it is in use by {users}."
                stacks.refuse_if_imported(self, stack, stacks.values_of(stack), message)
        _moto_delete_stack(self, name)


@contextmanager
def _as_cloudformation_errors() -> Iterator[None]:
    """Convert errors of all services into a form that the CLI can read."""
    try:
        yield
    except ServiceException:
        raise
    except Exception as error:
        # The CLI would retry an HTTP 500 and then mistake it for "already exists"; it cannot read
        # a JSON response at all.
        traceback.print_exc()
        description = getattr(error, "description", "") or error
        raise ValidationError(message=f"{type(error).__name__}: {description}") from error


def install() -> None:
    """Patch moto in this process."""
    parsing.resource_class_from_type = model_of
    parsing.parse_and_create_resource = _create
    parsing.parse_and_update_resource = _update
    parsing.ResourceMap._delete_resource = _delete_resource
    parsing.ResourceMap.delete = _delete_stack_resources
    parsing.ResourceMap.update = update_stack_resources
    Stack.parse_template = staticmethod(_parse_template)
    CloudFormationBackend._resolve_update_parameters = _update_parameters
    CloudFormationBackend.create_stack = _wrap_operation(CloudFormationBackend.create_stack)
    CloudFormationBackend.delete_stack = _delete_stack
    CloudFormationBackend.update_stack = _wrap_operation(_update_stack)
    ComputeEnvironment.get_cfn_attribute = batch.get_arn
    JobQueue.get_cfn_attribute = batch.get_arn
    JobDefinition.describe = batch.describe_with_nodes
    EC2Response.describe_placement_groups = ec2.describe_placement_groups
    eks_members.install()
    eks_nodes.install()
