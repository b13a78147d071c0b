"""Models the parts of S3, ECR, CloudWatch Logs and FSx for Lustre that moto lacks."""

import json
import uuid
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.ecr.models import ecr_backends
from moto.fsx.models import fsx_backends
from moto.s3.cloud_formation import cfn_to_api_encryption
from moto.s3.models import s3_backends

from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    ModeledResource,
    Properties,
    PropertyChange,
)

TLS_ONLY = {"Bool": {"aws:SecureTransport": "false"}}


def _s3(place: AccountRegion) -> Any:
    return s3_backends[place.account_id]["aws"]


def _put_bucket_policy(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::S3::BucketPolicy, without its TLS-only statement.

    moto enforces statements but ignores conditions, so that statement would deny everything on the
    rehearsal's plain HTTP.
    """
    document = properties["PolicyDocument"]
    statements = [s for s in document["Statement"] if s.get("Condition") != TLS_ONLY]
    if any("Condition" in statement for statement in statements):
        raise ValidationError(
            message="the rehearsal does not evaluate conditions in bucket policies"
        )
    _s3(place).put_bucket_policy(
        properties["Bucket"], json.dumps({**document, "Statement": statements}).encode()
    )
    return ModeledResource(name)


def _update_bucket_policy(policy: Any, change: PropertyChange, place: AccountRegion) -> Any:
    return _put_bucket_policy(policy.physical_resource_id, change.properties, place)


def _update_bucket(bucket: Any, change: PropertyChange, place: AccountRegion) -> Any:
    """Update encryption and tags; a change of the lifecycle rules has no effect."""
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


def _update_log_group(group: Any, change: PropertyChange, _: AccountRegion) -> Any:
    change.refuse_others("AWS::Logs::LogGroup", frozenset({"RetentionInDays", "Tags"}))
    group.retention_in_days = change.properties.get("RetentionInDays")
    return group


def _delete_bucket_policy(_: Any, properties: Properties, place: AccountRegion) -> None:
    _s3(place).delete_bucket_policy(properties["Bucket"])


def _accept_auto_delete(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """Custom::S3AutoDeleteObjects: empties the bucket on deletion, like the CDK's Lambda function.

    moto deploys the function itself but cannot run it without a container engine.
    """
    return ModeledResource(name)


def _empty_bucket(_: Any, properties: Properties, place: AccountRegion) -> None:
    bucket = _s3(place).get_bucket(properties["BucketName"])
    # Including every version and delete marker.
    for key in list(bucket.keys):
        bucket.keys.pop(key)
    bucket.multiparts.clear()


def _delete_repository(repository: Any, properties: Properties, place: AccountRegion) -> None:
    """Delete a repository, with its images if EmptyOnDelete is set, which moto's model ignores."""
    ecr_backends[place.account_id][place.region].delete_repository(
        repository.name, force=bool(properties.get("EmptyOnDelete", False))
    )


def _fsx(place: AccountRegion) -> Any:
    return fsx_backends[place.account_id][place.region]


def _create_file_system(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::FSx::FileSystem, of type LUSTRE."""
    file_system = _fsx(place).create_file_system(
        client_request_token=name,
        file_system_type=properties["FileSystemType"],
        storage_capacity=int(properties["StorageCapacity"]),
        storage_type=properties.get("StorageType", "SSD"),
        subnet_ids=properties["SubnetIds"],
        security_group_ids=properties.get("SecurityGroupIds", []),
        tags=properties.get("Tags", []),
        kms_key_id=properties.get("KmsKeyId"),
        windows_configuration=None,
        # FSx chooses the name: for PERSISTENT_2 it is never plain "fsx".
        lustre_configuration={**properties["LustreConfiguration"], "MountName": "rehearse"},
        ontap_configuration=None,
        file_system_type_version=properties.get("FileSystemTypeVersion"),
        open_zfs_configuration=None,
    )
    attributes = {
        "DNSName": file_system.dns_name,
        "LustreMountName": "rehearse",
        "ResourceARN": file_system.resource_arn,
    }
    return ModeledResource(file_system.file_system_id, attributes)


def _associate(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::FSx::DataRepositoryAssociation: checked only; no files are copied."""
    file_system = properties["FileSystemId"]
    if not _fsx(place).describe_file_systems([file_system]):
        raise ValidationError(message=f"file system {file_system} does not exist")
    identity = f"dra-{uuid.uuid4().hex[:17]}"
    return ModeledResource(identity, {"AssociationId": identity})


def _delete_file_system(file_system: Any, _: Properties, place: AccountRegion) -> None:
    _fsx(place).delete_file_system(file_system.physical_resource_id, "", None, None, None)


def _grow_file_system(file_system: Any, change: PropertyChange, place: AccountRegion) -> Any:
    """Grow the storage capacity in place; refuse any other change."""
    change.refuse_others("AWS::FSx::FileSystem", frozenset({"StorageCapacity"}))
    (stored,) = _fsx(place).describe_file_systems([file_system.physical_resource_id])
    stored.storage_capacity = int(change.properties["StorageCapacity"])
    return file_system


CONTRIBUTION = Contribution(
    create={
        "AWS::S3::BucketPolicy": _put_bucket_policy,
        "Custom::S3AutoDeleteObjects": _accept_auto_delete,
        "AWS::FSx::FileSystem": _create_file_system,
        "AWS::FSx::DataRepositoryAssociation": _associate,
    },
    update={
        "AWS::S3::Bucket": _update_bucket,
        "AWS::S3::BucketPolicy": _update_bucket_policy,
        "AWS::Logs::LogGroup": _update_log_group,
        # The bucket's name does not change.
        "Custom::S3AutoDeleteObjects": lambda custom, _, place: custom,
        "AWS::FSx::FileSystem": _grow_file_system,
    },
    delete={
        "AWS::S3::BucketPolicy": _delete_bucket_policy,
        "Custom::S3AutoDeleteObjects": _empty_bucket,
        "AWS::ECR::Repository": _delete_repository,
        "AWS::FSx::FileSystem": _delete_file_system,
        # Nothing was stored.
        "AWS::FSx::DataRepositoryAssociation": lambda association, _, place: None,
    },
)
