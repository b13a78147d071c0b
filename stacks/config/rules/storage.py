"""Rules about FSx for Lustre and the CPU instances."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, Refusals
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import CPU_INSTANCE_TYPES
from trainium_catalogue.wording import either


def refusals(config: ConfigValues) -> Refusals:
    """Yield a refusal for each of these rules that the configuration breaks."""
    size = config.lustre_gib
    if size not in (0, 1200) and size % 2400:
        below = 1200 if size < 2400 else size // 2400 * 2400
        above = 1200 if size < 1200 else (size // 2400 + 1) * 2400
        options = f"{PREFIX}lustre_gib={below}" + (f" or {above}" if above != below else "")
        yield (
            "lustre_gib",
            "is not a valid size: FSx for Lustre offers 1,200 GiB and multiples of 2,400 GiB",
            f"use {options}",
        )
    yield from _existing_lustre(config)
    zone = config.lustre_zone_id
    if zone is not None and config.vpc_id is not None:
        yield (
            "lustre_zone_id",
            f"cannot be set with {PREFIX}vpc_id={config.vpc_id}: the file system is created in "
            f"{PREFIX}subnet_id={config.subnet_id}",
            "omit the key",
        )
    elif zone is not None and zone not in config.subnet_zones:
        yield (
            "lustre_zone_id",
            "is not a zone in which the new VPC has a subnet",
            f"use {either(config.subnet_zones)}",
        )
    smallest = min(CPU_INSTANCE_TYPES[name][0] for name in config.cpu_instance_types)
    if config.cpu_max_vcpus < smallest:
        yield (
            "cpu_max_vcpus",
            f"is less than the {smallest} vCPUs of the smallest type in "
            f"{PREFIX}cpu_instance_types: no instance could start",
            f"use {PREFIX}cpu_max_vcpus={smallest} or more",
        )


def _existing_lustre(config: ConfigValues) -> Refusals:
    """Check the keys that describe an existing file system."""
    names = ("lustre_dns_name", "lustre_mount_name")
    present = [name for name in names if getattr(config, name) is not None]
    if len(present) == 1:
        (missing,) = set(names) - set(present)
        yield (
            present[0],
            f"describes an existing file system, for which {PREFIX}{missing} must be set too",
            f"add {PREFIX}{missing}, or omit {present[0]}",
        )
    if config.lustre_dns_name is None:
        if config.lustre_security_group_id is not None:
            yield (
                "lustre_security_group_id",
                f"belongs to an existing file system, but {PREFIX}lustre_dns_name is not set",
                f"add {PREFIX}lustre_dns_name, or omit the group: a new file system has its own",
            )
        return
    if config.lustre_gib:
        yield (
            "lustre_gib",
            f"requests a new file system, but {PREFIX}lustre_dns_name={config.lustre_dns_name} is "
            "an existing one",
            "omit one of the two",
        )
    if config.vpc_id is None:
        yield (
            "lustre_dns_name",
            "is in an existing VPC, to which nodes in a new VPC have no route",
            f"add {PREFIX}vpc_id=<its VPC>, or use {PREFIX}lustre_gib for a new file system",
        )
    # fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com
    region = config.lustre_dns_name.split(".")[2]
    if region != config.region:
        yield (
            "lustre_dns_name",
            f"is in {region}, but the nodes are in {config.region}",
            f"set {PREFIX}region={region}, or specify a file system in {config.region}",
        )
    if config.lustre_security_group_id is None and config.security_group_id is None:
        yield (
            "lustre_dns_name",
            "does not allow traffic from the nodes' new security group, so no node could mount it",
            f"add {PREFIX}lustre_security_group_id=<the file system's security group>",
        )
    if config.lustre_security_group_id is not None and config.security_group_id is not None:
        yield (
            "lustre_security_group_id",
            f"and {PREFIX}security_group_id={config.security_group_id} both exist and may already "
            "have the rules that would be added, but EC2 refuses duplicate rules",
            "omit lustre_security_group_id, and allow TCP 988 and 1018-1023 between the two groups",
        )
