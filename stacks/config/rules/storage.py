"""Rules of FSx for Lustre and the CPU instances."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, Refusals
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import CPU_INSTANCE_TYPES


def refusals(config: ConfigValues) -> Refusals:
    """Yield what these keys cannot mean together."""
    size = config.lustre_gib
    if size not in (0, 1200) and size % 2400:
        below = 1200 if size < 2400 else size // 2400 * 2400
        above = 1200 if size < 1200 else (size // 2400 + 1) * 2400
        options = f"{PREFIX}lustre_gib={below}" + (f" or {above}" if above != below else "")
        yield (
            "lustre_gib",
            "is not a size of FSx for Lustre, which come as 1200, 2400 and steps of 2400",
            f"use {options}",
        )
    yield from _existing_lustre(config)
    zone = config.lustre_zone_id
    if zone is not None and config.vpc_id is not None:
        yield (
            "lustre_zone_id",
            f"cannot be chosen in the existing network {PREFIX}vpc_id={config.vpc_id}, where a "
            f"file system is in {PREFIX}subnet_id={config.subnet_id}",
            "leave it out",
        )
    elif zone is not None and zone not in config.subnet_zones:
        yield (
            "lustre_zone_id",
            f"is not a zone where the new VPC has a subnet in {config.region}",
            f"use {' or '.join(config.subnet_zones)}",
        )
    smallest = min(CPU_INSTANCE_TYPES[name][0] for name in config.cpu_instance_types)
    if config.cpu_max_vcpus < smallest:
        yield (
            "cpu_max_vcpus",
            f"is less than the {smallest} vCPU of the smallest of {PREFIX}cpu_instance_types: no "
            "instance could start",
            f"use {PREFIX}cpu_max_vcpus={smallest} or more",
        )


def _existing_lustre(config: ConfigValues) -> Refusals:
    """Check what is said of a file system that exists."""
    names = ("lustre_dns_name", "lustre_mount_name")
    given = [name for name in names if getattr(config, name) is not None]
    if len(given) == 1:
        (missing,) = set(names) - set(given)
        yield (
            given[0],
            f"describes an existing file system without {PREFIX}{missing}",
            f"add {PREFIX}{missing}, or leave both out",
        )
    if config.lustre_dns_name is None:
        if config.lustre_security_group_id is not None:
            yield (
                "lustre_security_group_id",
                f"belongs to an existing file system, and there is no {PREFIX}lustre_dns_name",
                "add it, or leave the group out: a new file system gets its own",
            )
        return
    if config.lustre_gib:
        yield (
            "lustre_gib",
            f"asks for a new file system, and {PREFIX}lustre_dns_name={config.lustre_dns_name} is "
            "one",
            "leave one of the two out",
        )
    if config.vpc_id is None:
        yield (
            "lustre_dns_name",
            "exists in a VPC, to which nodes in a new one have no route",
            f"add {PREFIX}vpc_id=<its VPC>, or use {PREFIX}lustre_gib for a new file system",
        )
    # fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com
    region = config.lustre_dns_name.split(".")[2]
    if region != config.region:
        yield (
            "lustre_dns_name",
            f"is in {region}, and the nodes are in {config.region}",
            f"set {PREFIX}region={region}, or give a file system in {config.region}",
        )
    if config.lustre_security_group_id is None and config.security_group_id is None:
        yield (
            "lustre_dns_name",
            "admits the new security group of the nodes on no port, so no host could mount it",
            f"add {PREFIX}lustre_security_group_id=<the file system's security group>",
        )
    if config.lustre_security_group_id is not None and config.security_group_id is not None:
        yield (
            "lustre_security_group_id",
            f"exists, as {PREFIX}security_group_id={config.security_group_id} does, and EC2 "
            "refuses a rule that they may already have",
            "leave it out and let the two groups admit each other on TCP 988 and 1018-1023",
        )
