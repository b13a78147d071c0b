"""The node groups: Trainium nodes for jobs, and system nodes for the add-ons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from trainium_catalogue.eks import SYSTEM_NODES
from trainium_catalogue.instances import EfaLayout, InstanceType
from trainium_catalogue.kubernetes import TAINT
from trainium_constructs.eks.cluster import TrainingCluster
from trainium_constructs.host_setup import mime_message
from trainium_constructs.launch_template import (
    EfaLaunchTemplate,
    Reservation,
    root_volume,
    tag_specifications,
)
from trainium_constructs.nag import acknowledge_managed_policy
from trainium_constructs.network import EfaNetwork, zone_placement_groups
from trainium_constructs.shell import allow_sessions

SYSTEM_LABEL = {"trainium/nodes": "system"}
# For the add-ons' images and the training image, which the node scaler runs.
_SYSTEM_VOLUME_GIB = 100

# For the kubelet only: pods, including the network plugin, have their own roles.
_NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")

# A container inherits containerd's limit on locked memory. The AMI leaves it at systemd's
# 8 MiB and raises only the limit on open files (amazon-eks-ami, base-runtime-spec.json). EFA and
# the Neuron runtime lock gigabytes, and a pod cannot set its limits (kubernetes/kubernetes#3595).
_SCRIPT = """\
#!/bin/bash
set -euo pipefail
mkdir -p /etc/systemd/system/containerd.service.d
printf '[Service]\\nLimitMEMLOCK=infinity\\n' >/etc/systemd/system/containerd.service.d/memlock.conf
systemctl daemon-reload
"""


class TrainiumNodeGroup(Construct):
    """Nodes of one type, in one zone and close together, for whole-node pods."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: TrainingCluster,
        instance_type: InstanceType,
        network: EfaNetwork,
        layout: EfaLayout,
        host_image_version: str,
        root_volume_gib: int,
        nodes: int,
        max_nodes: int,
        reservation: Reservation | None = None,
        placement_group: str | None = None,
        shell: bool = False,
        instance_tags: Mapping[str, str] | None = None,
    ) -> None:
        """Create the group.

        Args:
            cluster: Cluster of the nodes.
            instance_type: Type of every node.
            network: Subnet of the nodes, and EFA's security group.
            layout: Kind of the secondary interfaces.
            host_image_version: Pinned release of the EKS-optimized Neuron AMI.
            root_volume_gib: Size of the encrypted root volume, which holds the images.
            nodes: Initial number of nodes, which the node scaler changes later.
            max_nodes: Maximum number of nodes.
            reservation: Reserved capacity to launch nodes in. Default: On-Demand Instances.
            placement_group: Existing cluster placement group to launch nodes in. Default: a new
                one, but none for reserved capacity.
            shell: Allow Session Manager sessions on the nodes.
            instance_tags: Tags of the instances, which a managed node group does not set.
        """
        super().__init__(scope, construct_id)
        # Reserved capacity already has its placement; a new group would conflict with it.
        group = placement_group
        self.placement_groups: Mapping[str, str] = {}
        """Names of new placement groups by zone, for node groups in other zones."""
        if group is None and reservation is None:
            self.placement_groups = zone_placement_groups(self, network)
            group = self.placement_groups[network.zone]
        template = EfaLaunchTemplate(
            self,
            "Node",
            instance_type=instance_type,
            layout=layout,
            # A template's groups replace the cluster's group, without which nodes would reach
            # neither the API nor each other's pods (EKS User Guide, launch templates).
            security_groups=[cluster.cluster.cluster_security_group, network.security_group],
            user_data=_user_data(),
            root_volume_gib=root_volume_gib,
            reservation=reservation,
            # The L2 refuses Trainium types with the Neuron AMI (aws-cdk, managed-nodegroup.ts)
            # and installs a Neuron plugin from 2021 for them.
            set_instance_type=True,
            placement_group_name=group,
            instance_tags=instance_tags,
            # With 2 hops, a pod could use the node's role (EKS Best Practices Guide, restrict
            # access to the instance profile). Pods that need the metadata service use the host
            # network: vpc-cni, kube-proxy, the Pod Identity agent, EFA's device plugin. Neuron's
            # plugin works without it: AWS's workshop runs its chart on Karpenter's nodes, whose
            # limit is 1 (github.com/aws-samples/eks-workshop-v2, nodepool-trn1.yaml).
            metadata_hops=1,
        )
        is_block = reservation is not None and reservation.is_block
        self.nodes = eks.Nodegroup(
            self,
            "Group",
            cluster=cluster.cluster,
            subnets=ec2.SubnetSelection(subnets=[network.subnet]),
            launch_template_spec=eks.LaunchTemplateSpec(
                id=template.launch_template_id, version=template.version
            ),
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_NEURON,
            release_version=host_image_version,
            capacity_type=eks.CapacityType.CAPACITY_BLOCK if is_block else None,
            # Losing one node stops its gang, so replacing all at once causes only one restart.
            max_unavailable_percentage=100,
            min_size=0,
            desired_size=nodes,
            max_size=max_nodes,
            enable_node_auto_repair=True,
            node_role=_node_role(self, shell=shell),
            taints=[eks.TaintSpec(key=TAINT, value="present", effect=eks.TaintEffect.NO_SCHEDULE)],
            labels={"trainium/nodes": "trainium"},
        )
        _set_kubernetes_version(self.nodes, cluster.kubernetes_version)
        # Terminate old nodes before launching new ones: reserved capacity, or a full placement
        # group, has room for only one of the two (EKS API reference, NodegroupUpdateConfig).
        _resource_of(self.nodes).add_property_override("UpdateConfig.UpdateStrategy", "MINIMAL")
        self.nodes.node.add_dependency(*cluster.before_nodes)


