"""IAM and KMS: identity providers, tags of keys, and updates of roles, which moto half ignores."""

import json
from typing import Any

from moto.iam.models import iam_backends

from trainium_emulators.aws.cloudformation.spi import (
    Change,
    Contribution,
    Place,
    Properties,
    Resource,
)

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


class OpenIdConnectProvider(Resource):
    """AWS::IAM::OIDCProvider: what lets a cluster's service accounts take roles."""

    @classmethod
    def create(cls, name: str, properties: Properties, place: Place) -> Resource:
        made = iam_backends[place.account_id]["aws"].create_open_id_connect_provider(
            properties["Url"],
            properties.get("ThumbprintList", []),
            properties.get("ClientIdList", []),
            properties.get("Tags", []),
        )
        return cls(made.arn, {"Arn": made.arn})


def _delete_provider(provider: Any, _: Properties, place: Place) -> None:
    iam_backends[place.account_id]["aws"].delete_open_id_connect_provider(
        provider.physical_resource_id
    )


class ParsedJson(Resource):
    """Custom::AWSCDKCfnJson: a text with references in it, as what it says.

    The CDK writes trust policies with it, where a name depends on another resource.
    """

    @classmethod
    def create(cls, name: str, properties: Properties, place: Place) -> Resource:
        return cls(name, {"Value": json.loads(properties["Value"])})


def _name_tags_as_kms(properties: Properties, _: Place) -> None:
    """KMS's API has other words for a tag's parts than CloudFormation."""
    properties["Tags"] = [
        {"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in properties.get("Tags", [])
    ]


CONTRIBUTION = Contribution(
    before={"AWS::KMS::Key": _name_tags_as_kms},
    models={
        "AWS::IAM::OIDCProvider": OpenIdConnectProvider,
        "Custom::AWSCDKCfnJson": ParsedJson,
    },
    update={
        "AWS::IAM::Role": _update_role,
        "Custom::AWSCDKCfnJson": lambda parsed, change, place: ParsedJson.create(
            parsed.physical_resource_id, change.properties, place
        ),
    },
    delete={
        "AWS::IAM::OIDCProvider": _delete_provider,
        # It is an answer, not a thing.
        "Custom::AWSCDKCfnJson": lambda parsed, properties, place: None,
    },
)
"""Roles' own policies are updated by moto."""
