"""The launch template of the nodes: on types with EFA, one interface per network card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from trainium_catalogue.instances import EfaLayout, InstanceType

# Root device name of Amazon Linux 2023.
_ROOT_DEVICE = "/dev/xvda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Reserved EC2 capacity."""

    reservation_id: str
    is_block: bool = False
    """True for a Capacity Block: paid for upfront, ends at a fixed time."""


class EfaLaunchTemplate(Construct):
    """The launch template of a node, for any service that launches nodes."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        instance_type: InstanceType,
        layout: EfaLayout,
        security_groups: Sequence[ec2.ISecurityGroup],
        user_data: str | None = None,
        root_volume_gib: int,
        reservation: Reservation | None = None,
        set_instance_type: bool = False,
        placement_group_name: str | None = None,
        terminate_on_shutdown: bool = False,
        instance_tags: Mapping[str, str] | None = None,
        metadata_hops: int = 2,
    ) -> None:
        """Create the template.

        Args:
            instance_type: Type of the node.
            layout: Kind of the secondary interfaces.
            security_groups: Groups of all interfaces of the host; one must allow all traffic from
                and to itself.
            user_data: MIME message that the host runs at boot. Default: none.
            root_volume_gib: Size of the encrypted root volume, which holds the images.
            reservation: Capacity to use. Default: On-Demand Instances.
            set_instance_type: Set the instance type in the template. Default: set by the service.
            placement_group_name: Placement group to launch in. Default: set by the service.
            terminate_on_shutdown: Terminate a node that powers itself off. Default: the service
                decides, as EKS requires (EKS User Guide, launch templates).
            instance_tags: Tags of instances and volumes, if the service does not set them.
            metadata_hops: Hop limit of the metadata service: 1 reaches only the host, 2 also
                containers with their own network. Default: 2, as in the optimized AMIs.
        """
        super().__init__(scope, construct_id)
        is_block = reservation is not None and reservation.is_block
        groups = [group.security_group_id for group in security_groups]
        self.lists_interfaces = instance_type.supports_multi_node
        """True if the interfaces list the groups; Batch then accepts no other groups."""
        # L1: the L2 does not support network interfaces.
        self.template = ec2.CfnLaunchTemplate(
            self,
            "Template",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                # No subnet: the service that launches the node sets it.
                network_interfaces=(
                    [
                        ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
                            network_card_index=nic.card_index,
                            device_index=nic.device_index,
                            interface_type=nic.interface_type,
                            groups=groups,
                            delete_on_termination=True,
                        )
                        for nic in instance_type.network_interfaces(layout)
                    ]
                    if self.lists_interfaces
                    else None
                ),
                # EC2 refuses template-wide groups in addition to the interfaces' groups.
                security_group_ids=None if self.lists_interfaces else groups,
                # The image is over 10 GB, and all nodes wait for the slowest.
                block_device_mappings=[root_volume(root_volume_gib, throughput=500)],
                metadata_options=ec2.CfnLaunchTemplate.MetadataOptionsProperty(
                    http_endpoint="enabled",
                    http_tokens="required",
                    # On ECS, the agent blocks the service for tasks of multi-node jobs (awsvpc;
                    # ECS_AWSVPC_BLOCK_IMDS, host_setup.sh): they get their role from ECS.
                    http_put_response_hop_limit=metadata_hops,
                ),
                # With EC2's default, stop, the volume is billed until a health check fails.
                instance_initiated_shutdown_behavior="terminate" if terminate_on_shutdown else None,
                user_data=cdk.Fn.base64(user_data) if user_data else None,
                capacity_reservation_specification=_target(reservation),
                # A block needs its id and the market type, on Batch too, as AWS shows ("How
                # to use Capacity Blocks for ML with AWS Batch", aws.amazon.com/blogs/hpc, and
                # github.com/aws-samples/sample-aws-batch-capacity-block-reservations). The
                # Batch User Guide's remark that market options are ignored is about Spot.
                instance_market_options=(
                    ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty(
                        market_type="capacity-block"
                    )
                    if is_block
                    else None
                ),
                instance_type=instance_type.name if is_block or set_instance_type else None,
                placement=(
                    ec2.CfnLaunchTemplate.PlacementProperty(group_name=placement_group_name)
                    if placement_group_name
                    else None
                ),
                tag_specifications=tag_specifications(instance_tags),
            ),
        )

    @property
    def launch_template_id(self) -> str:
        """Id of the template."""
        return self.template.ref

    @property
    def version(self) -> str:
        """The latest version, as a number, so that a change updates the resources that use it."""
        return self.template.attr_latest_version_number


def root_volume(
    size_gib: int, *, throughput: int | None = None
) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """Build an encrypted root volume, deleted with its host."""
    return ec2.CfnLaunchTemplate.BlockDeviceMappingProperty(
        device_name=_ROOT_DEVICE,
        ebs=ec2.CfnLaunchTemplate.EbsProperty(
            volume_type="gp3",
            volume_size=size_gib,
            throughput=throughput,
            encrypted=True,
            delete_on_termination=True,
        ),
    )


def tag_specifications(
    tags: Mapping[str, str] | None,
) -> list[ec2.CfnLaunchTemplate.TagSpecificationProperty] | None:
    """Build specifications that tag instances and their volumes alike; None without tags."""
    if not tags:
        return None
    return [
        ec2.CfnLaunchTemplate.TagSpecificationProperty(
            resource_type=kind,
            tags=[cdk.CfnTag(key=key, value=value) for key, value in tags.items()],
        )
        for kind in ("instance", "volume")
    ]


def _target(
    reservation: Reservation | None,
) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty | None:
    if reservation is None:
        return None
    return ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty(
        capacity_reservation_target=ec2.CfnLaunchTemplate.CapacityReservationTargetProperty(
            capacity_reservation_id=reservation.reservation_id
        )
    )
