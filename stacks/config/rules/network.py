"""Rules about the network: keys that belong together, routes, and addresses for the nodes."""

from __future__ import annotations

from ipaddress import IPv4Network

from stacks.config import addresses
from stacks.config.refusal import PREFIX, Refusals
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import EfaLayout
from trainium_catalogue.wording import counted, either

# Ranges that a VPC accepts but that do not work: loopback, multicast and other special ranges,
# and Docker's default bridge on every host (ECS developer guide, container networking).
_UNUSABLE_RANGES = {
    "0.0.0.0/8": "which identifies the host's own network (RFC 1122)",
    "127.0.0.0/8": "the range of loopback addresses",
    "169.254.0.0/16": "the range of link-local addresses, which AWS services use",
    "172.17.0.0/16": "the range of Docker's bridge on every host",
    "224.0.0.0/3": "the range of multicast and reserved addresses",
}


def refusals(config: ConfigValues) -> Refusals:
    """Yield a refusal for each of these rules that the configuration breaks."""
    parts = ("vpc_id", "subnet_id", "subnet_cidr")
    present = [part for part in parts if getattr(config, part) is not None]
    if len(present) not in (0, len(parts)):
        missing = " and ".join(f"{PREFIX}{part}" for part in parts if part not in present)
        given = " and ".join(f"{PREFIX}{part}" for part in present)
        yield (
            present[0],
            f"describes an existing network, for which {missing} must be set too",
            f"add {missing}, or omit {given} to create a new VPC",
        )
    if config.vpc_cidr is not None:
        network = IPv4Network(config.vpc_cidr)
        for text, why in _UNUSABLE_RANGES.items():
            if network.overlaps(IPv4Network(text)):
                yield (
                    "vpc_cidr",
                    f"overlaps {text}, {why}",
                    "use a private range such as 10.0.0.0/16",
                )
    yield from _existing_vpc(config) if config.vpc_id is not None else _new_vpc(config)
    yield from _room(config)


def _existing_vpc(config: ConfigValues) -> Refusals:
    for name in ("vpc_cidr", "nat_gateways", "interface_endpoints"):
        if getattr(config, name):
            yield (
                name,
                f"is for a new VPC, but {PREFIX}vpc_id={config.vpc_id} is an existing one, which "
                "is never changed",
                f"omit {PREFIX}{name}, or omit vpc_id, subnet_id and subnet_cidr to create a new "
                "VPC",
            )


def _new_vpc(config: ConfigValues) -> Refusals:
    for name, otherwise in (
        ("security_group_id", "one is created with the VPC"),
        ("default_security_group_id", "a new VPC has its own"),
    ):
        if getattr(config, name) is not None:
            yield (
                name,
                "belongs to an existing VPC, but a new VPC would be created",
                f"add {PREFIX}vpc_id, or omit the group: {otherwise}",
            )
    if config.nat_gateways:
        return
    if not config.interface_endpoints:
        yield (
            "nat_gateways",
            f"and {PREFIX}interface_endpoints=false leave the nodes without a route to ECR, ECS "
            "and CloudWatch",
            f"use {PREFIX}nat_gateways=1 or {PREFIX}interface_endpoints=true",
        )
    needs_efa = config.runs_on_batch and config.instance.supports_multi_node
    if needs_efa and config.ami_id is None:
        yield (
            "nat_gateways",
            "leaves the nodes without a route to the internet, from which nodes with the default "
            "AMI must install the EFA software",
            f"use {PREFIX}nat_gateways=1, or set {PREFIX}ami_id=<an AMI that contains it> "
            "(docs/operating.md lists the requirements)",
        )
    own_registry = f".dkr.ecr.{config.region}.amazonaws.com"
    if config.image_uri is not None and own_registry not in config.image_uri:
        yield (
            "nat_gateways",
            f"leaves the nodes without a route to {PREFIX}image_uri={config.image_uri}, which is "
            f"not in ECR in {config.region}",
            f"use {PREFIX}nat_gateways=1, or an image in this region's ECR",
        )


def _room(config: ConfigValues) -> Refusals:
    """Check that the nodes' subnet has enough addresses."""
    needed = config.addresses_needed(config.efa_layout)
    if needed <= config.usable_addresses:
        return
    per_node = config.addresses_per_node(config.efa_layout)
    nodes = counted(config.max_concurrent_nodes, "node")
    others = f" + {counted(config.num_cpu_instances, 'CPU instance')}"
    others += f" + {counted(config.num_endpoints, 'endpoint')}" if config.num_endpoints else ""
    others += (
        f" + {addresses.NUM_CLUSTER_ADDRESSES} for the EKS cluster" if config.runs_on_eks else ""
    )
    yield (
        "vpc_cidr" if config.subnet_cidr is None else "subnet_cidr",
        f"gives the nodes' subnet {config.usable_addresses:,} usable addresses, but {needed:,} are "
        f"needed ({nodes} x {per_node}{others})",
        f"use {either(_ways_to_fit(config, needed=needed, per_node=per_node))}",
    )


def _ways_to_fit(config: ConfigValues, *, needed: int, per_node: int) -> list[str]:
    """List the changes that would make the nodes fit, smallest first."""
    ways = []
    efa_only = config.addresses_needed(EfaLayout.EFA_ONLY)
    if efa_only <= config.usable_addresses:
        ways.append(f"{PREFIX}efa_layout=efa-only ({counted(efa_only, 'address')})")
    prefix = addresses.narrowest_prefix_for(needed, new_vpc=config.subnet_cidr is None)
    if prefix is not None:
        ways.append(f"a larger range (at least /{prefix})")
    num_nodes = (config.usable_addresses - config.other_addresses) // per_node
    if num_nodes >= 1:
        fewer = [f"{PREFIX}max_nodes={num_nodes}"] if num_nodes < config.max_nodes else []
        if config.max_concurrent_nodes > config.max_nodes:
            fewer.append(f"{PREFIX}max_vcpus={config.instance.vcpus_for(num_nodes)}")
        ways.append(" with ".join(fewer))
    return ways or ["fewer nodes and a larger range"]
