"""Checks of the network: complete keys, ways out, and room for the nodes."""

from __future__ import annotations

from ipaddress import IPv4Network

from stacks.config import addresses
from stacks.config.refusal import PREFIX, ConfigError, refuse
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import EfaLayout


def _existing_network_is_whole(config: ConfigValues) -> ConfigError | None:
    parts = ("vpc_id", "subnet_id", "subnet_cidr")
    given = [part for part in parts if getattr(config, part) is not None]
    if len(given) in (0, len(parts)):
        return None
    missing = [f"{PREFIX}{part}" for part in parts if part not in given]
    return refuse(
        config,
        given[0],
        f"describes an existing network without {' and '.join(missing)}",
        f"add {' and '.join(missing)}, or leave all three out for a new VPC",
    )


def _security_groups_have_vpc(config: ConfigValues) -> ConfigError | None:
    if config.vpc_id is not None:
        return None
    for name, otherwise in (
        ("security_group_id", "one is created"),
        ("default_security_group_id", "a new VPC brings its own"),
    ):
        if getattr(config, name) is not None:
            return refuse(
                config,
                name,
                "belongs to an existing VPC, and a new one is to be made",
                f"add {PREFIX}vpc_id, or leave the group out: {otherwise}",
            )
    return None


# Ranges that a VPC accepts but that do not work in one: loopback, multicast and the like, and
# Docker's default bridge on every host (ECS developer guide, container networking).
_UNUSABLE_RANGES = {
    "0.0.0.0/8": "this network (RFC 1122)",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local addresses, where AWS's own services answer",
    "172.17.0.0/16": "Docker's bridge on every host",
    "224.0.0.0/3": "multicast and reserved addresses",
}


def _vpc_range_is_usable(config: ConfigValues) -> ConfigError | None:
    if config.vpc_cidr is None:
        return None
    wanted = IPv4Network(config.vpc_cidr)
    taken = [(text, why) for text, why in _UNUSABLE_RANGES.items()
             if wanted.overlaps(IPv4Network(text))]  # fmt: skip
    if not taken:
        return None
    text, why = taken[0]
    return refuse(
        config, "vpc_cidr", f"lies in {text}: {why}", "use a private range such as 10.0.0.0/16"
    )


def _existing_network_stays(config: ConfigValues) -> ConfigError | None:
    if config.vpc_id is None:
        return None
    made = ("vpc_cidr", "nat_gateways", "interface_endpoints")
    wanted = next((name for name in made if getattr(config, name)), None)
    if wanted is None:
        return None
    return refuse(
        config,
        wanted,
        f"would change the existing network {PREFIX}vpc_id={config.vpc_id}, which is only used",
        f"leave {PREFIX}{wanted} out, or leave vpc_id out for a new VPC",
    )


def _nodes_reach_services(config: ConfigValues) -> ConfigError | None:
    if config.vpc_id is not None or config.nat_gateways or config.interface_endpoints:
        return None
    return refuse(
        config,
        "nat_gateways",
        f"and {PREFIX}interface_endpoints=false leave the nodes no way to ECR, ECS and CloudWatch",
        f"use {PREFIX}nat_gateways=1 or {PREFIX}interface_endpoints=true",
    )


def _nodes_get_efa_software(config: ConfigValues) -> ConfigError | None:
    if config.vpc_id is not None or config.nat_gateways or config.ami_id is not None:
        return None
    if not (config.runs_on_batch and config.instance.supports_multi_node):
        return None
    return refuse(
        config,
        "nat_gateways",
        "leaves the nodes no way to the internet, and the default host image has no EFA software",
        f"use {PREFIX}nat_gateways=1, or give {PREFIX}ami_id=<an image that has it> "
        "(docs/operating.md says what it must hold)",
    )


def _nodes_reach_the_image(config: ConfigValues) -> ConfigError | None:
    if config.image_uri is None or config.vpc_id is not None or config.nat_gateways:
        return None
    if f".dkr.ecr.{config.region}.amazonaws.com" in config.image_uri:
        return None
    return refuse(
        config,
        "nat_gateways",
        f"leaves the nodes no way to {PREFIX}image_uri={config.image_uri}, which is not in ECR in "
        f"{config.region}",
        f"use {PREFIX}nat_gateways=1, or an image in this region's ECR",
    )


def _subnet_holds_nodes(config: ConfigValues) -> ConfigError | None:
    needed = config.addresses_needed(config.efa_layout)
    if needed <= config.usable_addresses:
        return None
    per_node = config.addresses_per_node(config.efa_layout)
    others = f" + {config.num_cpu_instances} CPU instances"
    others += f" + {config.num_endpoints} endpoints" if config.num_endpoints else ""
    others += (
        f" + {addresses.NUM_CLUSTER_ADDRESSES} for the EKS cluster" if config.runs_on_eks else ""
    )
    return refuse(
        config,
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


CHECKS = (
    _existing_network_is_whole,
    _vpc_range_is_usable,
    _security_groups_have_vpc,
    _existing_network_stays,
    _nodes_reach_services,
    _nodes_get_efa_software,
    _nodes_reach_the_image,
    _subnet_holds_nodes,
)
