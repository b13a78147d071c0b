"""Refusals of FSx for Lustre: file systems, and associations that link them to a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainium_emulators.aws.refusals.refusal import (
    ASSOCIATION,
    EGRESS,
    FILE_SYSTEM,
    INGRESS,
    MOTO,
    SECURITY_GROUP,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import AwsRequest, each, get, number, text, true

API = "https://docs.aws.amazon.com/fsx/latest/APIReference/"
GUIDE = "https://docs.aws.amazon.com/fsx/latest/LustreGuide/"
MAX_ASSOCIATIONS = 8
_THROUGHPUT = {
    ("PERSISTENT_1", "SSD"): (50, 100, 200),
    ("PERSISTENT_1", "HDD"): (12, 40),
    ("PERSISTENT_2", "SSD"): (125, 250, 500, 1000),
}


def _lustre(request: AwsRequest) -> bool:
    return request.text("FileSystemType") == "LUSTRE"


def _deployment(request: AwsRequest) -> str:
    return str(request.get("LustreConfiguration.DeploymentType", "SCRATCH_1"))


def _ssd(request: AwsRequest) -> bool:
    return bool(request.get("StorageType", "SSD") == "SSD")


def _capacity(request: AwsRequest) -> Iterable[Fill]:
    if not _lustre(request) or not _ssd(request):
        return []
    size = request.number("StorageCapacity")
    step = 3600 if _deployment(request) == "SCRATCH_1" else 2400
    wrong = size not in (1200, 2400) and size % step != 0
    return when(size == size and wrong, int(size) if size == size else "", step)


def _throughput(request: AwsRequest) -> Iterable[Fill]:
    given = request.number("LustreConfiguration.PerUnitStorageThroughput")
    allowed = _THROUGHPUT.get((_deployment(request), str(request.get("StorageType", "SSD"))))
    missing = not request.has("LustreConfiguration.PerUnitStorageThroughput")
    if not _lustre(request) or allowed is None:
        return []
    return when(missing or (given == given and given not in allowed))


def _imports_of_persistent_2(request: AwsRequest) -> Iterable[Fill]:
    configuration = request.get("LustreConfiguration", {})
    old = {"ImportPath", "ExportPath", "AutoImportPolicy"} & {*configuration}
    return when(_lustre(request) and _deployment(request) == "PERSISTENT_2" and bool(old))


def _backups_of_scratch(request: AwsRequest) -> Iterable[Fill]:
    days = request.number("LustreConfiguration.AutomaticBackupRetentionDays", 0)
    return when(_lustre(request) and _deployment(request).startswith("SCRATCH") and days > 0)


def _efa_of_others(request: AwsRequest) -> Iterable[Fill]:
    efa = true(request.get("LustreConfiguration.EfaEnabled"))
    return when(_lustre(request) and efa and _deployment(request) != "PERSISTENT_2")


def _metadata_of_others(request: AwsRequest) -> Iterable[Fill]:
    given = request.has("LustreConfiguration.MetadataConfiguration")
    return when(_lustre(request) and given and _deployment(request) != "PERSISTENT_2")


def _admits_lustre(rule: Any) -> bool:
    """Tell whether a rule lets TCP 988 pass, from any source; an uncertain one counts as yes."""
    protocol = text(get(rule, "IpProtocol"))
    first, last = number(get(rule, "FromPort")), number(get(rule, "ToPort"))
    return protocol not in ("tcp", "6") or not (first > 988 or last < 988)


def _group_rules(request: AwsRequest, group: Any, own: Mapping[str, Any], kind: str) -> list[Any]:
    inline = "SecurityGroupIngress" if kind == INGRESS else "SecurityGroupEgress"
    separate = [
        rule
        for rule in request.account.all(kind)
        if request.account.same(get(rule, "GroupId"), group)
    ]
    return [*each(get(own, inline)), *separate]


def _port_closed(request: AwsRequest) -> Iterable[Fill]:
    if not _lustre(request):
        return []
    groups = request.each("SecurityGroupIds")
    known = [(group, request.account.find(SECURITY_GROUP, group)) for group in groups]
    if not groups or any(own is None for _, own in known):
        return []
    closed = [
        not any(
            _admits_lustre(rule)
            for group, own in known
            if own is not None
            for rule in _group_rules(request, group, own, kind)
        )
        # A group without explicit egress rules allows all outbound traffic.
        and not (
            kind == EGRESS and any("SecurityGroupEgress" not in (own or {}) for _, own in known)
        )
        for kind in (INGRESS, EGRESS)
    ]
    return when(any(closed))


def _shrinks(request: AwsRequest) -> Iterable[Fill]:
    before = number(get(request.previous, "StorageCapacity"))
    after = request.number("StorageCapacity")
    return when(
        request.previous is not None and after < before, int(after) if after == after else ""
    )


def _siblings(request: AwsRequest) -> list[Mapping[str, Any]]:
    return [
        other
        for other in request.account.all(ASSOCIATION)
        if other is not request.properties
        and other != request.previous
        and request.account.same(get(other, "FileSystemId"), request.get("FileSystemId"))
    ]


def _path(properties: Any) -> str:
    path = text(get(properties, "FileSystemPath"))
    return path if path.endswith("/") or not path else path + "/"


def _overlaps(request: AwsRequest) -> Iterable[Fill]:
    own = _path(request.properties)
    for other in _siblings(request):
        theirs = _path(other)
        if own and theirs and (own.startswith(theirs) or theirs.startswith(own)):
            yield (request.text("FileSystemPath"), text(get(other, "FileSystemPath")))


def _same_bucket_path(request: AwsRequest) -> Iterable[Fill]:
    own = request.get("DataRepositoryPath")
    plain = isinstance(own, str) and type(own) is str
    return when(
        plain and any(get(other, "DataRepositoryPath") == own for other in _siblings(request)), own
    )


def _linked_file_system(request: AwsRequest) -> Mapping[str, Any]:
    return request.find(FILE_SYSTEM, "FileSystemId") or {}


def _unlinkable(request: AwsRequest) -> Iterable[Fill]:
    system = _linked_file_system(request)
    kind = text(get(system, "LustreConfiguration.DeploymentType")) or "SCRATCH_1"
    old = text(get(system, "FileSystemTypeVersion")) == "2.10"
    return when(bool(system) and (kind == "SCRATCH_1" or old))


def _linked_twice(request: AwsRequest) -> Iterable[Fill]:
    system = _linked_file_system(request)
    return when(get(system, "LustreConfiguration.ImportPath") is not None)


ROWS = (
    AwsRefusal(
        id="fsx-capacity",
        on=FILE_SYSTEM,
        condition="A size that is neither 1200 GiB nor a multiple of 2400.",
        words="Invalid Lustre FS storage capacity: {}. Must be 1200 or a multiple of {}.",
        source="https://github.com/aws-samples/amazon-eks-autonomous-driving-data-service/issues/12",
        check=_capacity,
    ),
    AwsRefusal(
        id="fsx-throughput",
        on=FILE_SYSTEM,
        condition="A throughput that the deployment type does not have, or none.",
        words="Invalid Lustre deployment configuration: the provided throughput is invalid or does "
        "not meet the storage capacity requirement",
        source="https://github.com/hashicorp/terraform-provider-aws/issues/24341",
        check=_throughput,
    ),
    AwsRefusal(
        id="fsx-old-version",
        on=FILE_SYSTEM,
        condition="Lustre 2.10 on PERSISTENT_2.",
        words="FileSystemTypeVersion 2.10 is not supported for PERSISTENT_2",
        verbatim=False,
        source=API + "API_CreateFileSystemLustreConfiguration.html",
        check=lambda r: when(
            _lustre(r)
            and _deployment(r) == "PERSISTENT_2"
            and r.text("FileSystemTypeVersion") == "2.10"
        ),
    ),
    AwsRefusal(
        id="fsx-subnets",
        on=FILE_SYSTEM,
        condition="Other than one subnet.",
        words="Exactly one subnet ID is required for LUSTRE, got {}",
        verbatim=False,
        source=API + "API_CreateFileSystem.html",
        check=lambda r: when(
            _lustre(r) and isinstance(r.get("SubnetIds"), list) and len(r.each("SubnetIds")) != 1,
            len(r.each("SubnetIds")),
        ),
    ),
    AwsRefusal(
        id="fsx-disks",
        on=FILE_SYSTEM,
        condition="Disks on another deployment type than PERSISTENT_1.",
        words="Storage type HDD is only supported by PERSISTENT_1",
        verbatim=False,
        source=API + "API_CreateFileSystem.html",
        check=lambda r: when(
            _lustre(r) and r.text("StorageType") == "HDD" and _deployment(r) != "PERSISTENT_1"
        ),
    ),
    AwsRefusal(
        id="fsx-drive-cache",
        on=FILE_SYSTEM,
        condition="Disks without a word about their cache.",
        words="DriveCacheType is required when StorageType is HDD",
        verbatim=False,
        source=API + "API_CreateFileSystemLustreConfiguration.html",
        check=lambda r: when(
            _lustre(r)
            and r.text("StorageType") == "HDD"
            and not r.has("LustreConfiguration.DriveCacheType")
        ),
    ),
    AwsRefusal(
        id="fsx-import-path",
        on=FILE_SYSTEM,
        condition="The old link to a bucket on PERSISTENT_2, which has associations.",
        words="ImportPath, ExportPath and AutoImportPolicy are not supported for PERSISTENT_2",
        verbatim=False,
        source="https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/"
        "aws-properties-fsx-filesystem-lustreconfiguration.html",
        check=_imports_of_persistent_2,
    ),
    AwsRefusal(
        id="fsx-backups",
        on=FILE_SYSTEM,
        condition="Backups of a scratch file system.",
        words="Automatic backups are not supported for scratch file systems",
        verbatim=False,
        source=GUIDE + "using-backups-fsx.html",
        check=_backups_of_scratch,
    ),
    AwsRefusal(
        id="fsx-efa",
        on=FILE_SYSTEM,
        condition="EFA on another deployment type than PERSISTENT_2.",
        words="EfaEnabled is only supported for PERSISTENT_2",
        verbatim=False,
        source=GUIDE + "efa-file-systems.html",
        check=_efa_of_others,
    ),
    AwsRefusal(
        id="fsx-metadata",
        on=FILE_SYSTEM,
        condition="A metadata configuration on another deployment type than PERSISTENT_2.",
        words="MetadataConfiguration is only supported for PERSISTENT_2",
        verbatim=False,
        source=API + "API_CreateFileSystemLustreConfiguration.html",
        check=_metadata_of_others,
    ),
    AwsRefusal(
        id="fsx-port-closed",
        on=FILE_SYSTEM,
        condition="Security groups that keep TCP 988 out.",
        words="The file system cannot be created because the default security group in the subnet "
        "provided or the provided security groups do not permit Lustre LNET network traffic on "
        "port 988",
        source="https://github.com/kubernetes-sigs/aws-fsx-csi-driver/issues/32",
        check=_port_closed,
    ),
    AwsRefusal(
        id="fsx-shrink",
        on=FILE_SYSTEM,
        condition="A smaller size in an update.",
        words="The storage capacity {} must be greater than the current storage capacity",
        verbatim=False,
        source=API + "API_UpdateFileSystem.html",
        known_to=MOTO,
        check=_shrinks,
    ),
    AwsRefusal(
        id="association-overlap",
        on=ASSOCIATION,
        condition="A folder inside that of another association.",
        words="File system path {} overlaps with {} of another data repository association",
        verbatim=False,
        source=API + "API_CreateDataRepositoryAssociation.html",
        check=_overlaps,
    ),
    AwsRefusal(
        id="association-bucket-path",
        on=ASSOCIATION,
        condition="The bucket path of another association.",
        words="Data repository path {} is associated already",
        verbatim=False,
        source=API + "API_CreateDataRepositoryAssociation.html",
        check=_same_bucket_path,
    ),
    AwsRefusal(
        id="association-path",
        on=ASSOCIATION,
        condition="A folder without its leading slash.",
        words="FileSystemPath must start with a forward slash",
        verbatim=False,
        source=API + "API_CreateDataRepositoryAssociation.html",
        check=lambda r: when(
            bool(r.text("FileSystemPath")) and not r.text("FileSystemPath").startswith("/")
        ),
    ),
    AwsRefusal(
        id="association-number",
        on=ASSOCIATION,
        condition="More than eight associations.",
        words="A file system can have at most 8 data repository associations",
        verbatim=False,
        source=API + "API_CreateDataRepositoryAssociation.html",
        check=lambda r: when(len(_siblings(r)) >= MAX_ASSOCIATIONS),
    ),
    AwsRefusal(
        id="association-of-scratch",
        on=ASSOCIATION,
        condition="An association of a SCRATCH_1 file system, or of Lustre 2.10.",
        words="Data repository associations are supported on Lustre 2.12 and 2.15 file systems, "
        "excluding SCRATCH_1",
        verbatim=False,
        source=API + "API_CreateDataRepositoryAssociation.html",
        check=_unlinkable,
    ),
    AwsRefusal(
        id="association-of-import-path",
        on=ASSOCIATION,
        condition="An association of a file system that has the old link to a bucket.",
        words="ImportPath is not supported for file systems with a data repository association",
        verbatim=False,
        source=API + "API_CreateFileSystemLustreConfiguration.html",
        check=_linked_twice,
    ),
)
