"""Rules of the software and the data: release, image and bucket."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, Refusals
from stacks.config.values import ConfigValues
from trainium_catalogue.releases import NEURON_RELEASES


def refusals(config: ConfigValues) -> Refusals:
    """Yield what these keys cannot mean together."""
    yield from _release(config)
    if config.image_uri is not None and config.base_image is not None:
        yield (
            "base_image",
            f"is what to build on, and {PREFIX}image_uri={config.image_uri} is finished",
            "leave one of the two out",
        )
    if config.bucket_name is not None and not config.retain_data:
        yield (
            "retain_data",
            f"would empty the existing bucket {config.bucket_name}, which is never emptied",
            f"leave {PREFIX}retain_data out, or leave bucket_name out for a new bucket",
        )
    if config.bucket_kms_key_arn is None:
        return
    if config.bucket_name is None:
        yield (
            "bucket_kms_key_arn",
            "is the key of an existing bucket, and a new one is to be made, which S3 encrypts "
            "itself",
            f"add {PREFIX}bucket_name, or leave the key out",
        )
    region = config.bucket_kms_key_arn.split(":")[3]
    if region != config.region:
        yield (
            "bucket_kms_key_arn",
            f"is in {region}, and S3 takes a key in the region of its bucket, which is to be "
            f"{config.region}",
            f"give the key that {PREFIX}bucket_name={config.bucket_name} encrypts with, in "
            f"{config.region}",
        )


def _release(config: ConfigValues) -> Refusals:
    """Check that a release runs on the instance type, trains, and has an image."""
    release, family = config.release, config.instance.family
    able = " or ".join(
        each.name
        for each in NEURON_RELEASES.values()
        if family in each.families and each.base_image
    )
    if family not in release.families:
        yield (
            "neuron_release",
            f"does not run on {family} ({config.instance_type}), "
            f"only on {', '.join(sorted(release.families))}",
            f"use {able} for {family}",
        )
    if release.backend is None:
        yield (
            "neuron_release",
            f"cannot train: {release.why_no_image}",
            f"use {able} for {family}",
        )
    if config.builds_image and config.build_base_image is None:
        yield (
            "neuron_release",
            f"has no known container image: {release.why_no_image}",
            f"give {PREFIX}base_image=<an image with that release>, or use {able}",
        )
