"""Kinds of names, addresses and types defined by AWS or this project."""

from __future__ import annotations

import re
from ipaddress import IPv4Network

from stacks.config.kinds import ValueKind, cidr, comma_separated, matching, text
from stacks.config.refusal import InvalidValue
from trainium_catalogue.charts import CHARTS
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.eks import (
    ADD_ONS,
    DEFAULT_KUBERNETES_VERSION,
    SYSTEM_INSTANCE_TYPES,
    newest_image,
)
from trainium_catalogue.instances import CPU_INSTANCE_TYPES
from trainium_catalogue.suggest import did_you_mean

LOG_RETENTION_DAYS = frozenset(
    {1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096}
    | {1827, 2192, 2557, 2922, 3288, 3653}
)
"""Retention periods that PutRetentionPolicy accepts (CloudWatch Logs API reference)."""

_MAX_DEPLOYMENT_CHARACTERS = 24
# ECR allows only single hyphens between letters and digits; the other services allow more.
_DEPLOYMENT = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", re.ASCII)

_DIGEST = r"@sha256:[0-9a-f]{64}"
_TAG = r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_REPOSITORY = r"(?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"

# Ranges that are not routed on the internet (RFC 1918, RFC 6598).
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
# Ranges that no call can come from: this network, loopback, link-local, multicast and reserved
# (RFC 6890).
_NON_SOURCES = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")


def deployment_name() -> ValueKind[str]:
    """Accept a name that is valid as part of stack, repository and SSM parameter names."""

    def read(value: object) -> str:
        name = text(value)
        if len(name) > _MAX_DEPLOYMENT_CHARACTERS:
            raise InvalidValue(
                f"has {len(name)} characters",
                f"use at most {_MAX_DEPLOYMENT_CHARACTERS}, because AWS limits the length of the "
                "names that contain it",
            )
        if not _DEPLOYMENT.fullmatch(name):
            raise InvalidValue(
                "is not valid in the names of stacks, repositories and parameters",
                "start with a lowercase letter, and use only lowercase letters, digits and single "
                "hyphens between them",
            )
        return name

    return ValueKind(noun="name", read=read)


def orchestrators() -> ValueKind[tuple[Orchestrator, ...]]:
    """Accept ``batch``, ``eks``, a list of them, or ``both``."""
    listed = comma_separated(_orchestrator, noun="`batch`, `eks` or `both`")

    def read(value: object) -> tuple[Orchestrator, ...]:
        named = [*Orchestrator] if value == "both" else sorted(listed.read(value))
        return tuple(Orchestrator(name) for name in named)

    return ValueKind(noun=listed.noun, read=read)


def _orchestrator(name: str) -> str:
    if name not in [*Orchestrator]:
        raise InvalidValue(
            f"names the unknown orchestrator {name!r}", did_you_mean(name, (*Orchestrator, "both"))
        )
    return name


def region_name() -> ValueKind[str]:
    """Accept a region name; a rule checks whether the region offers the type."""
    return matching(
        r"[a-z]{2}(?:-[a-z]+)+-[0-9]",
        noun="region",
        reason="is not a region name",
        remedy="specify a region such as us-west-2",
    )


def zone() -> ValueKind[str]:
    """Accept a zone id (``usw2-az4``) or a zone name (``us-west-2d``)."""
    return matching(
        r"[a-z]+[0-9]-az[0-9]+|[a-z]{2}(?:-[a-z]+)+-[0-9][a-z]",
        noun="zone id",
        reason="is neither a zone ID nor a zone name",
        remedy="specify a zone id such as usw2-az4",
    )


def zone_id(name: str) -> str:
    """Accept only a zone id; a new network identifies its zones by id."""
    if is_zone_name(zone().read(name)):
        raise InvalidValue(
            f"names {name}, but a zone name can map to a different zone in each account",
            "specify zone IDs such as usw2-az4,usw2-az1",
        )
    return name


def is_zone_name(zone: str) -> bool:
    """Return whether ``zone`` is a name (``us-west-2d``), not an id (``usw2-az4``)."""
    return "-az" not in zone


