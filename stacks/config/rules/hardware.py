"""Checks against the hardware: region, zone, EFA, counts and reservations."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, ConfigError, refuse
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import INSTANCE_TYPES


def _region_offers_type(config: ConfigValues) -> ConfigError | None:
    if config.region in config.instance.zone_ids:
        return None
    return refuse(
        config,
        "region",
        f"does not offer {config.instance_type}",
        f"use one that does: {config.instance.offers()}",
    )


def _zone_offers_type(config: ConfigValues) -> ConfigError | None:
    offered = config.instance.zone_ids[config.region]
    if config.zone_id is None or config.zone_id in offered:
        return None
    elsewhere = [
        region for region, ids in config.instance.zone_ids.items() if config.zone_id in ids
    ]
    if elsewhere:
        return refuse(
            config,
            "availability_zone_id",
            f"is not in {config.region}",
            f"set {PREFIX}region={elsewhere[0]} too, or use {' or '.join(offered)}",
        )
    return refuse(
        config,
        "availability_zone_id",
        f"does not offer {config.instance_type}",
        f"use {' or '.join(offered)}; over all regions: {config.instance.offers()}",
    )


def _zone_name_is_in_region(config: ConfigValues) -> ConfigError | None:
    if config.zone_name is None or config.zone_name[:-1] == config.region:
        return None
    return refuse(
        config,
        "availability_zone_id",
        f"is not in {config.region}",
        f"use {' or '.join(config.instance.zone_ids[config.region])}, or set {PREFIX}region too",
    )


def _nodes_can_talk(config: ConfigValues) -> ConfigError | None:
    if config.max_nodes == 1 or config.instance.supports_multi_node:
        return None
    able = [each.name for each in INSTANCE_TYPES.values() if each.supports_multi_node]
    return refuse(
        config,
        "max_nodes",
        f"needs EFA between the nodes, which {config.instance_type} does not have",
        f"use {PREFIX}max_nodes=1, or one of {', '.join(able)}",
    )


def _min_within_max(config: ConfigValues) -> ConfigError | None:
    if config.min_nodes <= config.max_nodes:
        return None
    return refuse(
        config,
        "min_nodes",
        f"is more than {PREFIX}max_nodes={config.max_nodes}",
        f"use at most {config.max_nodes}, or raise max_nodes",
    )


def _vcpus_cover_nodes(config: ConfigValues) -> ConfigError | None:
    needed = config.instance.vcpus_for(config.max_nodes)
    if config.max_vcpus >= needed:
        return None
    fitting = config.num_nodes_at_once
    fewer = f", or {PREFIX}max_nodes={fitting}" if fitting else ""
    return refuse(
        config,
        "max_vcpus",
        f"is less than {config.max_nodes} nodes x {config.instance.num_vcpus} vCPU of "
        f"{config.instance_type} = {needed}: such a job would wait for ever",
        f"use {PREFIX}max_vcpus={needed}{fewer}",
    )


def _one_reservation(config: ConfigValues) -> ConfigError | None:
    if config.capacity_reservation_id is None or config.capacity_block_id is None:
        return None
    return refuse(
        config,
        "capacity_reservation_id",
        f"excludes {PREFIX}capacity_block_id={config.capacity_block_id}: "
        "a node launches in one reservation",
        "leave one of the two out",
    )


def _block_is_sold(config: ConfigValues) -> ConfigError | None:
    if config.capacity_block_id is None or config.instance.supports_capacity_block:
        return None
    sold = [each.name for each in INSTANCE_TYPES.values() if each.supports_capacity_block]
    return refuse(
        config,
        "capacity_block_id",
        f"cannot be for {config.instance_type}: EC2 sells no Capacity Blocks of it",
        f"use {PREFIX}capacity_reservation_id, or one of {', '.join(sold)}",
    )


def _block_places_its_nodes(config: ConfigValues) -> ConfigError | None:
    if config.placement_group is None or config.capacity_block_id is None:
        return None
    return refuse(
        config,
        "placement_group",
        f"cannot go with {PREFIX}capacity_block_id={config.capacity_block_id}: EC2 places the "
        "nodes of a block close together itself",
        "leave placement_group out",
    )


CHECKS = (
    _region_offers_type,
    _zone_offers_type,
    _zone_name_is_in_region,
    _nodes_can_talk,
    _min_within_max,
    _vcpus_cover_nodes,
    _one_reservation,
    _block_is_sold,
    _block_places_its_nodes,
)
