"""Updates stacks: a resource changes when what it resolves to has changed, however that came."""

import copy
from typing import Any

from moto.cloudformation import parsing
from moto.cloudformation.exceptions import ValidationError

_ROUNDS = 10
"""One for each step of the longest chain of references, and one to see that all is done."""


def resolved_properties(resource_json: dict[str, Any], resources: parsing.ResourceMap) -> Any:
    """The properties of a resource with every reference replaced, as a copy of its own."""
    resolved = parsing.clean_json({"Properties": {}, **resource_json}, resources)
    return copy.deepcopy(resolved["Properties"])


def update_stack_resources(
    self: parsing.ResourceMap,
    template: dict[str, Any],
    parameters: dict[str, Any] | None = None,
) -> None:
    """Create what is new, change what differs, then delete what is gone: CloudFormation's order.

    moto compares templates, so a resource never hears that another one, which it refers to, was
    replaced; and it deletes before anything stops using what goes.
    """
    before = self._resource_json_map
    self._template = template
    if parameters:
        self.input_parameters = parameters
    self.load_mapping()
    self.load_parameters()
    self.load_conditions()
    self._resource_json_map = {**before, **template["Resources"]}
    for name in template["Resources"]:
        _ = self[name]  # makes what is not there
    for _ in range(_ROUNDS):
        if not any([_update_if_changed(self, name) for name in template["Resources"]]):
            break
    else:
        raise ValidationError(message=f"the update did not settle in {_ROUNDS} rounds")
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


def _update_if_changed(resources: parsing.ResourceMap, name: str) -> bool:
    resource = resources[name]
    if resource is None:
        return False
    resource_json = resources._resource_json_map[name]
    if resolved_properties(resource_json, resources) == resource.rehearsal_resolved:
        return False
    resources._parsed_resources[name] = parsing.parse_and_update_resource(
        name, resource_json, resources, resources._account_id, resources._region_name
    )
    return True
