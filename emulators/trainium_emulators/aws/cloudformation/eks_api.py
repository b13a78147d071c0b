"""EKS's API where moto has none: what belongs to a cluster, and nodes that follow their group."""

from __future__ import annotations

from moto.core.responses import ActionResult
from moto.eks import urls
from moto.eks.exceptions import InvalidParameterException
from moto.eks.responses import EKSResponse

from trainium_emulators.aws.cloudformation import eks_nodes
from trainium_emulators.aws.cloudformation.eks_belongings import (
    AccessEntry,
    Addon,
    PodIdentityAssociation,
    belongings,
)
from trainium_emulators.aws.cloudformation.spi import Place, Properties

_LISTS = ("addons", "access-entries", "pod-identity-associations")


def _kept(response: EKSResponse, type_name: str) -> dict[str, Properties]:
    place = Place(account_id=response.current_account, region=response.region)
    cluster = response.eks_backend.describe_cluster(response._get_param("name"))
    return belongings(place, cluster.name, type_name)


def list_addons(response: EKSResponse) -> ActionResult:
    """ListAddons."""
    return ActionResult({"addons": sorted(_kept(response, Addon.type_name))})


def list_access_entries(response: EKSResponse) -> ActionResult:
    """ListAccessEntries."""
    return ActionResult({"accessEntries": sorted(_kept(response, AccessEntry.type_name))})


def list_pod_identity_associations(response: EKSResponse) -> ActionResult:
    """ListPodIdentityAssociations."""
    kept = _kept(response, PodIdentityAssociation.type_name)
    return ActionResult(
        {
            "associations": [
                {
                    "associationId": identity,
                    "clusterName": properties["ClusterName"],
                    "namespace": properties["Namespace"],
                    "serviceAccount": properties["ServiceAccount"],
                }
                for identity, properties in kept.items()
            ]
        }
    )


def update_nodegroup_config(response: EKSResponse) -> ActionResult:
    """UpdateNodegroupConfig as moto has it, refused where EKS refuses, and seen in the cluster."""
    group = response.eks_backend.describe_nodegroup(
        response._get_param("name"), response._get_param("nodegroupName")
    )
    sizes = {**group.scaling_config, **(response._get_param("scalingConfig") or {})}
    if not sizes["minSize"] <= sizes["desiredSize"] <= sizes["maxSize"]:
        raise InvalidParameterException(
            message=f"desired capacity {sizes['desiredSize']} is not between the minimum "
            f"{sizes['minSize']} and the maximum {sizes['maxSize']}"
        )
    answer = _update(response)
    eks_nodes.match(group)
    return answer


_update = EKSResponse.update_nodegroup_config


def install() -> None:
    """Patch moto in this process."""
    EKSResponse.list_addons = list_addons
    EKSResponse.list_access_entries = list_access_entries
    EKSResponse.list_pod_identity_associations = list_pod_identity_associations
    EKSResponse.update_nodegroup_config = update_nodegroup_config
    for name in _LISTS:
        urls.url_paths[f"{{0}}/clusters/(?P<name>[^/]+)/{name}$"] = EKSResponse.dispatch
