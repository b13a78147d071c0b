"""What two or more keys say together: a table of checks, each refusing one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stacks.config import addresses
from stacks.config.refusal import PREFIX, ConfigError
from trainium_catalogue.instances import INSTANCE_TYPES, EfaLayout
from trainium_catalogue.releases import NEURON_RELEASES

if TYPE_CHECKING:
    from stacks.config.app_config import AppConfig


def check(config: AppConfig) -> None:
    """Raise the first refusal of the table."""
    for each in CHECKS:
        if refusal := each(config):
            raise refusal


def _refuse(config: AppConfig, key: str, reason: str, remedy: str) -> ConfigError:
    return ConfigError(PREFIX + key, getattr(config, key), reason, remedy)


def _region_offers_type(config: AppConfig) -> ConfigError | None:
    if config.region in config.instance.zone_ids:
        return None
    return _refuse(
        config,
        "region",
        f"does not offer {config.instance_type}",
        f"offered in {config.instance.offers()}",
    )


def _zone_offers_type(config: AppConfig) -> ConfigError | None:
    offered = config.instance.zone_ids[config.region]
    if config.zone_id is None or config.zone_id in offered:
        return None
    elsewhere = [
        region for region, ids in config.instance.zone_ids.items() if config.zone_id in ids
    ]
    if elsewhere:
        return _refuse(
            config,
            "availability_zone_id",
            f"is not in {config.region}",
            f"set {PREFIX}region={elsewhere[0]} too, or use {' or '.join(offered)}",
        )
    return _refuse(
        config,
        "availability_zone_id",
        f"does not offer {config.instance_type}",
        f"use {' or '.join(offered)}; other regions are {config.instance.offers()}",
    )


def _zone_name_is_in_region(config: AppConfig) -> ConfigError | None:
    if config.zone_name is None or config.zone_name[:-1] == config.region:
        return None
    return _refuse(
        config,
        "availability_zone_id",
        f"is not in {config.region}",
        f"use {' or '.join(config.instance.zone_ids[config.region])}, or set {PREFIX}region too",
    )


def _nodes_can_talk(config: AppConfig) -> ConfigError | None:
    if config.max_nodes == 1 or config.instance.supports_multi_node:
        return None
    able = [each.name for each in INSTANCE_TYPES.values() if each.supports_multi_node]
    return _refuse(
        config,
        "max_nodes",
        f"needs EFA between the nodes, which {config.instance_type} does not have",
        f"use {PREFIX}max_nodes=1, or one of {', '.join(able)}",
    )


def _min_within_max(config: AppConfig) -> ConfigError | None:
    if config.min_nodes <= config.max_nodes:
        return None
    return _refuse(
        config,
        "min_nodes",
        f"is more than {PREFIX}max_nodes={config.max_nodes}",
        f"use at most {config.max_nodes}, or raise max_nodes",
    )


def _vcpus_cover_nodes(config: AppConfig) -> ConfigError | None:
    needed = config.instance.vcpus_for(config.max_nodes)
    if config.max_vcpus >= needed:
        return None
    fitting = config.num_nodes_at_once
    fewer = f", or {PREFIX}max_nodes={fitting}" if fitting else ""
    return _refuse(
        config,
        "max_vcpus",
        f"is less than {config.max_nodes} nodes x {config.instance.num_vcpus} vCPU of "
        f"{config.instance_type} = {needed}: such a job would wait for ever",
        f"use {PREFIX}max_vcpus={needed}{fewer}",
    )


def _existing_network_is_whole(config: AppConfig) -> ConfigError | None:
    parts = ("vpc_id", "subnet_id", "subnet_cidr")
    given = [part for part in parts if getattr(config, part) is not None]
    if len(given) in (0, len(parts)):
        return None
    missing = [f"{PREFIX}{part}" for part in parts if part not in given]
    return _refuse(
        config,
        given[0],
        f"describes an existing network without {' and '.join(missing)}",
        f"add {' and '.join(missing)}, or leave all three out for a new VPC",
    )


def _security_group_has_vpc(config: AppConfig) -> ConfigError | None:
    if config.security_group_id is None or config.vpc_id is not None:
        return None
    return _refuse(
        config,
        "security_group_id",
        "belongs to an existing VPC, and a new one is to be made",
        f"add {PREFIX}vpc_id, or leave the group out: one is created",
    )


def _existing_network_stays(config: AppConfig) -> ConfigError | None:
    if config.vpc_id is None:
        return None
    made = ("vpc_cidr", "nat_gateways", "interface_endpoints")
    wanted = next((name for name in made if getattr(config, name)), None)
    if wanted is None:
        return None
    return _refuse(
        config,
        wanted,
        f"would change the existing network {PREFIX}vpc_id={config.vpc_id}, which is only used",
        f"leave {PREFIX}{wanted} out, or leave vpc_id out for a new VPC",
    )


def _new_network_has_range(config: AppConfig) -> ConfigError | None:
    if config.vpc_id is not None or config.vpc_cidr is not None:
        return None
    return _refuse(config, "vpc_cidr", "is missing for a new VPC", "give one such as 10.0.0.0/16")


def _subnet_holds_nodes(config: AppConfig) -> ConfigError | None:
    key = "subnet_cidr" if config.subnet_cidr is not None else "vpc_cidr"
    usable = addresses.usable_addresses(config.node_subnet_prefix)
    nodes = config.num_nodes_at_once
    needed = config.addresses_needed(layout=config.efa_layout, num_nodes=nodes)
    if needed <= usable:
        return None
    per_node = config.instance.addresses_per_node(config.efa_layout)
    endpoints = needed - nodes * per_node
    whose = "the nodes" if key == "subnet_cidr" else "the nodes' quarter"
    return _refuse(
        config,
        key,
        f"leaves {usable} addresses for {whose} ({addresses.AWS_RESERVED} are AWS's), and "
        f"{nodes} nodes x {per_node}{f' + {endpoints} for endpoints' if endpoints else ''} = "
        f"{needed} are needed",
        " or ".join(_ways_to_fit(config, key=key, usable=usable)),
    )


def _ways_to_fit(config: AppConfig, *, key: str, usable: int) -> list[str]:
    """List what would fit, the least change first."""
    ways = []
    nodes = config.num_nodes_at_once
    lean = config.addresses_needed(layout=EfaLayout.EFA_ONLY, num_nodes=nodes)
    if lean <= usable:
        ways.append(f"use {PREFIX}efa_layout=efa-only, which needs {lean}")
    needed = config.addresses_needed(layout=config.efa_layout, num_nodes=nodes)
    prefix = addresses.narrowest_prefix_for(needed)
    spare_bits = 0 if key == "subnet_cidr" else addresses.QUARTER_BITS
    if prefix is not None and prefix - spare_bits >= addresses.WIDEST_PREFIX:
        ways.append(f"use a range of /{prefix - spare_bits} or wider")
    per_node = config.instance.addresses_per_node(config.efa_layout)
    endpoints = needed - nodes * per_node
    if (fitting := (usable - endpoints) // per_node) >= 1:
        ways.append(f"use {PREFIX}max_nodes={fitting}")
    return ways or [f"use fewer nodes, or {PREFIX}interface_endpoints=false"]


def _nodes_reach_services(config: AppConfig) -> ConfigError | None:
    if config.vpc_id is not None or config.nat_gateways or config.interface_endpoints:
        return None
    return _refuse(
        config,
        "nat_gateways",
        f"and {PREFIX}interface_endpoints=false leave the nodes no way to ECR, ECS and CloudWatch",
        f"use {PREFIX}nat_gateways=1 or {PREFIX}interface_endpoints=true",
    )


def _nodes_get_efa_software(config: AppConfig) -> ConfigError | None:
    if config.vpc_id is not None or config.nat_gateways or config.ami_id is not None:
        return None
    if not config.instance.supports_multi_node:
        return None
    return _refuse(
        config,
        "nat_gateways",
        "leaves the nodes no way to the internet, and the default host image has no EFA software",
        f"use {PREFIX}nat_gateways=1, or give {PREFIX}ami_id=<an image that has it>",
    )


def _release_runs_on_family(config: AppConfig) -> ConfigError | None:
    family = config.instance.family
    if family in config.release.families:
        return None
    able = [each.name for each in NEURON_RELEASES.values() if family in each.families]
    return _refuse(
        config,
        "neuron_release",
        f"does not run on {family} ({config.instance_type}), "
        f"only on {', '.join(sorted(config.release.families))}",
        f"use {', '.join(able)} for {family}",
    )


def _release_has_image(config: AppConfig) -> ConfigError | None:
    if config.image_uri is not None or config.build_base_image is not None:
        return None
    family = config.instance.family
    able = [r.name for r in NEURON_RELEASES.values() if family in r.families and r.base_image]
    return _refuse(
        config,
        "neuron_release",
        f"has no known container image: {config.release.why_no_image}",
        f"give {PREFIX}base_image=<an image with that release>, or use {', '.join(able)}",
    )


def _image_is_built_or_finished(config: AppConfig) -> ConfigError | None:
    if config.image_uri is None or config.base_image is None:
        return None
    return _refuse(
        config,
        "base_image",
        f"is what to build on, and {PREFIX}image_uri={config.image_uri} is finished",
        "leave one of the two out",
    )


def _one_reservation(config: AppConfig) -> ConfigError | None:
    if config.capacity_reservation_id is None or config.capacity_block_id is None:
        return None
    return _refuse(
        config,
        "capacity_reservation_id",
        f"excludes {PREFIX}capacity_block_id={config.capacity_block_id}: "
        "a node launches in one reservation",
        "leave one of the two out",
    )


def _block_is_sold(config: AppConfig) -> ConfigError | None:
    if config.capacity_block_id is None or config.instance.supports_capacity_block:
        return None
    sold = [each.name for each in INSTANCE_TYPES.values() if each.supports_capacity_block]
    return _refuse(
        config,
        "capacity_block_id",
        f"cannot be for {config.instance_type}: EC2 sells no Capacity Blocks of it",
        f"use {PREFIX}capacity_reservation_id, or one of {', '.join(sold)}",
    )


def _existing_bucket_stays(config: AppConfig) -> ConfigError | None:
    if config.bucket_name is None or config.retain_data:
        return None
    return _refuse(
        config,
        "retain_data",
        f"would empty the existing bucket {config.bucket_name}, which is never emptied",
        f"leave {PREFIX}retain_data out, or leave bucket_name out for a new bucket",
    )


CHECKS: tuple[Callable[[AppConfig], ConfigError | None], ...] = (
    _region_offers_type,
    _zone_offers_type,
    _zone_name_is_in_region,
    _nodes_can_talk,
    _min_within_max,
    _vcpus_cover_nodes,
    _existing_network_is_whole,
    _security_group_has_vpc,
    _existing_network_stays,
    _new_network_has_range,
    _nodes_reach_services,
    _nodes_get_efa_software,
    _subnet_holds_nodes,
    _release_runs_on_family,
    _release_has_image,
    _image_is_built_or_finished,
    _one_reservation,
    _block_is_sold,
    _existing_bucket_stays,
)
"""In this order: a later check relies on the earlier ones."""