def image_reference() -> ValueKind[str]:
    """Accept a container image with a digest or a tag other than ``latest``."""
    well_formed = matching(
        f"{_REPOSITORY}(?:{_TAG})?(?:{_DIGEST})?",
        noun="image",
        reason="is not an image reference",
        remedy="specify registry/repository:tag, with registry and repository in lowercase",
    )

    def read(value: object) -> str:
        reference = well_formed.read(value)
        name = reference.rpartition("/")[2]
        if "@" not in name and (":" not in name or name.endswith(":latest")):
            raise InvalidValue(
                "refers to the tag latest, which can point to another image at any time",
                "specify a tag other than latest, or a digest",
            )
        return reference

    return ValueKind(noun=well_formed.noun, read=read)


def cpu_instance_type(name: str) -> str:
    """Accept an x86-64 type large enough for a CPU job."""
    if name not in CPU_INSTANCE_TYPES:
        raise InvalidValue(
            f"names {name!r}, which is not a known x86-64 type with room for a job of 16 vCPUs and "
            "56 GiB",
            did_you_mean(name, CPU_INSTANCE_TYPES),
        )
    return name


def data_uri(uri: str) -> str:
    """Accept the S3 URI of a bucket or of a prefix in it."""
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.'()/-]*)?", uri):
        raise InvalidValue(
            f"names {uri!r}, which is not a valid S3 URI", "write s3://bucket/prefix"
        )
    return uri


