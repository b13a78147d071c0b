"""IAM: updates of roles, where moto would keep a description and forget the rest."""

import json
from typing import Any

from rehearsal.models.spi import Change, Contribution, Place

_CHANGEABLE = frozenset({"AssumeRolePolicyDocument", "Description", "Policies", "Tags"})


def _update_role(role: Any, change: Change, _: Place) -> Any:
    # Managed policies are kept by nothing here, so a change of them changes nothing.
    change.refuse_others("AWS::IAM::Role", _CHANGEABLE | {"ManagedPolicyArns"})
    properties = change.properties
    role.assume_role_policy_document = json.dumps(properties["AssumeRolePolicyDocument"])
    role.description = properties.get("Description", "")
    if "Tags" in change.changed:
        role.tags = {tag["Key"]: tag for tag in properties.get("Tags", [])}
    if "Policies" in change.changed:
        for entry in role.rehearsal_properties.get("Policies", []):
            role.delete_policy(entry["PolicyName"])
        for entry in properties.get("Policies", []):
            role.put_policy(entry["PolicyName"], json.dumps(entry["PolicyDocument"]))
    return role


CONTRIBUTION = Contribution(update={"AWS::IAM::Role": _update_role})
"""Roles; policies of their own are updated by moto."""
