"""Models parts of IAM, KMS, Lambda layers and SSM parameters that moto lacks or ignores."""

from __future__ import annotations

import json
import uuid
from typing import Any

from moto.awslambda.models import get_backend
from moto.iam.models import iam_backends

from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    ModeledResource,
    Properties,
    PropertyChange,
)

_CHANGEABLE = frozenset({"AssumeRolePolicyDocument", "Description", "Policies", "Tags"})


def _complete_parameter(properties: Properties, _: AccountRegion) -> None:
    """Set a default name; convert CloudFormation's map of tags to the API's list, for moto."""
    properties.setdefault("Name", f"CFN-Parameter-{uuid.uuid4().hex[:12]}")
    tags = properties.get("Tags", {})
    properties["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]


def _delete_layer(layer: Any, _: Properties, place: AccountRegion) -> None:
    get_backend(place.account_id, place.region).delete_layer_version(layer.name, layer.version)


def _update_layer(layer: Any, change: PropertyChange, place: AccountRegion) -> Any:
    """Publish a new version for any change, and delete the old one."""
    new_layer = type(layer).create_from_cloudformation_json(
        layer.name, {"Properties": change.properties}, place.account_id, place.region
    )
    _delete_layer(layer, {}, place)
    return new_layer


def _refer_by_arn(layer: Any, _: Properties, place: AccountRegion) -> None:
    """Make ``Ref`` return the version's ARN, as on AWS; moto returns the object itself."""
    layer.physical_resource_id = layer.arn


def _update_role(role: Any, change: PropertyChange, _: AccountRegion) -> Any:
    # The emulator stores no managed policies, so changing them has no effect.
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


def _create_provider(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::IAM::OIDCProvider: lets a cluster's service accounts assume roles."""
    provider = iam_backends[place.account_id]["aws"].create_open_id_connect_provider(
        properties["Url"],
        properties.get("ThumbprintList", []),
        properties.get("ClientIdList", []),
        properties.get("Tags", []),
    )
    return ModeledResource(provider.arn, {"Arn": provider.arn})


def _delete_provider(provider: Any, _: Properties, place: AccountRegion) -> None:
    iam_backends[place.account_id]["aws"].delete_open_id_connect_provider(
        provider.physical_resource_id
    )


def _parse_json(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """Custom::AWSCDKCfnJson: parses a JSON string that contains references.

    The CDK uses it for trust policies in which a name depends on another resource.
    """
    return ModeledResource(name, {"Value": json.loads(properties["Value"])})


def _rename_kms_tags(properties: Properties, _: AccountRegion) -> None:
    """Rename CloudFormation's tag keys to the KMS API's."""
    properties["Tags"] = [
        {"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in properties.get("Tags", [])
    ]


CONTRIBUTION = Contribution(
    before={
        "AWS::KMS::Key": _rename_kms_tags,
        "AWS::SSM::Parameter": _complete_parameter,
    },
    after={"AWS::Lambda::LayerVersion": _refer_by_arn},
    create={
        "AWS::IAM::OIDCProvider": _create_provider,
        "Custom::AWSCDKCfnJson": _parse_json,
    },
    update={
        "AWS::IAM::Role": _update_role,
        "AWS::Lambda::LayerVersion": _update_layer,
        "Custom::AWSCDKCfnJson": lambda parsed, change, place: _parse_json(
            parsed.physical_resource_id, change.properties, place
        ),
    },
    delete={
        "AWS::IAM::OIDCProvider": _delete_provider,
        "AWS::Lambda::LayerVersion": _delete_layer,
        # A computed value, so there is nothing to delete.
        "Custom::AWSCDKCfnJson": lambda parsed, properties, place: None,
    },
)
"""Does not contain ``AWS::IAM::Policy``, which moto updates correctly."""
