"""The node group of Trainium nodes."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from trainium_catalogue.instances import EfaLayout, InstanceType
from trainium_catalogue.kubernetes import TAINT
from trainium_constructs.eks.cluster import TrainingCluster
from trainium_constructs.eks.node_role import node_role
from trainium_constructs.eks.node_setup import user_data
from trainium_constructs.eks.node_version import follow_cluster, resource_of
from trainium_constructs.launch_template import EfaLaunchTemplate, Reservation
from trainium_constructs.network import EfaNetwork, zone_placement_group


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
        placement_group: str | None = None,
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
            placement_group: Existing cluster placement group to start nodes in. Default: a new one,
                and none for reserved capacity.
            shell: Let hosts accept sessions of AWS Systems Manager.
            instance_tags: Tags of the instances, which a managed node group does not tag itself.
        """
        super().__init__(scope, construct_id)
        # Reserved capacity already has its place, which a new group would contradict.
        group = placement_group
        if group is None and reservation is None:
            group = zone_placement_group(self, network)
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
            placement_group_name=group,
            instance_tags=instance_tags,
            # A pod one hop further could take the node's role (EKS Best Practices Guide, restrict
            # access to the instance profile). What runs on a node and asks the metadata service has
            # the host's network: vpc-cni, kube-proxy, the agent of Pod Identity, EFA's plugin.
            # Neuron's plugin works without: AWS's workshop runs its chart on Karpenter's nodes,
            # whose limit is 1 (github.com/aws-samples/eks-workshop-v2, nodepool-trn1.yaml).
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
            # A gang ends with the first node that goes: all at once is one restart and not many.
            max_unavailable_percentage=100,
            min_size=0,
            desired_size=nodes,
            max_size=max_nodes,
            node_role=node_role(self, shell=shell),
            taints=[eks.TaintSpec(key=TAINT, value="present", effect=eks.TaintEffect.NO_SCHEDULE)],
            labels={"trainium/nodes": "trainium"},
        )
        follow_cluster(self.nodes, cluster.kubernetes_version)
        # Old nodes go before new ones come: reserved capacity has room for one of the two, and a
        # full placement group too (EKS API reference, NodegroupUpdateConfig).
        resource_of(self.nodes).add_property_override("UpdateConfig.UpdateStrategy", "MINIMAL")
        self.nodes.node.add_dependency(*cluster.before_nodes)
