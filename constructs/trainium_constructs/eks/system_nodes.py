"""The node group of the add-ons: a few ordinary nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from trainium_catalogue.eks import SYSTEM_NODES
from trainium_constructs.eks.cluster import TrainingCluster
from trainium_constructs.eks.node_role import node_role
from trainium_constructs.eks.node_version import follow_cluster
from trainium_constructs.launch_template import ROOT_DEVICE, tag_specifications
from trainium_constructs.network import EfaNetwork

SYSTEM_LABEL = {"trainium/nodes": "system"}
# The add-ons' images, and the training image, which serves TensorBoard.
_SYSTEM_VOLUME_GIB = 100


class SystemNodeGroup(Construct):
    """On-demand nodes for DNS, Volcano, storage controllers and TensorBoard."""

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
            scope: Parent of the group.
            construct_id: Id of the group.
            cluster: Where the nodes belong.
            instance_types: Types to choose from, x86-64.
            network: Subnets with a way to the internet, and the group that the file system admits:
                TensorBoard reads from it.
            host_image_version: Pinned release of the EKS-optimised image.
            shell: Let hosts accept sessions of AWS Systems Manager.
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
            # One more while an update replaces them.
            max_size=SYSTEM_NODES + 1,
            node_role=node_role(self, shell=shell),
            labels=SYSTEM_LABEL,
        )
        follow_cluster(self.nodes, cluster.kubernetes_version)
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
