"""Models add-ons, access entries and Pod Identity associations, and EKS's API for them."""

from __future__ import annotations

import uuid
from typing import Any

from moto.core.responses import ActionResult
from moto.eks import urls
from moto.eks.exceptions import InvalidParameterException
from moto.eks.models import eks_backends
from moto.eks.responses import EKSResponse

from trainium_emulators.aws.cloudformation import eks_nodes
from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    ModeledResource,
    Properties,
    PropertyChange,
)

MEMBERS: dict[tuple[AccountRegion, str, str], dict[str, Properties]] = {}
"""Properties by id, for every account, region, cluster and type; moto has no backend for them."""
_LISTS = ("addons", "pod-identity-associations")


class ClusterResource(ModeledResource):
    """Base class of resources that belong to a cluster; stored in ``MEMBERS``, from which the API
    lists them."""

    type_name = ""
    key = ""
    """Property used as the id; empty if EKS generates the id."""
    arn_name = ""

    @classmethod
    def create(cls, name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
        cluster = eks_backends[place.account_id][place.region].describe_cluster(
            properties["ClusterName"]
        )
        identity = properties[cls.key] if cls.key else f"a-{uuid.uuid4().hex[:17]}"
        stored = members_of(place, cluster.name, cls.type_name)
        stored[identity] = properties
        arn = f"{cluster.arn.replace(':cluster/', f':{cls.type_name}/')}/{identity}"
        return cls(
            f"{identity}|{cluster.name}",
            {cls.arn_name: arn, "AssociationId": identity, "Id": identity},
        )


class Addon(ClusterResource):
    """AWS::EKS::Addon."""

    type_name, key, arn_name = "addon", "AddonName", "Arn"


class AccessEntry(ClusterResource):
    """AWS::EKS::AccessEntry."""

    type_name, key, arn_name = "access-entry", "PrincipalArn", "AccessEntryArn"


class PodIdentityAssociation(ClusterResource):
    """AWS::EKS::PodIdentityAssociation."""

    type_name, key, arn_name = "podidentityassociation", "", "AssociationArn"


def members_of(place: AccountRegion, cluster: str, type_name: str) -> dict[str, Properties]:
    """Return the properties of a cluster's members of one type, by id."""
    return MEMBERS.setdefault((place, cluster, type_name), {})


def _update_member(member: Any, change: PropertyChange, place: AccountRegion) -> Any:
    kind = f"AWS::EKS::{type(member).__name__}"
    change.refuse_others(
        kind,
        frozenset({"AccessPolicies", "AddonVersion", "ConfigurationValues",
                   "PodIdentityAssociations", "RoleArn", "ServiceAccountRoleArn", "Tags"}),
    )  # fmt: skip
    identity, _, cluster = member.physical_resource_id.partition("|")
    members_of(place, cluster, member.type_name)[identity] = change.properties
    return member


def _delete_member(member: Any, _: Properties, place: AccountRegion) -> None:
    identity, _, cluster = member.physical_resource_id.partition("|")
    del members_of(place, cluster, member.type_name)[identity]


_MODELS = (Addon, AccessEntry, PodIdentityAssociation)

CONTRIBUTION = Contribution(
    create={f"AWS::EKS::{model.__name__}": model.create for model in _MODELS},
    update={f"AWS::EKS::{model.__name__}": _update_member for model in _MODELS},
    delete={f"AWS::EKS::{model.__name__}": _delete_member for model in _MODELS},
)


def _members_for(response: EKSResponse, type_name: str) -> dict[str, Properties]:
    place = AccountRegion(account_id=response.current_account, region=response.region)
    cluster = response.eks_backend.describe_cluster(response._get_param("name"))
    return members_of(place, cluster.name, type_name)


def list_addons(response: EKSResponse) -> ActionResult:
    """ListAddons."""
    return ActionResult({"addons": sorted(_members_for(response, Addon.type_name))})


def list_pod_identity_associations(response: EKSResponse) -> ActionResult:
    """ListPodIdentityAssociations."""
    associations = _members_for(response, PodIdentityAssociation.type_name)
    return ActionResult(
        {
            "associations": [
                {
                    "associationId": identity,
                    "clusterName": properties["ClusterName"],
                    "namespace": properties["Namespace"],
                    "serviceAccount": properties["ServiceAccount"],
                }
                for identity, properties in associations.items()
            ]
        }
    )


def update_nodegroup_config(response: EKSResponse) -> ActionResult:
    """UpdateNodegroupConfig: refuse a desired size out of range, call moto, and scale the nodes."""
    group = response.eks_backend.describe_nodegroup(
        response._get_param("name"), response._get_param("nodegroupName")
    )
    sizes = {**group.scaling_config, **(response._get_param("scalingConfig") or {})}
    if not sizes["minSize"] <= sizes["desiredSize"] <= sizes["maxSize"]:
        raise InvalidParameterException(
            message=f"desired capacity {sizes['desiredSize']} is not between the minimum "
            f"{sizes['minSize']} and the maximum {sizes['maxSize']}"
        )
    result = _moto_update_nodegroup_config(response)
    eks_nodes.match(group)
    return result


_moto_update_nodegroup_config = EKSResponse.update_nodegroup_config


def install() -> None:
    """Patch moto in this process."""
    EKSResponse.list_addons = list_addons
    EKSResponse.list_pod_identity_associations = list_pod_identity_associations
    EKSResponse.update_nodegroup_config = update_nodegroup_config
    for name in _LISTS:
        urls.url_paths[f"{{0}}/clusters/(?P<name>[^/]+)/{name}$"] = EKSResponse.dispatch