class SystemNodeGroup(Construct):
    """On-Demand nodes for DNS, Volcano, storage controllers and the node scaler."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: TrainingCluster,
        instance_types: Sequence[str],
        network: EfaNetwork,
        host_image_version: str,
        shell: bool = False,
        instance_tags: Mapping[str, str] | None = None,
    ) -> None:
        """Create the group.

        Args:
            cluster: Cluster of the nodes.
            instance_types: x86-64 types to choose from.
            network: Subnets with a route to the internet, and the group that may mount the file
                system, for a user's debugging pods.
            host_image_version: Pinned release of the EKS-optimized AMI.
            shell: Allow Session Manager sessions on the nodes.
            instance_tags: Tags of the instances.
        """
        super().__init__(scope, construct_id)
        groups = (cluster.cluster.cluster_security_group, network.security_group)
        template = _system_template(self, groups, instance_tags)
        self.nodes = eks.Nodegroup(
            self,
            "Group",
            cluster=cluster.cluster,
            subnets=ec2.SubnetSelection(subnets=list(network.subnets)),
            instance_types=[ec2.InstanceType(name) for name in instance_types],
            launch_template_spec=eks.LaunchTemplateSpec(
                id=template.ref, version=template.attr_latest_version_number
            ),
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_STANDARD,
            release_version=host_image_version,
            min_size=SYSTEM_NODES,
            desired_size=SYSTEM_NODES,
            # One extra during an update.
            max_size=SYSTEM_NODES + 1,
            enable_node_auto_repair=True,
            node_role=_node_role(self, shell=shell),
            labels=SYSTEM_LABEL,
        )
        _set_kubernetes_version(self.nodes, cluster.kubernetes_version)
        self.nodes.node.add_dependency(*cluster.before_nodes)


def _system_template(
    scope: Construct,
    groups: Sequence[ec2.ISecurityGroup],
    instance_tags: Mapping[str, str] | None,
) -> ec2.CfnLaunchTemplate:
    template = ec2.CfnLaunchTemplate
    return ec2.CfnLaunchTemplate(
        scope,
        "Template",
        launch_template_data=template.LaunchTemplateDataProperty(
            security_group_ids=[group.security_group_id for group in groups],
            block_device_mappings=[root_volume(_SYSTEM_VOLUME_GIB)],
            metadata_options=template.MetadataOptionsProperty(
                http_endpoint="enabled",
                http_tokens="required",
                # Unreachable from pods, which have their own roles.
                http_put_response_hop_limit=1,
            ),
            tag_specifications=tag_specifications(instance_tags),
        ),
    )


def _node_role(scope: Construct, *, shell: bool) -> iam.Role:
    """Create a node group's role; ``shell`` also allows Session Manager sessions."""
    role = iam.Role(
        scope,
        "NodeRole",
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[
            iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in _NODE_POLICIES
        ],
    )
    for name in _NODE_POLICIES:
        acknowledge_managed_policy(role, name, "AWS maintains this policy for the kubelet")
    if shell:
        allow_sessions(role)
    return role


def _user_data() -> str:
    """Build the MIME message that EKS merges with its own.

    cloud-init runs the script before nodeadm starts containerd (amazon-eks-ami,
    nodeadm-run.service).
    """
    return mime_message(_SCRIPT, filename="trainium-node.sh", boundary="==TRAINIUM-NODE==")


def _set_kubernetes_version(group: eks.Nodegroup, kubernetes_version: str) -> None:
    """Set the Kubernetes version of ``group``, such as ``1.36``, so that it changes with the AMI.

    With the AMI's release alone, CloudFormation keeps the version and refuses the release
    (eksctl-io/eksctl issue 7976).
    """
    _resource_of(group).version = kubernetes_version


def _resource_of(group: eks.Nodegroup) -> eks.CfnNodegroup:
    """Return the CloudFormation resource of ``group``."""
    resource = group.node.default_child
    assert isinstance(resource, eks.CfnNodegroup)
    return resource
