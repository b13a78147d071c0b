"""Rules about hardware: region, zone, EFA, counts and reservations."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, Refusals
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.wording import counted, either


def refusals(config: ConfigValues) -> Refusals:
    """Yield a refusal for each of these rules that the configuration breaks."""
    instance = config.instance
    if config.region not in instance.zone_ids:
        yield (
            "region",
            f"does not offer {config.instance_type}",
            f"use a region that does: {instance.offers()}",
        )
    yield from _zone(config)
    yield from _zone_order(config)
    if config.max_nodes > 1 and not instance.supports_multi_node:
        with_efa = [each.name for each in INSTANCE_TYPES.values() if each.supports_multi_node]
        yield (
            "max_nodes",
            f"needs EFA between the nodes, which {config.instance_type} does not have",
            f"use {PREFIX}max_nodes=1, or a type with EFA: {', '.join(with_efa)}",
        )
    if config.min_nodes > config.max_nodes:
        yield (
            "min_nodes",
            f"is more than {PREFIX}max_nodes={config.max_nodes}",
            f"use at most {config.max_nodes}, or raise max_nodes",
        )
    needed = instance.vcpus_for(config.max_nodes)
    if config.max_vcpus < needed:
        fitting = config.max_concurrent_nodes
        fewer = f", or {PREFIX}max_nodes={fitting}" if fitting else ""
        yield (
            "max_vcpus",
            f"is less than the {needed:,} vCPUs of a job of {counted(config.max_nodes, 'node')} "
            f"({instance.num_vcpus} per {config.instance_type}), which would wait forever",
            f"use {PREFIX}max_vcpus={needed}{fewer}",
        )
    block = config.capacity_block_id
    if block is not None and config.capacity_reservation_id is not None:
        yield (
            "capacity_reservation_id",
            f"conflicts with {PREFIX}capacity_block_id={block}: a node can launch into only one of "
            "them",
            "omit one of the two",
        )
    if block is not None and not instance.supports_capacity_block:
        with_blocks = [
            each.name for each in INSTANCE_TYPES.values() if each.supports_capacity_block
        ]
        yield (
            "capacity_block_id",
            f"cannot be used with {config.instance_type}: EC2 offers no Capacity Blocks for it",
            f"use {PREFIX}capacity_reservation_id, or a type that has them: "
            f"{', '.join(with_blocks)}",
        )
    if block is not None and config.placement_group is not None:
        yield (
            "placement_group",
            f"conflicts with {PREFIX}capacity_block_id={block}: EC2 itself places the nodes of a "
            "block close together",
            "omit placement_group",
        )


def _zone(config: ConfigValues) -> Refusals:
    """Check the nodes' zones, in a region that offers the type."""
    zones = config.instance.zone_ids
    offered = either(zones[config.region])
    named = [("zone_ids", f"names {zone}, which ", zone) for zone in config.zone_ids]
    if not named and config.zone_id is not None:
        named = [("availability_zone_id", "", config.zone_id)]
    for key, subject, zone in named:
        regions = [region for region, ids in zones.items() if zone in ids]
        if config.region not in regions:
            if regions:
                yield (
                    key,
                    f"{subject}is not in {config.region}",
                    f"set {PREFIX}region={regions[0]} too, or use {offered}",
                )
            else:
                yield (
                    key,
                    f"{subject}does not offer {config.instance_type}",
                    f"use {offered}; zones in all regions: {config.instance.offers()}",
                )
    if config.zone_name is not None and config.zone_name[:-1] != config.region:
        yield (
            "availability_zone_id",
            f"is not in {config.region}",
            f"use {offered}, or set {PREFIX}region to the region of the zone",
        )


def _zone_order(config: ConfigValues) -> Refusals:
    """Check that jobs can move between the zones of ``zone_ids``."""
    if not config.zone_ids:
        return
    first = config.zone_ids[0]
    if config.availability_zone_id != first:
        yield (
            "zone_ids",
            f"begins with {first}, but {PREFIX}availability_zone_id={config.availability_zone_id} "
            "is the zone that jobs try first",
            f"omit availability_zone_id, or begin the list with {config.availability_zone_id}",
        )
    if config.subnet_id is not None:
        yield (
            "zone_ids",
            f"needs a subnet in each zone, but {PREFIX}subnet_id={config.subnet_id} is in only one",
            "omit zone_ids, or omit vpc_id, subnet_id and subnet_cidr to create a new VPC",
        )
    for key in ("capacity_block_id", "capacity_reservation_id", "placement_group"):
        value = getattr(config, key)
        if value is not None and len(config.zone_ids) > 1:
            yield (
                "zone_ids",
                f"names several zones, but {PREFIX}{key}={value} is in only one",
                f"list only its zone, or omit {key}",
            )
