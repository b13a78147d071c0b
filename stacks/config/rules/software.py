"""Rules about software and data: release, image, bucket and notifications."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, Refusals
from stacks.config.values import ConfigValues
from trainium_catalogue.releases import NEURON_RELEASES
from trainium_catalogue.wording import either


def refusals(config: ConfigValues) -> Refusals:
    """Yield a refusal for each of these rules that the configuration breaks."""
    yield from _release(config)
    yield from _notifications(config)
    if config.image_uri is not None and config.base_image is not None:
        yield (
            "base_image",
            f"is a base image to build on, but {PREFIX}image_uri={config.image_uri} is a complete "
            "image",
            "omit one of the two",
        )
    if config.bucket_name is not None and not config.retain_data:
        yield (
            "retain_data",
            f"is for a new bucket, but {PREFIX}bucket_name={config.bucket_name} is an existing "
            "one, which is never deleted",
            f"omit {PREFIX}retain_data, or omit bucket_name to create a new bucket",
        )
    if config.bucket_kms_key_arn is None:
        return
    if config.bucket_name is None:
        yield (
            "bucket_kms_key_arn",
            "is the key of an existing bucket, but a new bucket, encrypted with S3 managed keys, "
            "would be created",
            f"add {PREFIX}bucket_name, or omit bucket_kms_key_arn",
        )
    region = config.bucket_kms_key_arn.split(":")[3]
    if region != config.region:
        yield (
            "bucket_kms_key_arn",
            f"is in {region}, but S3 requires a key in the bucket's region, {config.region}",
            f"specify the KMS key of {PREFIX}bucket_name={config.bucket_name}",
        )


def _release(config: ConfigValues) -> Refusals:
    """Check that the release supports the instance type and training, and has an image."""
    release, family = config.release, config.instance.family
    suitable = either(
        each.name for each in NEURON_RELEASES.values() if family in each.families and each.has_image
    )
    if family not in release.families:
        yield (
            "neuron_release",
            f"does not run on {family} ({config.instance_type}), "
            f"only on {' and '.join(sorted(release.families))}",
            f"use {suitable} for {family}",
        )
    if release.backend is None:
        yield (
            "neuron_release",
            f"cannot be used for training: {release.why_no_image}",
            f"use {suitable} for {family}",
        )
    if config.builds_image and config.image_base is None:
        yield (
            "neuron_release",
            f"has no known container image: {release.why_no_image}",
            f"set {PREFIX}base_image=<an image with that release>, or use {suitable}",
        )


def _notifications(config: ConfigValues) -> Refusals:
    """Check the address and the topic of notifications about runs."""
    if config.notify_topic_arn is None:
        return
    if config.notify_email is not None:
        yield (
            "notify_email",
            f"would be subscribed to a new topic, but {PREFIX}notify_topic_arn names an existing "
            "one, whose subscriptions are not changed",
            "omit one of the two",
        )
    region = config.notify_topic_arn.split(":")[3]
    if region != config.region:
        yield (
            "notify_topic_arn",
            f"is in {region}, but the deployment is in {config.region}",
            f"specify a topic in {config.region}",
        )
