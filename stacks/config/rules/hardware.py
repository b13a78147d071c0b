"""Rules of the hardware: region, zone, EFA, counts and reservations."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, Refusals
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import INSTANCE_TYPES


def refusals(config: ConfigValues) -> Refusals:
    """Yield what these keys cannot mean together."""
    instance = config.instance
    if config.region not in instance.zone_ids:
        yield (
            "region",
            f"does not offer {config.instance_type}",
            f"use one that does: {instance.offers()}",
        )
    yield from _zone(config)
    if config.max_nodes > 1 and not instance.supports_multi_node:
        able = [each.name for each in INSTANCE_TYPES.values() if each.supports_multi_node]
        yield (
            "max_nodes",
            f"needs EFA between the nodes, which {config.instance_type} does not have",
            f"use {PREFIX}max_nodes=1, or one of {', '.join(able)}",
        )
    if config.min_nodes > config.max_nodes:
        yield (
            "min_nodes",
            f"is more than {PREFIX}max_nodes={config.max_nodes}",
            f"use at most {config.max_nodes}, or raise max_nodes",
        )
    needed = instance.vcpus_for(config.max_nodes)
    if config.max_vcpus < needed:
        fitting = config.num_nodes_at_once
        fewer = f", or {PREFIX}max_nodes={fitting}" if fitting else ""
        yield (
            "max_vcpus",
            f"is less than {config.max_nodes} nodes x {instance.num_vcpus} vCPU of "
            f"{config.instance_type} = {needed}: such a job would wait for ever",
            f"use {PREFIX}max_vcpus={needed}{fewer}",
        )
    block = config.capacity_block_id
    if block is not None and config.capacity_reservation_id is not None:
        yield (
            "capacity_reservation_id",
            f"excludes {PREFIX}capacity_block_id={block}: a node launches in one reservation",
            "leave one of the two out",
        )
    if block is not None and not instance.supports_capacity_block:
        sold = [each.name for each in INSTANCE_TYPES.values() if each.supports_capacity_block]
        yield (
            "capacity_block_id",
            f"cannot be for {config.instance_type}: EC2 sells no Capacity Blocks of it",
            f"use {PREFIX}capacity_reservation_id, or one of {', '.join(sold)}",
        )
    if block is not None and config.placement_group is not None:
        yield (
            "placement_group",
            f"cannot go with {PREFIX}capacity_block_id={block}: EC2 places the nodes of a block "
            "close together itself",
            "leave placement_group out",
        )


def _zone(config: ConfigValues) -> Refusals:
    """Check the nodes' zone, in a region that offers the type."""
    zones = config.instance.zone_ids
    offered = " or ".join(zones[config.region])
    elsewhere = [region for region, ids in zones.items() if config.zone_id in ids]
    if config.zone_id is not None and config.region not in elsewhere:
        if elsewhere:
            yield (
                "availability_zone_id",
                f"is not in {config.region}",
                f"set {PREFIX}region={elsewhere[0]} too, or use {offered}",
            )
        else:
            yield (
                "availability_zone_id",
                f"does not offer {config.instance_type}",
                f"use {offered}; over all regions: {config.instance.offers()}",
            )
    if config.zone_name is not None and config.zone_name[:-1] != config.region:
        yield (
            "availability_zone_id",
            f"is not in {config.region}",
            f"use {offered}, or set {PREFIX}region too",
        )
