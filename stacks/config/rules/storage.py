"""Checks against the limits of FSx for Lustre and the CPU instances."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, ConfigError, refuse
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import CPU_INSTANCE_TYPES


def _lustre_has_a_size_that_is_sold(config: ConfigValues) -> ConfigError | None:
    size = config.lustre_gib
    if size in (0, 1200) or size % 2400 == 0:
        return None
    below = 1200 if size < 2400 else size // 2400 * 2400
    above = 1200 if size < 1200 else (size // 2400 + 1) * 2400
    options = f"{PREFIX}lustre_gib={below}" + (f" or {above}" if above != below else "")
    return refuse(
        config,
        "lustre_gib",
        "is not a size of FSx for Lustre, which come as 1200, 2400 and steps of 2400",
        f"use {options}",
    )


def _existing_lustre_is_whole(config: ConfigValues) -> ConfigError | None:
    names = ("lustre_dns_name", "lustre_mount_name")
    given = [name for name in names if getattr(config, name) is not None]
    if len(given) != 1:
        return None
    (missing,) = set(names) - set(given)
    return refuse(
        config,
        given[0],
        f"describes an existing file system without {PREFIX}{missing}",
        f"add {PREFIX}{missing}, or leave both out",
    )


def _one_lustre(config: ConfigValues) -> ConfigError | None:
    if not config.lustre_gib or config.lustre_dns_name is None:
        return None
    return refuse(
        config,
        "lustre_gib",
        f"asks for a new file system, and {PREFIX}lustre_dns_name={config.lustre_dns_name} is one",
        "leave one of the two out",
    )


def _existing_lustre_has_a_route(config: ConfigValues) -> ConfigError | None:
    if config.lustre_dns_name is None or config.vpc_id is not None:
        return None
    return refuse(
        config,
        "lustre_dns_name",
        "exists in a VPC, to which nodes in a new one have no route",
        f"add {PREFIX}vpc_id=<its VPC>, or use {PREFIX}lustre_gib for a new file system",
    )


def _existing_lustre_is_in_region(config: ConfigValues) -> ConfigError | None:
    # fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com
    region = config.lustre_dns_name and config.lustre_dns_name.split(".")[2]
    if not region or region == config.region:
        return None
    return refuse(
        config,
        "lustre_dns_name",
        f"is in {region}, and the nodes are in {config.region}",
        f"set {PREFIX}region={region}, or give a file system in {config.region}",
    )


def _lustre_group_has_a_file_system(config: ConfigValues) -> ConfigError | None:
    if config.lustre_security_group_id is None or config.lustre_dns_name is not None:
        return None
    return refuse(
        config,
        "lustre_security_group_id",
        f"belongs to an existing file system, and there is no {PREFIX}lustre_dns_name",
        "add it, or leave the group out: a new file system gets its own",
    )


def _existing_lustre_admits_nodes(config: ConfigValues) -> ConfigError | None:
    groups = (config.security_group_id, config.lustre_security_group_id)
    if config.lustre_dns_name is None or groups.count(None) == 1:
        return None
    if None in groups:
        return refuse(
            config,
            "lustre_dns_name",
            "admits the new security group of the nodes on no port, so no host could mount it",
            f"add {PREFIX}lustre_security_group_id=<the file system's security group>",
        )
    return refuse(
        config,
        "lustre_security_group_id",
        f"exists, as {PREFIX}security_group_id={config.security_group_id} does, and EC2 refuses a "
        "rule that they may already have",
        "leave it out and let the two groups admit each other on TCP 988 and 1018-1023",
    )


def _lustre_zone_has_a_subnet(config: ConfigValues) -> ConfigError | None:
    zone = config.lustre_zone_id
    if zone is None or (config.vpc_id is None and zone in config.subnet_zones):
        return None
    if config.vpc_id is not None:
        return refuse(
            config,
            "lustre_zone_id",
            f"cannot be chosen in the existing network {PREFIX}vpc_id={config.vpc_id}, where a "
            f"file system is in {PREFIX}subnet_id={config.subnet_id}",
            "leave it out",
        )
    return refuse(
        config,
        "lustre_zone_id",
        f"is not a zone where the new VPC has a subnet in {config.region}",
        f"use {' or '.join(config.subnet_zones)}",
    )


def _cpu_job_fits_ceiling(config: ConfigValues) -> ConfigError | None:
    smallest = min(CPU_INSTANCE_TYPES[name][0] for name in config.cpu_instance_types)
    if config.cpu_max_vcpus >= smallest:
        return None
    return refuse(
        config,
        "cpu_max_vcpus",
        f"is less than the {smallest} vCPU of the smallest of {PREFIX}cpu_instance_types: no "
        "instance could start",
        f"use {PREFIX}cpu_max_vcpus={smallest} or more",
    )


CHECKS = (
    _lustre_has_a_size_that_is_sold,
    _existing_lustre_is_whole,
    _one_lustre,
    _existing_lustre_has_a_route,
    _existing_lustre_is_in_region,
    _lustre_group_has_a_file_system,
    _existing_lustre_admits_nodes,
    _lustre_zone_has_a_subnet,
    _cpu_job_fits_ceiling,
)
