"""FSx for Lustre: a fast, shared file system linked to the datasets in the bucket."""

from __future__ import annotations

from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from constructs import Construct

from trainium_catalogue.contract import DATASETS_PREFIX
from trainium_constructs.network import EfaNetwork

PORTS = ((988, 988), (1018, 1023))
"""TCP ports between clients and servers and among servers (FSx for Lustre User Guide, limiting
access with VPC security groups)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LustreMount:
    """The names that a host needs to mount a file system."""

    file_system_id: str
    dns_name: str
    mount_name: str


class LustreFileSystem(Construct):
    """A persistent file system in one zone, deleted with its stack."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        network: EfaNetwork,
        subnet: ec2.ISubnet,
        adds_node_rules: bool,
        capacity_gib: int,
        mbps_per_tib: int,
        bucket_name: str,
    ) -> None:
        """Create the file system and link it to the bucket.

        Args:
            network: The VPC, and the nodes' security group.
            subnet: Subnet of the file system; changing it replaces the file system.
            adds_node_rules: Add rules for Lustre to the nodes' security group. False for an
                existing group, which is left unchanged and must already allow Lustre's ports.
            capacity_gib: 1200, 2400, or more in steps of 2400.
            mbps_per_tib: Throughput: 125, 250, 500 or 1000 MB/s per TiB.
            bucket_name: Bucket whose datasets appear in the file system.
        """
        super().__init__(scope, construct_id)
        group = ec2.SecurityGroup(
            self,
            "Group",
            vpc=network.vpc,
            description="FSx for Lustre: its clients and itself",
            allow_all_outbound=False,
        )
        servers, nodes = group.security_group_id, network.security_group.security_group_id
        rules = [
            *_open(self, "Servers", group=servers, peer=servers),
            *_open(self, "ServersClients", group=servers, peer=nodes),
            *(_open(self, "ClientsServers", group=nodes, peer=servers) if adds_node_rules else ()),
        ]
        # L1: the L2 adds rules of its own to the security group.
        self.file_system = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="LUSTRE",
            file_system_type_version="2.15",
            storage_capacity=capacity_gib,
            storage_type="SSD",
            subnet_ids=[subnet.subnet_id],
            security_group_ids=[group.security_group_id],
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type="PERSISTENT_2",
                per_unit_storage_throughput=mbps_per_tib,
                data_compression_type="LZ4",
                # Everything worth keeping is in the bucket.
                automatic_backup_retention_days=0,
            ),
        )
        self.file_system.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        # At creation, FSx refuses a file system whose groups do not allow Lustre's ports (FSx for
        # Lustre User Guide, troubleshooting: file system creation fails).
        self.file_system.node.add_dependency(*rules)
        cdk.Tags.of(self.file_system).add("Name", self.node.path)
        properties = fsx.CfnDataRepositoryAssociation
        association = fsx.CfnDataRepositoryAssociation(
            self,
            "Datasets",
            file_system_id=self.file_system.ref,
            file_system_path=f"/{DATASETS_PREFIX.rstrip('/')}",
            data_repository_path=f"s3://{bucket_name}/{DATASETS_PREFIX}",
            batch_import_meta_data_on_create=True,
            # Import only: deleting a file on a node must not delete it from the bucket.
            s3=properties.S3Property(
                auto_import_policy=properties.AutoImportPolicyProperty(
                    events=["NEW", "CHANGED", "DELETED"]
                ),
            ),
        )
        association.apply_removal_policy(cdk.RemovalPolicy.DESTROY)

    @property
    def mount(self) -> LustreMount:
        """The names that hosts need to mount this file system."""
        return LustreMount(
            file_system_id=self.file_system.ref,
            dns_name=self.file_system.attr_dns_name,
            mount_name=self.file_system.attr_lustre_mount_name,
        )


class LustreAccess(Construct):
    """Security group rules that let new nodes mount an existing file system."""

    def __init__(
        self, scope: Construct, construct_id: str, *, servers: str, network: EfaNetwork
    ) -> None:
        """Open Lustre's ports between the nodes' security group and an existing one.

        Args:
            servers: Id of the file system's security group. It already allows its own members,
                which FSx requires, and EC2 refuses duplicate rules. It gets no egress rule, because
                the first one that CloudFormation adds can remove EC2's allow-all rule
                (github.com/aws/aws-cdk/issues/15297).
            network: Network whose security group for nodes this app manages.
        """
        super().__init__(scope, construct_id)
        nodes = network.security_group.security_group_id
        _open(self, "ServersClients", group=servers, peer=nodes, out=False)
        _open(self, "ClientsServers", group=nodes, peer=servers)


def _open(
    scope: Construct, name: str, *, group: str, peer: str, out: bool = True
) -> list[cdk.CfnResource]:
    """Open Lustre's ports in ``group`` for traffic from ``peer`` and, with ``out``, to it.

    The rules are separate resources: inline rules would make the network stack depend on this one,
    which already depends on it.
    """
    rules: list[cdk.CfnResource] = []
    for low, high in PORTS:
        rules.append(
            ec2.CfnSecurityGroupIngress(
                scope,
                f"{name}In{low}",
                group_id=group,
                source_security_group_id=peer,
                ip_protocol="tcp",
                from_port=low,
                to_port=high,
                description="Lustre",
            )
        )
        if out:
            rules.append(
                ec2.CfnSecurityGroupEgress(
                    scope,
                    f"{name}Out{low}",
                    group_id=group,
                    destination_security_group_id=peer,
                    ip_protocol="tcp",
                    from_port=low,
                    to_port=high,
                    description="Lustre",
                )
            )
    return rules