def lustre_dns_name() -> ValueKind[str]:
    """Accept the DNS name of a file system, as shown by FSx."""
    return matching(
        r"fs-[0-9a-f]{8,17}\.fsx\.[a-z0-9-]+\.amazonaws\.com(\.cn)?",
        noun="DNS name",
        reason="is not the DNS name of a file system",
        remedy="specify one such as fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    )


def lustre_mount_name() -> ValueKind[str]:
    """Accept the mount name of a file system, as shown by FSx."""
    return matching(
        r"[a-z0-9]{4,16}",
        noun="mount name",
        reason="is not a mount name",
        remedy="specify the mount name that FSx shows, such as fqgwbbmv",
    )


def kms_key_arn() -> ValueKind[str]:
    """Accept a KMS key ARN; IAM policies accept no alias as a resource (KMS Developer Guide)."""
    return matching(
        r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+",
        noun="key ARN",
        reason="is not the ARN of a KMS key",
        remedy="specify one such as "
        "arn:aws:kms:us-west-2:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab, not an alias",
    )


def email_address() -> ValueKind[str]:
    """Accept an email address for an SNS subscription, which the recipient must confirm."""
    return matching(
        r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
        noun="address",
        reason="is not an email address",
        remedy="specify one such as team@example.com, or use notify_topic_arn for several",
    )


def topic_arn() -> ValueKind[str]:
    """Accept the ARN of a standard SNS topic: FIFO topics do not send emails (SNS, quotas)."""
    return matching(
        r"arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}",
        noun="topic ARN",
        reason="is not the ARN of a standard SNS topic",
        remedy="specify one such as arn:aws:sns:us-west-2:111122223333:training, not a FIFO topic",
    )


def placement_group_name() -> ValueKind[str]:
    """Accept the name of a placement group: up to 255 ASCII characters."""
    return matching(
        r"[A-Za-z0-9._/()\[\]:@+=&;{}!$*-][ A-Za-z0-9._/()\[\]:@+=&;{}!$*-]{0,254}",
        noun="group name",
        reason="is not a placement group name",
        remedy="specify the group's name, up to 255 letters, digits and punctuation characters",
    )


def bucket_name() -> ValueKind[str]:
    """Accept the name of an S3 bucket, not its URI or ARN."""
    return matching(
        r"(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
        noun="bucket name",
        reason="is not a valid bucket name",
        remedy="use 3 to 63 lowercase letters, digits, hyphens and dots, without s3:// or a path",
    )


def principal_arn(arn: str) -> str:
    """Accept the ARN of a role or a user, as access entries do."""
    if re.fullmatch(r"arn:aws[a-z-]*:sts::\d{12}:assumed-role/.+", arn):
        raise InvalidValue(
            f"names the role session {arn!r}, which cannot have an access entry",
            "specify its role: arn:aws:iam::<account>:role/<name>",
        )
    # Every region that offers Trainium is in the partition aws.
    if not re.fullmatch(
        r"arn:aws:iam::\d{12}:(role|user)/([\w+=,.@-]+/)*[\w+=,.@-]+", arn, re.ASCII
    ):
        raise InvalidValue(
            f"names {arn!r}, which is not the ARN of an IAM role or user",
            "specify an ARN such as arn:aws:iam::<account>:role/<name>",
        )
    if ":role/aws-service-role/" in arn:
        raise InvalidValue(
            f"names {arn!r}, a role that only an AWS service can assume",
            "specify a role or user that you sign in with",
        )
    return arn


def endpoint_cidr(written: str) -> str:
    """Accept a range that calls can come from, but not the whole internet."""
    addresses = cidr(8, 32).read(written)
    if _overlaps(addresses, _NON_SOURCES):
        raise InvalidValue(
            f"names {addresses}, whose addresses cannot be the source of a call",
            "specify the addresses of the cluster's users",
        )
    return addresses


def is_private(addresses: str) -> bool:
    """Return whether ``addresses`` cannot be the source of a call from the internet."""
    return _overlaps(addresses, _PRIVATE)


def _overlaps(addresses: str, others: tuple[str, ...]) -> bool:
    return any(IPv4Network(addresses).overlaps(IPv4Network(other)) for other in others)


def system_instance_type(name: str) -> str:
    """Accept an x86-64 type large enough for the add-ons."""
    if name not in SYSTEM_INSTANCE_TYPES:
        raise InvalidValue(
            f"names {name!r}, which is not a known x86-64 type for add-ons",
            did_you_mean(name, SYSTEM_INSTANCE_TYPES),
        )
    return name


def host_image_release() -> ValueKind[str]:
    """Accept the release version of an EKS-optimized AMI, as a node group does."""
    return matching(
        r"1\.\d{2}\.\d{1,2}-20\d{6}",
        noun="release version",
        reason="is not the release version of an EKS-optimized AMI",
        remedy="specify one such as 1.35.6-20260625; the SSM parameter "
        f"{newest_image('<version>', '<neuron or standard>')} holds the newest",
    )


def image_registry() -> ValueKind[str]:
    """Accept the host of a registry, with an optional repository prefix."""
    return matching(
        r"(?!docker\.io)[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?(/[a-z0-9._-]+)*",
        noun="registry",
        reason="is not a valid registry",
        remedy="specify the host and prefix of a registry to use instead of Docker Hub, without "
        "https:// or a trailing slash",
    )


def add_on_version(text: str) -> str:
    """Accept ``<add-on>=<version>``."""
    name, _, version = text.partition("=")
    if name not in ADD_ONS:
        raise InvalidValue(f"names the unknown add-on {name!r}", did_you_mean(name, ADD_ONS))
    if not re.fullmatch(r"v\d+\.\d+\.\d+-eksbuild\.\d+", version, re.ASCII):
        example = ADD_ONS[name][DEFAULT_KUBERNETES_VERSION]
        raise InvalidValue(
            f"sets {name} to {version!r}, which is not an add-on version",
            f"write {name}=<a version listed by aws eks describe-addon-versions>, such as "
            f"{name}={example}",
        )
    return text


def chart_version(text: str) -> str:
    """Accept ``<chart>=<version>``."""
    name, _, version = text.partition("=")
    if name not in CHARTS:
        raise InvalidValue(f"names the unknown chart {name!r}", did_you_mean(name, CHARTS))
    if not re.fullmatch(r"v?\d+\.\d+\.\d+", version, re.ASCII):
        raise InvalidValue(
            f"sets {name} to {version!r}, which is not a chart version",
            f"write {name}=<major>.<minor>.<patch>, such as {name}={CHARTS[name].version}",
        )
    return text
