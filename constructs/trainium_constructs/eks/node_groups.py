"""The two node groups: Trainium nodes, and a few ordinary ones for the add-ons."""

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
from trainium_constructs.eks.node_setup import user_data
from trainium_constructs.launch_template import (
    ROOT_DEVICE,
    EfaLaunchTemplate,
    Reservation,
    tag_specifications,
)
from trainium_constructs.nag import acknowledge_managed_policy
from trainium_constructs.network import EfaNetwork
from trainium_constructs.shell import allow_sessions

SYSTEM_LABEL = {"trainium/nodes": "system"}
# Of a node itself. Its pods have roles of their own, the network plug-in too.
_NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
# The add-ons' images, and the training image, which serves TensorBoard.
_SYSTEM_VOLUME_GIB = 100


def _node_role(scope: Construct, *, shell: bool) -> iam.Role:
    role = iam.Role(
        scope,
        "NodeRole",
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[
            iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in _NODE_POLICIES
        ],
    )
    for name in _NODE_POLICIES:
        acknowledge_managed_policy(
            role, name, "AWS keeps this policy in step with what the kubelet needs"
        )
    if shell:
        allow_sessions(role)
    return role


class TrainiumNodeGroup(Construct):
    """Nodes of one type, in one zone and close to each other, for whole-node pods."""

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
        shell: bool = False,
        instance_tags: Mapping[str, str] | None = None,
    ) -> None:
        """Create the group.

        Args:
            scope: Parent of the group.
            construct_id: Id of the group.
            cluster: Where the nodes belong.
            instance_type: Type of every node.
            network: Subnet of the nodes, and the group that EFA needs.
            layout: Kind of the secondary interfaces.
            host_image_version: Pinned release of the EKS-optimised Neuron image.
            root_volume_gib: Size of the encrypted root volume, which holds the images.
            nodes: Nodes at first; the number is changed without a deployment.
            max_nodes: Most nodes there can be.
            reservation: Capacity to use. Default: on demand.
            shell: Let hosts accept sessions of AWS Systems Manager.
            instance_tags: Tags of the instances, which a managed node group does not tag itself.
        """
        super().__init__(scope, construct_id)
        # Reserved capacity already has its place, which another group would contradict.
        group = (
            None
            if reservation
            else ec2.PlacementGroup(
                self, "PlacementGroup", strategy=ec2.PlacementGroupStrategy.CLUSTER
            )
        )
        template = EfaLaunchTemplate(
            self,
            "Node",
            instance_type=instance_type,
            layout=layout,
            # A template that names groups takes the cluster's away from the nodes, which then
            # reach neither the API nor each other's pods (EKS User Guide, launch templates).
            security_groups=[cluster.cluster.cluster_security_group, network.security_group],
            user_data=user_data(),
            root_volume_gib=root_volume_gib,
            reservation=reservation,
            # The L2 refuses Trainium types beside the Neuron image (aws-cdk, managed-nodegroup.ts)
            # and installs a Neuron plug-in of 2021 where it sees one.
            names_type=True,
            placement_group_name=group.placement_group_name if group else None,
            instance_tags=instance_tags,
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
            min_size=0,
            desired_size=nodes,
            max_size=max_nodes,
            node_role=_node_role(self, shell=shell),
            taints=[eks.TaintSpec(key=TAINT, value="present", effect=eks.TaintEffect.NO_SCHEDULE)],
            labels={"trainium/nodes": "trainium"},
        )
        self.nodes.node.add_dependency(*cluster.before_nodes)


class SystemNodeGroup(Construct):
    """On-demand nodes for DNS, Volcano, storage controllers and TensorBoard."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: TrainingCluster,
        instance_types: Sequence[str],
        subnet: ec2.ISubnet,
        host_image_version: str,
        shell: bool = False,
        instance_tags: Mapping[str, str] | None = None,
    ) -> None:
        """Create the group.

        Args:
            scope: Parent of the group.
            construct_id: Id of the group.
            cluster: Where the nodes belong.
            instance_types: Types to choose from, x86-64.
            subnet: Private, with a way to the internet.
            host_image_version: Pinned release of the EKS-optimised image.
            shell: Let hosts accept sessions of AWS Systems Manager.
            instance_tags: Tags of the instances.
        """
        super().__init__(scope, construct_id)
        template = _system_template(self, instance_tags)
        self.nodes = eks.Nodegroup(
            self,
            "Group",
            cluster=cluster.cluster,
            subnets=ec2.SubnetSelection(subnets=[subnet]),
            instance_types=[ec2.InstanceType(name) for name in instance_types],
            launch_template_spec=eks.LaunchTemplateSpec(
                id=template.ref, version=template.attr_latest_version_number
            ),
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_STANDARD,
            release_version=host_image_version,
            min_size=SYSTEM_NODES,
            desired_size=SYSTEM_NODES,
            # One more while an update replaces them.
            max_size=SYSTEM_NODES + 1,
            node_role=_node_role(self, shell=shell),
            labels=SYSTEM_LABEL,
        )
        self.nodes.node.add_dependency(*cluster.before_nodes)


def _system_template(
    scope: Construct, instance_tags: Mapping[str, str] | None
) -> ec2.CfnLaunchTemplate:
    template = ec2.CfnLaunchTemplate
    return ec2.CfnLaunchTemplate(
        scope,
        "Template",
        launch_template_data=template.LaunchTemplateDataProperty(
            block_device_mappings=[
                template.BlockDeviceMappingProperty(
                    device_name=ROOT_DEVICE,
                    ebs=template.EbsProperty(
                        volume_type="gp3",
                        volume_size=_SYSTEM_VOLUME_GIB,
                        encrypted=True,
                        delete_on_termination=True,
                    ),
                )
            ],
            metadata_options=template.MetadataOptionsProperty(
                http_endpoint="enabled",
                http_tokens="required",
                # One hop further are pods, which have roles of their own.
                http_put_response_hop_limit=1,
            ),
            tag_specifications=tag_specifications(instance_tags),
        ),
    )
