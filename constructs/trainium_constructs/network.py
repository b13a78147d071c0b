"""The network of the nodes: a private subnet in each zone, and a node's two security groups.

The hosts' interfaces, including EFA, have their own group (``EfaSecurityGroup``). The tasks of
multi-node Batch jobs use the VPC's default security group, because Batch accepts no other with a
launch template that lists interfaces (see ``TrainiumComputeEnvironment``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from trainium_catalogue.zones import INTERFACE_ENDPOINTS, MAX_ZONES
from trainium_constructs.log_group import ExpiringLogGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class EfaNetwork:
    """The network of the nodes: one subnet at a time, because EFA traffic cannot leave a subnet."""

    vpc: ec2.IVpc
    subnet: ec2.ISubnet
    """Private subnet with a NAT route: instances with several network cards get no public IP."""
    security_group: ec2.ISecurityGroup
    """The group of the hosts' interfaces, whose members may reach each other."""
    zone: str
    """The zone of ``subnet``, or the id of an existing subnet."""
    zones: tuple[str, ...]
    """Possible values of ``zone``; changing it affects only the nodes."""
    subnets: tuple[ec2.ISubnet, ...]
    """A private subnet in every zone, for resources that can be in any zone."""
    cluster_subnets: tuple[ec2.ISubnet, ...] = ()
    """Subnets of the EKS control plane, which needs two zones."""

    def in_zone(self, zone: str) -> EfaNetwork:
        """Return the network for nodes in another zone of ``zones``."""
        return replace(self, zone=zone, subnet=self.subnets[self.zones.index(zone)])


def zone_placement_groups(scope: Construct, network: EfaNetwork) -> dict[str, str]:
    """Create a cluster placement group for every zone; return their names by zone.

    A group is tied to one zone while it has instances (EC2 user guide, placement groups): with a
    single group, nodes running in one zone would keep new ones from starting in another.
    """
    return {
        zone: ec2.PlacementGroup(
            scope,
            f"PlacementGroup{_construct_id(zone)}",
            strategy=ec2.PlacementGroupStrategy.CLUSTER,
        ).placement_group_name
        for zone in network.zones
    }


