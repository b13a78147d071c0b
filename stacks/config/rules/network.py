"""Rules of the network: complete keys, ways out, and room for the nodes."""

from __future__ import annotations

from ipaddress import IPv4Network

from stacks.config import addresses
from stacks.config.refusal import PREFIX, Refusals
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import EfaLayout

# Ranges that a VPC accepts but that do not work in one: loopback, multicast and the like, and
# Docker's default bridge on every host (ECS developer guide, container networking).
_UNUSABLE_RANGES = {
    "0.0.0.0/8": "this network (RFC 1122)",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local addresses, where AWS's own services answer",
    "172.17.0.0/16": "Docker's bridge on every host",
    "224.0.0.0/3": "multicast and reserved addresses",
}


def refusals(config: ConfigValues) -> Refusals:
    """Yield what these keys cannot mean together."""
    parts = ("vpc_id", "subnet_id", "subnet_cidr")
    given = [part for part in parts if getattr(config, part) is not None]
    if len(given) not in (0, len(parts)):
        missing = " and ".join(f"{PREFIX}{part}" for part in parts if part not in given)
        yield (
            given[0],
            f"describes an existing network without {missing}",
            f"add {missing}, or leave all three out for a new VPC",
        )
    if config.vpc_cidr is not None:
        wanted = IPv4Network(config.vpc_cidr)
        for text, why in _UNUSABLE_RANGES.items():
            if wanted.overlaps(IPv4Network(text)):
                yield (
                    "vpc_cidr",
                    f"lies in {text}: {why}",
                    "use a private range such as 10.0.0.0/16",
                )
    yield from _existing_vpc(config) if config.vpc_id is not None else _new_vpc(config)
    yield from _room(config)


def _existing_vpc(config: ConfigValues) -> Refusals:
    for name in ("vpc_cidr", "nat_gateways", "interface_endpoints"):
        if getattr(config, name):
            yield (
                name,
                f"would change the existing network {PREFIX}vpc_id={config.vpc_id}, which is only "
                "used",
                f"leave {PREFIX}{name} out, or leave vpc_id out for a new VPC",
            )


def _new_vpc(config: ConfigValues) -> Refusals:
    for name, otherwise in (
        ("security_group_id", "one is created"),
        ("default_security_group_id", "a new VPC brings its own"),
    ):
        if getattr(config, name) is not None:
            yield (
                name,
                "belongs to an existing VPC, and a new one is to be made",
                f"add {PREFIX}vpc_id, or leave the group out: {otherwise}",
            )
    if config.nat_gateways:
        return
    if not config.interface_endpoints:
        yield (
            "nat_gateways",
            f"and {PREFIX}interface_endpoints=false leave the nodes no way to ECR, ECS and "
            "CloudWatch",
            f"use {PREFIX}nat_gateways=1 or {PREFIX}interface_endpoints=true",
        )
    needs_efa = config.runs_on_batch and config.instance.supports_multi_node
    if needs_efa and config.ami_id is None:
        yield (
            "nat_gateways",
            "leaves the nodes no way to the internet, and the default host image has no EFA "
            "software",
            f"use {PREFIX}nat_gateways=1, or give {PREFIX}ami_id=<an image that has it> "
            "(docs/operating.md says what it must hold)",
        )
    own_registry = f".dkr.ecr.{config.region}.amazonaws.com"
    if config.image_uri is not None and own_registry not in config.image_uri:
        yield (
            "nat_gateways",
            f"leaves the nodes no way to {PREFIX}image_uri={config.image_uri}, which is not in ECR "
            f"in {config.region}",
            f"use {PREFIX}nat_gateways=1, or an image in this region's ECR",
        )


def _room(config: ConfigValues) -> Refusals:
    """Count the addresses that the nodes' subnet must have."""
    needed = config.addresses_needed(config.efa_layout)
    if needed <= config.usable_addresses:
        return
    per_node = config.addresses_per_node(config.efa_layout)
    others = f" + {config.num_cpu_instances} CPU instances"
    others += f" + {config.num_endpoints} endpoints" if config.num_endpoints else ""
    others += (
        f" + {addresses.NUM_CLUSTER_ADDRESSES} for the EKS cluster" if config.runs_on_eks else ""
    )
    yield (
        "vpc_cidr" if config.subnet_cidr is None else "subnet_cidr",
        f"gives the nodes' subnet {config.usable_addresses} addresses, AWS's own not counted, and "
        f"{config.num_nodes_at_once} nodes x {per_node}{others} = {needed} are needed",
        "use " + ", or ".join(_ways_to_fit(config, needed=needed, per_node=per_node)),
    )


def _ways_to_fit(config: ConfigValues, *, needed: int, per_node: int) -> list[str]:
    """List the changes that would make it fit, smallest first."""
    ways = []
    lean = config.addresses_needed(EfaLayout.EFA_ONLY)
    if lean <= config.usable_addresses:
        ways.append(f"{PREFIX}efa_layout=efa-only, which needs {lean}")
    prefix = addresses.narrowest_prefix_for(needed, new_vpc=config.subnet_cidr is None)
    if prefix is not None:
        ways.append(f"a range of /{prefix} or larger")
    num_nodes = (config.usable_addresses - config.other_addresses) // per_node
    if num_nodes >= 1:
        one_job = config.num_nodes_at_once == config.max_nodes
        at_once = f"{num_nodes} node{'s' if num_nodes > 1 else ''} at once"
        ways.append(f"{PREFIX}max_nodes={num_nodes}" if one_job else at_once)
    return ways or ["fewer nodes and a larger range"]
