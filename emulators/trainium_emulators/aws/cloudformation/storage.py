"""S3 bucket policies, the auto-delete custom resource, and repositories that empty themselves."""

import json
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.ecr.models import ecr_backends
from moto.s3.cloud_formation import cfn_to_api_encryption
from moto.s3.models import s3_backends

from trainium_emulators.aws.cloudformation.spi import (
    Change,
    Contribution,
    Place,
    Properties,
    Resource,
)


def _s3(place: Place) -> Any:
    return s3_backends[place.account_id]["aws"]


TLS_ONLY = {"Bool": {"aws:SecureTransport": "false"}}


class BucketPolicy(Resource):
    """AWS::S3::BucketPolicy, without its TLS-only statement.

    moto enforces statements but reads no conditions, and the rehearsal speaks plain HTTP on
    loopback: that statement would deny everything.
    """

    @classmethod
    def create(cls, name: str, properties: Properties, place: Place) -> Resource:
        document = properties["PolicyDocument"]
        kept = [s for s in document["Statement"] if s.get("Condition") != TLS_ONLY]
        if any("Condition" in statement for statement in kept):
            raise ValidationError(message="the rehearsal reads no conditions in bucket policies")
        _s3(place).put_bucket_policy(
            properties["Bucket"], json.dumps({**document, "Statement": kept}).encode()
        )
        return cls(name)


def _update_bucket_policy(policy: Any, change: Change, place: Place) -> Any:
    return BucketPolicy.create(policy.physical_resource_id, change.properties, place)


def _update_bucket(bucket: Any, change: Change, place: Place) -> Any:
    """What moto keeps of a bucket: encryption and tags."""
    change.refuse_others(
        "AWS::S3::Bucket", frozenset({"BucketEncryption", "LifecycleConfiguration", "Tags"})
    )
    if "Tags" in change.changed:
        tags = {tag["Key"]: tag["Value"] for tag in change.properties.get("Tags", [])}
        _s3(place).put_bucket_tagging(bucket.name, tags)
    if "BucketEncryption" in change.changed:
        encryption = cfn_to_api_encryption(change.properties["BucketEncryption"])
        _s3(place).put_bucket_encryption(bucket.name, encryption)
    return bucket


def _update_log_group(group: Any, change: Change, _: Place) -> Any:
    change.refuse_others("AWS::Logs::LogGroup", frozenset({"RetentionInDays", "Tags"}))
    group.retention_in_days = change.properties.get("RetentionInDays")
    return group


def _delete_bucket_policy(_: Any, properties: Properties, place: Place) -> None:
    _s3(place).delete_bucket_policy(properties["Bucket"])


class S3AutoDeleteObjects(Resource):
    """Custom::S3AutoDeleteObjects: at its delete the CDK's Lambda empties the bucket, and so do we.

    The function itself is deployed by moto but cannot run without a container engine.
    """

    @classmethod
    def create(cls, name: str, properties: Properties, place: Place) -> Resource:
        return cls(name)


def _empty_bucket(_: Any, properties: Properties, place: Place) -> None:
    bucket = _s3(place).get_bucket(properties["BucketName"])
    # Every version and every delete marker.
    for key in list(bucket.keys):
        bucket.keys.pop(key)
    bucket.multiparts.clear()


def _empty_repository(repository: Any, properties: Properties, place: Place) -> None:
    """EmptyOnDelete, which moto's model does not read; without it a full repository stays."""
    ecr_backends[place.account_id][place.region].delete_repository(
        repository.name, force=bool(properties.get("EmptyOnDelete", False))
    )


CONTRIBUTION = Contribution(
    models={
        "AWS::S3::BucketPolicy": BucketPolicy,
        "Custom::S3AutoDeleteObjects": S3AutoDeleteObjects,
    },
    update={
        "AWS::S3::Bucket": _update_bucket,
        "AWS::S3::BucketPolicy": _update_bucket_policy,
        "AWS::Logs::LogGroup": _update_log_group,
        # Its properties name the bucket, which keeps its name.
        "Custom::S3AutoDeleteObjects": lambda custom, _, place: custom,
    },
    delete={
        "AWS::S3::BucketPolicy": _delete_bucket_policy,
        "Custom::S3AutoDeleteObjects": _empty_bucket,
        "AWS::ECR::Repository": _empty_repository,
    },
)
