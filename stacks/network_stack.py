"""The network stack: rarely changed, used by every stack with instances or a file system."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from stacks.config import AppConfig
from stacks.exports import always_export
from trainium_catalogue.contract import SSM_DEFAULT_SECURITY_GROUP, SSM_REGION, SSM_VPC
from trainium_catalogue.zones import INTERFACE_ENDPOINTS
from trainium_constructs import (
    EfaNetwork,
    EfaSecurityGroup,
    LustreAccess,
    NodeVpc,
    PublishedContract,
)


class NetworkStack(cdk.Stack):
    """The nodes' network: a new VPC, or an existing one, which is neither looked up nor changed."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: AppConfig, **kwargs: Any
    ) -> None:
        """Create or import the network that ``config`` specifies."""
        super().__init__(scope, construct_id, **kwargs)
        self._default_group_id = config.default_security_group_id
        self.network = self._import(config) if config.vpc_id else self._create(config)
        by_zone = dict(zip(self.network.zones, self.network.subnets, strict=True))
        self.lustre_subnet = by_zone[config.lustre_zone_id or self.network.zone]
        """Subnet of the file system, which does not follow the nodes to another zone."""
        always_export(
            self,
            self.network.vpc.vpc_id,
            self.network.security_group.security_group_id,
            *(subnet.subnet_id for subnet in self.network.subnets),
        )
        published = {SSM_REGION: self.region, SSM_VPC: self.network.vpc.vpc_id}
        if self._default_group_id is not None:
            published[SSM_DEFAULT_SECURITY_GROUP] = self._default_group_id
        PublishedContract(self, "Contract", deployment=config.deployment, values=published)

    def _create(self, config: AppConfig) -> EfaNetwork:
        assert config.vpc_cidr is not None
        zone = config.zone_id or config.zone_name
        assert zone is not None  # the defaults give a new VPC its zone
        nodes = NodeVpc(
            self,
            "Nodes",
            cidr=config.vpc_cidr,
            zone_ids=config.subnet_zones if config.zone_id else (),
            zone_names=config.subnet_zones if config.zone_name else (),
            nat_gateways=config.nat_gateways,
            interface_endpoints=INTERFACE_ENDPOINTS if config.interface_endpoints else (),
            log_retention_days=config.log_retention_days,
        )
        self._default_group_id = nodes.default_security_group_id
        group = EfaSecurityGroup(self, "Efa", vpc=nodes.vpc).security_group
        subnets = tuple(nodes.private.values())
        return EfaNetwork(
            vpc=nodes.vpc,
            subnet=nodes.private[zone],
            security_group=group,
            zone=zone,
            zones=tuple(nodes.private),
            subnets=subnets,
            cluster_subnets=subnets,
        )

    def _import(self, config: AppConfig) -> EfaNetwork:
        assert config.vpc_id is not None
        assert config.subnet_id is not None
        zone = config.zone_name or ""
        vpc = ec2.Vpc.from_vpc_attributes(
            self, "Vpc", vpc_id=config.vpc_id, availability_zones=[zone]
        )
        subnet = self._subnet("Subnet", config.subnet_id, zone)
        extra = {id: self._subnet(f"Subnet{id}", id) for id in config.eks_subnet_ids}
        by_id = {config.subnet_id: subnet, **extra}
        network = EfaNetwork(
            vpc=vpc,
            subnet=subnet,
            security_group=(
                ec2.SecurityGroup.from_security_group_id(
                    self, "SecurityGroup", config.security_group_id, mutable=False
                )
                if config.security_group_id
                else EfaSecurityGroup(self, "Efa", vpc=vpc).security_group
            ),
            zone=config.subnet_id,
            zones=(config.subnet_id,),
            subnets=(subnet,),
            # Sorted, so that the order does not change when nodes move to another subnet.
            cluster_subnets=tuple(by_id[id] for id in sorted(by_id)),
        )
        if config.lustre_security_group_id is not None:
            # Not in the Lustre stack, which may be deployed after the hosts.
            LustreAccess(self, "Lustre", servers=config.lustre_security_group_id, network=network)
        return network

    def _subnet(self, construct_id: str, subnet_id: str, zone: str = "") -> ec2.ISubnet:
        subnet = ec2.Subnet.from_subnet_attributes(
            self, construct_id, subnet_id=subnet_id, availability_zone=zone
        )
        # Its owner manages its routes.
        cdk.Annotations.of(subnet).acknowledge_warning("@aws-cdk/aws-ec2:noSubnetRouteTableId")
        return subnet
