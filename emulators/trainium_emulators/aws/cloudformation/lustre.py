"""FSx for Lustre: file systems, and what links them to a bucket."""

from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.fsx.models import fsx_backends

from trainium_emulators.aws.cloudformation.spi import (
    Change,
    Contribution,
    Place,
    Properties,
    Resource,
)

ASSOCIATIONS: dict[Place, dict[str, str]] = {}
"""Bucket path of every association, by place and id; moto has no back-end for them."""


def _backend(place: Place) -> Any:
    return fsx_backends[place.account_id][place.region]


class FileSystem(Resource):
    """AWS::FSx::FileSystem, of type LUSTRE."""

    @classmethod
    def create(cls, name: str, properties: Properties, place: Place) -> Resource:
        made = _backend(place).create_file_system(
            client_request_token=name,
            file_system_type=properties["FileSystemType"],
            storage_capacity=int(properties["StorageCapacity"]),
            storage_type=properties.get("StorageType", "SSD"),
            subnet_ids=properties["SubnetIds"],
            security_group_ids=properties.get("SecurityGroupIds", []),
            tags=properties.get("Tags", []),
            kms_key_id=properties.get("KmsKeyId"),
            windows_configuration=None,
            # A name that FSx chooses: for PERSISTENT_2 never plain "fsx".
            lustre_configuration={**properties["LustreConfiguration"], "MountName": "rehearse"},
            ontap_configuration=None,
            file_system_type_version=properties.get("FileSystemTypeVersion"),
            open_zfs_configuration=None,
        )
        attributes = {
            "DNSName": made.dns_name,
            "LustreMountName": "rehearse",
            "ResourceARN": made.resource_arn,
        }
        return cls(made.file_system_id, attributes)


class DataRepositoryAssociation(Resource):
    """AWS::FSx::DataRepositoryAssociation: kept, not acted on; no file moves."""

    @classmethod
    def create(cls, name: str, properties: Properties, place: Place) -> Resource:
        file_system = properties["FileSystemId"]
        if not _backend(place).describe_file_systems([file_system]):
            raise ValidationError(message=f"file system {file_system} does not exist")
        existing = ASSOCIATIONS.setdefault(place, {})
        identity = f"dra-{file_system.removeprefix('fs-')}{len(existing)}"
        existing[identity] = properties["DataRepositoryPath"]
        return cls(identity, {"AssociationId": identity})


def _delete_file_system(file_system: Any, _: Properties, place: Place) -> None:
    _backend(place).delete_file_system(file_system.physical_resource_id, "", None, None, None)


def _delete_association(association: Any, _: Properties, place: Place) -> None:
    del ASSOCIATIONS[place][association.physical_resource_id]


def _grow(file_system: Any, change: Change, place: Place) -> Any:
    """More storage, in place; what else changes a file system replaces it on AWS."""
    change.refuse_others("AWS::FSx::FileSystem", frozenset({"StorageCapacity"}))
    (kept,) = _backend(place).describe_file_systems([file_system.physical_resource_id])
    kept.storage_capacity = int(change.properties["StorageCapacity"])
    return file_system


CONTRIBUTION = Contribution(
    models={
        "AWS::FSx::FileSystem": FileSystem,
        "AWS::FSx::DataRepositoryAssociation": DataRepositoryAssociation,
    },
    update={"AWS::FSx::FileSystem": _grow},
    delete={
        "AWS::FSx::FileSystem": _delete_file_system,
        "AWS::FSx::DataRepositoryAssociation": _delete_association,
    },
)