class NodeVpc(Construct):
    """A VPC with a private subnet for nodes in each of several zones, and one NAT gateway."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cidr: str,
        zone_ids: Sequence[str] = (),
        zone_names: Sequence[str] = (),
        nat_gateways: int = 1,
        interface_endpoints: Sequence[str] = INTERFACE_ENDPOINTS,
        log_retention_days: int = 30,
    ) -> None:
        """Create the VPC.

        Args:
            cidr: Address range; a quarter of it goes to the nodes of each zone.
            zone_ids: Ids of availability zones, which are the same in every account. The first has
                the only NAT gateway and endpoints: they are billed by the hour and carry little
                traffic, because S3 has a gateway endpoint.
            zone_names: Names of the zones, if the ids are unknown.
            nat_gateways: 0 or 1; without one, nodes reach only services with an endpoint.
            interface_endpoints: AWS services to reach without leaving the VPC, such as ``ecr.api``.
            log_retention_days: Retention of the flow logs.
        """
        super().__init__(scope, construct_id)
        if bool(zone_ids) == bool(zone_names):
            raise ValueError(
                f"specify either zone_ids or zone_names, got zone_ids={zone_ids!r} and "
                f"zone_names={zone_names!r}"
            )
        if nat_gateways not in (0, 1):
            raise ValueError(f"nat_gateways must be 0 or 1 (in the first zone), got {nat_gateways}")
        plan = plan_subnets(cidr)
        # L1: the L2 looks up all zones in a concrete environment, and cannot place subnets by
        # zone id.
        network = ec2.CfnVPC(
            self, "Vpc", cidr_block=cidr, enable_dns_hostnames=True, enable_dns_support=True
        )
        cdk.Tags.of(network).add("Name", self.node.path)
        zones = tuple(zone_ids or zone_names)
        public = ec2.PublicSubnet(
            self,
            f"Public{_construct_id(zones[0])}",
            vpc_id=network.ref,
            cidr_block=str(plan.public[0]),
            availability_zone="" if zone_ids else zones[0],
            map_public_ip_on_launch=False,
        )
        self.private = {
            zone: ec2.PrivateSubnet(
                self,
                f"Private{_construct_id(zone)}",
                vpc_id=network.ref,
                cidr_block=str(cidr_block),
                availability_zone="" if zone_ids else zone,
            )
            for zone, cidr_block in zip(zones, plan.private, strict=False)
        }
        """The nodes' subnets by zone."""
        if zone_ids:
            _place(public, zones[0])
            for zone, subnet in self.private.items():
                _place(subnet, zone)
        self._route(network, public, nat_gateways)
        self.default_security_group_id = network.attr_default_security_group
        """Group of the tasks of multi-node Batch jobs."""
        _add_default_group_rules(self, self.default_security_group_id)
        # Imported from its own L1, so that endpoints and flow logs can be L2 constructs.
        self.vpc: ec2.IVpc = ec2.Vpc.from_vpc_attributes(
            self, "Attributes", vpc_id=network.ref, vpc_cidr_block=cidr, availability_zones=[""]
        )
        self._add_endpoints(cidr, interface_endpoints)
        self._log_flows(log_retention_days)

    def _route(self, network: ec2.CfnVPC, public: ec2.PublicSubnet, nat_gateways: int) -> None:
        gateway = ec2.CfnInternetGateway(self, "InternetGateway")
        attachment = ec2.CfnVPCGatewayAttachment(
            self, "GatewayAttachment", vpc_id=network.ref, internet_gateway_id=gateway.ref
        )
        public.add_default_internet_route(gateway.ref, attachment)
        if nat_gateways:
            gateway_id = public.add_nat_gateway().ref
            for subnet in self.private.values():
                subnet.add_default_nat_route(gateway_id)

    def _add_endpoints(self, cidr: str, names: Sequence[str]) -> None:
        private = list(self.private.values())
        # Free; S3 stores image layers, caches and checkpoints.
        ec2.GatewayVpcEndpoint(
            self,
            "S3",
            vpc=self.vpc,
            service=ec2.GatewayVpcEndpointAwsService.S3,
            subnets=[ec2.SubnetSelection(subnets=private)],
        )
        if not names:
            return
        group = ec2.SecurityGroup(
            self,
            "EndpointGroup",
            vpc=self.vpc,
            description="HTTPS from the VPC to its interface endpoints",
            allow_all_outbound=False,
        )
        group.add_ingress_rule(ec2.Peer.ipv4(cidr), ec2.Port.HTTPS, "HTTPS from the VPC")
        for name in names:
            ec2.InterfaceVpcEndpoint(
                self,
                _construct_id(name),
                vpc=self.vpc,
                service=ec2.InterfaceVpcEndpointAwsService(name),
                # Private DNS resolves to it in every zone of the VPC.
                subnets=ec2.SubnetSelection(subnets=private[:1]),
                security_groups=[group],
                open=False,
                private_dns_enabled=True,
            )

    def _log_flows(self, retention_days: int) -> None:
        records = ExpiringLogGroup(self, "FlowLogs", retention_days=retention_days)
        ec2.FlowLog(
            self,
            "FlowLog",
            resource_type=ec2.FlowLogResourceType.from_vpc(self.vpc),
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(records.log_group),
        )


class EfaSecurityGroup(Construct):
    """A group whose members may exchange any traffic, over IP and EFA."""

    def __init__(self, scope: Construct, construct_id: str, *, vpc: ec2.IVpc) -> None:
        super().__init__(scope, construct_id)
        # With all outbound allowed the L2 drops the egress rule to the group itself as redundant
        # (aws-cdk #38558). It is not: EFA is not IP, so 0.0.0.0/0 does not cover it (AWS Batch
        # User Guide, EFA: all traffic to and from the security group itself).
        group = ec2.SecurityGroup(
            self,
            "Group",
            vpc=vpc,
            description="Trainium nodes: everything among themselves, HTTPS out",
            allow_all_outbound=False,
        )
        group.add_ingress_rule(group, ec2.Port.all_traffic(), "everything from the cluster")
        group.add_egress_rule(group, ec2.Port.all_traffic(), "everything to the cluster, EFA too")
        # Images, packages and AWS APIs. DNS and time come from link-local addresses, which
        # security groups do not filter.
        group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.HTTPS, "HTTPS")
        self.security_group: ec2.ISecurityGroup = group


