"""Models EKS clusters and node groups; the endpoint is the local API server."""

from __future__ import annotations

import base64
from importlib.resources import files
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.ec2.models import ec2_backends
from moto.eks.models import eks_backends

from trainium_emulators.aws.cloudformation import eks_nodes
from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    ModeledResource,
    Properties,
    PropertyChange,
)
from trainium_emulators.aws.cloudformation.eks_cluster import CLUSTER

CERTIFICATE = base64.b64encode((files("moto") / "moto_proxy" / "ca.crt").read_bytes()).decode()
"""moto's certificate as Base64 of PEM, as in DescribeCluster. It is never checked, because the API
server uses plain HTTP on loopback."""


def _backend(place: AccountRegion) -> Any:
    return eks_backends[place.account_id][place.region]


def _lower(value: Any) -> Any:
    """Convert CloudFormation's capitalized names to the API's."""
    if isinstance(value, dict):
        return {key[:1].lower() + key[1:]: _lower(entry) for key, entry in value.items()}
    return [_lower(entry) for entry in value] if isinstance(value, list) else value


# --- clusters ------------------------------------------------------------------------------------


def _create_cluster(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::EKS::Cluster: its endpoint is the local API server."""
    if _backend(place).clusters:
        raise ValidationError(message="the rehearsal supports only one EKS cluster")
    network = _lower(properties["ResourcesVpcConfig"])
    ec2 = ec2_backends[place.account_id][place.region]
    (subnet,) = ec2.describe_subnets(subnet_ids=network["subnetIds"][:1])
    # The group that EKS creates for the control plane's and nodes' interfaces.
    group = ec2.create_security_group(f"eks-cluster-sg-{name}", "cluster", subnet.vpc_id)
    created = _backend(place).create_cluster(
        name=properties.get("Name", name),
        role_arn=properties["RoleArn"],
        resources_vpc_config={
            **network, "clusterSecurityGroupId": group.id, "vpcId": subnet.vpc_id
        },
        version=properties.get("Version"),
        kubernetes_network_config=_lower(properties.get("KubernetesNetworkConfig")),
        logging=_logging(properties),
        encryption_config=_lower(properties.get("EncryptionConfig")),
        tags={tag["Key"]: tag["Value"] for tag in properties.get("Tags", [])},
    )  # fmt: skip
    created.endpoint = CLUSTER.running.endpoint
    created.certificate_authority = {"data": CERTIFICATE}
    return ModeledResource(
        created.name,
        {
            "Arn": created.arn,
            "CertificateAuthorityData": CERTIFICATE,
            "ClusterSecurityGroupId": group.id,
            "Endpoint": created.endpoint,
            "OpenIdConnectIssuerUrl": created.identity["oidc"]["issuer"],
        },
    )


def _logging(properties: Properties) -> Any:
    """Return the enabled log types in the API's form."""
    enabled = properties.get("Logging", {}).get("ClusterLogging", {}).get("EnabledTypes", [])
    types = [entry["Type"] for entry in enabled]
    return {"clusterLogging": [{"types": types, "enabled": True}]} if types else None


def _update_cluster(cluster: Any, change: PropertyChange, place: AccountRegion) -> Any:
    """Update endpoint access, logging and the control plane's version.

    Changes to tags and the upgrade policy are accepted, but have no effect.
    """
    change.refuse_others(
        "AWS::EKS::Cluster",
        frozenset({"Logging", "ResourcesVpcConfig", "Tags", "UpgradePolicy", "Version"}),
    )
    existing = _backend(place).describe_cluster(cluster.physical_resource_id)
    # Its nodes are not updated: a kubelet may be up to three minor versions older.
    existing.version = change.properties.get("Version", existing.version)
    existing.logging = _logging(change.properties) or existing.logging
    existing.resources_vpc_config |= _lower(change.properties["ResourcesVpcConfig"])
    return cluster


def _delete_cluster(cluster: Any, _: Properties, place: AccountRegion) -> None:
    name = cluster.physical_resource_id
    _backend(place).delete_cluster(name)
    ec2_backends[place.account_id][place.region].delete_security_group(
        group_id=cluster.attributes["ClusterSecurityGroupId"]
    )


# --- node groups ---------------------------------------------------------------------------------


def _create_nodegroup(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::EKS::Nodegroup, whose desired size determines the number of nodes."""
    cluster = properties["ClusterName"]
    template = _launch_template(properties, place)
    if not (properties.get("InstanceTypes") or template.get("InstanceType")):
        raise ValidationError(
            message=f"{name}: InstanceTypes or the launch template must specify the instance type"
        )
    created = _backend(place).create_nodegroup(
        cluster_name=cluster,
        node_role=properties["NodeRole"],
        # At most 63 characters (Amazon EKS API reference, CreateNodegroup).
        nodegroup_name=properties.get("NodegroupName", name)[:63],
        subnets=properties["Subnets"],
        scaling_config=_scaling(properties),
        disk_size=properties.get("DiskSize"),
        instance_types=properties.get("InstanceTypes") or [template["InstanceType"]],
        ami_type=properties.get("AmiType"),
        labels=properties.get("Labels"),
        taints=_taints(properties),
        tags=properties.get("Tags"),
        launch_template=_lower(properties.get("LaunchTemplate")),
        capacity_type=properties.get("CapacityType"),
        version=properties.get("Version") or _backend(place).describe_cluster(cluster).version,
        release_version=properties.get("ReleaseVersion"),
    )
    created.node_repair_config = _lower(properties.get("NodeRepairConfig"))
    created.update_config = _lower(properties.get("UpdateConfig"))
    eks_nodes.match(created)
    return ModeledResource(
        f"{cluster}/{created.nodegroup_name}",
        {
            "Arn": created.arn,
            "ClusterName": cluster,
            "Id": f"{cluster}/{created.nodegroup_name}",
            "NodegroupName": created.nodegroup_name,
        },
    )


def _launch_template(properties: Properties, place: AccountRegion) -> dict[str, Any]:
    """Return the data of the node group's launch template version, if any."""
    given = properties.get("LaunchTemplate")
    if given is None:
        return {}
    ec2 = ec2_backends[place.account_id][place.region]
    template = (
        ec2.get_launch_template(given["Id"])
        if "Id" in given
        else ec2.get_launch_template_by_name(given["Name"])
    )
    data: dict[str, Any] = template.get_version(given.get("Version", "$Default")).data
    return data


def _scaling(properties: Properties) -> dict[str, int]:
    """Return the sizes as numbers, under the API's names."""
    given = properties.get("ScalingConfig", {})
    return {key: int(size) for key, size in _lower(given).items()}


def _taints(properties: Properties) -> list[dict[str, str]]:
    return [_lower(taint) for taint in properties.get("Taints", [])]


# Properties updated by UpdateNodegroupVersion (EKS API reference), which replaces the nodes.
_REPLACES_NODES = frozenset({"LaunchTemplate", "ReleaseVersion", "Version"})


def _update_nodegroup(group: Any, change: PropertyChange, place: AccountRegion) -> Any:
    """Update the group, and recreate its nodes if EKS would replace them.

    Changes to tags and ``UpdateConfig`` are accepted, but have no effect.
    """
    change.refuse_others(
        "AWS::EKS::Nodegroup",
        frozenset({"Labels", "LaunchTemplate", "NodeRepairConfig", "ReleaseVersion",
                   "ScalingConfig", "Tags", "Taints", "UpdateConfig", "Version"}),
    )  # fmt: skip
    cluster, _, name = group.physical_resource_id.partition("/")
    existing = _backend(place).describe_nodegroup(cluster, name)
    existing.version = change.properties.get("Version", existing.version)
    if change.changed & _REPLACES_NODES:
        eks_nodes.remove(existing)
    existing.node_repair_config = _lower(change.properties.get("NodeRepairConfig"))
    if "ScalingConfig" in change.changed:
        existing.scaling_config = _scaling(change.properties)
    existing.labels = change.properties.get("Labels", {})
    existing.taints = _taints(change.properties)
    existing.release_version = change.properties.get("ReleaseVersion", existing.release_version)
    if template := _launch_template(change.properties, place):
        existing.launch_template |= _lower(change.properties["LaunchTemplate"])
        existing.instance_types = change.properties.get("InstanceTypes") or [
            template["InstanceType"]
        ]
    eks_nodes.match(existing)
    return group


def _delete_nodegroup(group: Any, _: Properties, place: AccountRegion) -> None:
    cluster, _, name = group.physical_resource_id.partition("/")
    eks_nodes.remove(_backend(place).delete_nodegroup(cluster, name))


CONTRIBUTION = Contribution(
    create={"AWS::EKS::Cluster": _create_cluster, "AWS::EKS::Nodegroup": _create_nodegroup},
    update={"AWS::EKS::Cluster": _update_cluster, "AWS::EKS::Nodegroup": _update_nodegroup},
    replaced_by={"AWS::EKS::Nodegroup": frozenset({"Subnets"})},
    delete={"AWS::EKS::Cluster": _delete_cluster, "AWS::EKS::Nodegroup": _delete_nodegroup},
)
