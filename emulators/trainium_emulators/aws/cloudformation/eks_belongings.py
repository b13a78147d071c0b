"""EKS: add-ons, access entries and Pod Identity associations, which only their cluster knows."""

from __future__ import annotations

import uuid
from typing import Any

from moto.eks.models import eks_backends

from trainium_emulators.aws.cloudformation.spi import (
    Change,
    Contribution,
    Place,
    Properties,
    Resource,
)

KEPT: dict[tuple[Place, str, str], dict[str, Properties]] = {}
"""Properties by id, of every place, cluster and type; moto has no back-end for them."""


class Belonging(Resource):
    """Base of what only its cluster knows: kept, and listed by the API."""

    type_name = ""
    key = ""
    """Property that is its id, or empty for one that EKS makes up."""
    arn_name = ""

    @classmethod
    def create(cls, name: str, properties: Properties, place: Place) -> Resource:
        cluster = eks_backends[place.account_id][place.region].describe_cluster(
            properties["ClusterName"]
        )
        identity = properties[cls.key] if cls.key else f"a-{uuid.uuid4().hex[:17]}"
        kept = belongings(place, cluster.name, cls.type_name)
        kept[identity] = properties
        arn = f"{cluster.arn.replace(':cluster/', f':{cls.type_name}/')}/{identity}"
        return cls(
            f"{identity}|{cluster.name}",
            {cls.arn_name: arn, "AssociationId": identity, "Id": identity},
        )


class Addon(Belonging):
    """AWS::EKS::Addon."""

    type_name, key, arn_name = "addon", "AddonName", "Arn"


class AccessEntry(Belonging):
    """AWS::EKS::AccessEntry."""

    type_name, key, arn_name = "access-entry", "PrincipalArn", "AccessEntryArn"


class PodIdentityAssociation(Belonging):
    """AWS::EKS::PodIdentityAssociation."""

    type_name, key, arn_name = "podidentityassociation", "", "AssociationArn"


def belongings(place: Place, cluster: str, type_name: str) -> dict[str, Properties]:
    """What a cluster has of one type, by id."""
    return KEPT.setdefault((place, cluster, type_name), {})


def _update_belonging(belonging: Any, change: Change, place: Place) -> Any:
    kind = f"AWS::EKS::{type(belonging).__name__}"
    change.refuse_others(
        kind,
        frozenset({"AccessPolicies", "AddonVersion", "ConfigurationValues",
                   "PodIdentityAssociations", "RoleArn", "ServiceAccountRoleArn", "Tags"}),
    )  # fmt: skip
    identity, _, cluster = belonging.physical_resource_id.partition("|")
    belongings(place, cluster, belonging.type_name)[identity] = change.properties
    return belonging


def _delete_belonging(belonging: Any, _: Properties, place: Place) -> None:
    identity, _, cluster = belonging.physical_resource_id.partition("|")
    del belongings(place, cluster, belonging.type_name)[identity]


_MODELS = (Addon, AccessEntry, PodIdentityAssociation)

CONTRIBUTION = Contribution(
    models={f"AWS::EKS::{model.__name__}": model for model in _MODELS},
    update={f"AWS::EKS::{model.__name__}": _update_belonging for model in _MODELS},
    delete={f"AWS::EKS::{model.__name__}": _delete_belonging for model in _MODELS},
)