def _add_default_group_rules(scope: Construct, group_id: str) -> None:
    """Add the tasks' rules to a new VPC's default security group.

    They allow traffic among tasks, and outbound HTTPS.

    EC2 creates the group with rules that allow all inbound traffic from itself and all outbound
    traffic (docs.aws.amazon.com/vpc/latest/userguide/default-security-group.html).

    * Inbound: a duplicate fails with InvalidPermission.Duplicate, which CloudFormation does not
      tolerate (github.com/aws-cloudformation/cloudformation-coverage-roadmap/issues/612).
      So the rule covers only TCP: a rendezvous uses TCP, and EFA uses the hosts' interfaces.
    * Outbound: any explicit rule removes EC2's allow-all rule, in whatever order rules are made
      (github.com/aws/aws-cdk/issues/987, 14657). So the rules cover everything that tasks send:
      with or without EC2's rule, tasks reach each other, the endpoints and S3.
    """
    ec2.CfnSecurityGroupIngress(
        scope,
        "TasksIn",
        group_id=group_id,
        source_security_group_id=group_id,
        ip_protocol="tcp",
        from_port=0,
        to_port=65535,
        description="tasks of multi-node jobs among themselves",
    )
    ec2.CfnSecurityGroupEgress(
        scope,
        "TasksOut",
        group_id=group_id,
        destination_security_group_id=group_id,
        ip_protocol="-1",
        description="tasks of multi-node jobs among themselves",
    )
    ec2.CfnSecurityGroupEgress(
        scope,
        "TasksHttps",
        group_id=group_id,
        cidr_ip="0.0.0.0/0",
        ip_protocol="tcp",
        from_port=443,
        to_port=443,
        description="HTTPS: AWS APIs, S3, the endpoints",
    )


def _place(subnet: ec2.Subnet, zone_id: str) -> None:
    """Place ``subnet`` in the zone with this id; the L2 accepts only names."""
    resource = subnet.node.default_child
    assert isinstance(resource, ec2.CfnSubnet)
    resource.availability_zone = None
    resource.availability_zone_id = zone_id


def _construct_id(name: str) -> str:
    return "".join(part.capitalize() for part in name.replace("-", ".").split("."))


# AWS reserves the first four addresses and the last one of every subnet (VPC User Guide).
RESERVED_ADDRESSES = 5
_SMALLEST_PREFIX = 28
# A quarter of a VPC of this size has room for a public subnet in each zone.
SMALLEST_VPC_PREFIX = 24
QUARTER_BITS = 2
_LARGEST_VPC_PREFIX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetPlan:
    """The subnets of a new VPC."""

    private: tuple[IPv4Network, ...]
    """Subnets for nodes and interface endpoints: a quarter of the range for each zone, so that
    nodes that fit in one zone fit in any."""
    public: tuple[IPv4Network, ...]
    """Public subnets, a /28 of the last quarter for each zone: the first is for the NAT gateway."""

    @property
    def private_addresses(self) -> int:
        """Number of addresses for nodes and endpoints in each zone."""
        return usable_addresses(self.private[0])


def usable_addresses(subnet: IPv4Network) -> int:
    """Count the addresses in a subnet, excluding those that AWS reserves."""
    return max(0, subnet.num_addresses - RESERVED_ADDRESSES)


def plan_subnets(vpc_cidr: str) -> SubnetPlan:
    """Divide ``vpc_cidr``; raise ``ValueError`` if it is invalid, too large or too small."""
    vpc = IPv4Network(vpc_cidr)
    if not _LARGEST_VPC_PREFIX <= vpc.prefixlen <= SMALLEST_VPC_PREFIX:
        raise ValueError(
            f"vpc_cidr {vpc_cidr} has a /{vpc.prefixlen} prefix; for subnets in {MAX_ZONES} zones, "
            f"use /{_LARGEST_VPC_PREFIX} to /{SMALLEST_VPC_PREFIX}"
        )
    *private, rest = vpc.subnets(prefixlen_diff=QUARTER_BITS)
    smallest = rest.subnets(new_prefix=_SMALLEST_PREFIX)
    return SubnetPlan(
        private=tuple(private), public=tuple(next(smallest) for _ in range(MAX_ZONES))
    )
