"""Checks of the software and the data: release, image and bucket."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, ConfigError, refuse
from stacks.config.values import ConfigValues
from trainium_catalogue.releases import NEURON_RELEASES


def _release_runs_on_family(config: ConfigValues) -> ConfigError | None:
    family = config.instance.family
    if family in config.release.families:
        return None
    return refuse(
        config,
        "neuron_release",
        f"does not run on {family} ({config.instance_type}), "
        f"only on {', '.join(sorted(config.release.families))}",
        f"use {_with_image_for(family)} for {family}",
    )


def _release_has_image(config: ConfigValues) -> ConfigError | None:
    if config.image_uri is not None or config.build_base_image is not None:
        return None
    able = _with_image_for(config.instance.family)
    return refuse(
        config,
        "neuron_release",
        f"has no known container image: {config.release.why_no_image}",
        f"give {PREFIX}base_image=<an image with that release>, or use {able}",
    )


def _with_image_for(family: str) -> str:
    releases = NEURON_RELEASES.values()
    return " or ".join(r.name for r in releases if family in r.families and r.base_image)


def _image_is_built_or_finished(config: ConfigValues) -> ConfigError | None:
    if config.image_uri is None or config.base_image is None:
        return None
    return refuse(
        config,
        "base_image",
        f"is what to build on, and {PREFIX}image_uri={config.image_uri} is finished",
        "leave one of the two out",
    )


def _existing_bucket_stays(config: ConfigValues) -> ConfigError | None:
    if config.bucket_name is None or config.retain_data:
        return None
    return refuse(
        config,
        "retain_data",
        f"would empty the existing bucket {config.bucket_name}, which is never emptied",
        f"leave {PREFIX}retain_data out, or leave bucket_name out for a new bucket",
    )


def _key_has_a_bucket(config: ConfigValues) -> ConfigError | None:
    if config.bucket_kms_key_arn is None or config.bucket_name is not None:
        return None
    return refuse(
        config,
        "bucket_kms_key_arn",
        "is the key of an existing bucket, and a new one is to be made, which S3 encrypts itself",
        f"add {PREFIX}bucket_name, or leave the key out",
    )


def _key_is_in_region(config: ConfigValues) -> ConfigError | None:
    if config.bucket_kms_key_arn is None:
        return None
    region = config.bucket_kms_key_arn.split(":")[3]
    if region == config.region:
        return None
    return refuse(
        config,
        "bucket_kms_key_arn",
        f"is in {region}, and S3 takes a key in the region of its bucket, which is to be "
        f"{config.region}",
        f"give the key that {PREFIX}bucket_name={config.bucket_name} encrypts with, in "
        f"{config.region}",
    )


def _release_trains(config: ConfigValues) -> ConfigError | None:
    if config.release.backend is not None:
        return None
    family = config.instance.family
    return refuse(
        config,
        "neuron_release",
        f"cannot train: {config.release.why_no_image}",
        f"use {_with_image_for(family)} for {family}",
    )


CHECKS = (
    _release_runs_on_family,
    _release_trains,
    _release_has_image,
    _image_is_built_or_finished,
    _existing_bucket_stays,
    _key_has_a_bucket,
    _key_is_in_region,
)
