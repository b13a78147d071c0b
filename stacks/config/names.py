"""Kinds of names, addresses and types defined by AWS or this project."""

from __future__ import annotations

import re
from ipaddress import IPv4Network

from stacks.config.kinds import ValueKind, cidr, comma_separated, matching, text
from stacks.config.refusal import Unfit
from trainium_catalogue.charts import CHARTS
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.eks import ADD_ONS, DEFAULT_KUBERNETES_VERSION, SYSTEM_INSTANCE_TYPES
from trainium_catalogue.instances import CPU_INSTANCE_TYPES
from trainium_catalogue.suggest import did_you_mean

LOG_RETENTION_DAYS = frozenset(
    {1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096}
    | {1827, 2192, 2557, 2922, 3288, 3653}
)
"""Retention periods that PutRetentionPolicy accepts (CloudWatch Logs API reference)."""

_MOST_DEPLOYMENT_CHARACTERS = 24
# ECR allows single hyphens between letters and digits; the other places allow more.
_DEPLOYMENT = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", re.ASCII)

_DIGEST = r"@sha256:[0-9a-f]{64}"
_TAG = r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_REPOSITORY = r"(?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"

# Ranges that do not occur on the internet (RFC 1918, RFC 6598).
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
# Ranges that no call can come from: this network, loopback, link-local, multicast and reserved
# (RFC 6890).
_NOBODY = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")


def deployment_name() -> ValueKind[str]:
    """Part of the names of stacks, repositories and SSM parameters; valid in all of them."""

    def read(value: object) -> str:
        name = text(value)
        if len(name) > _MOST_DEPLOYMENT_CHARACTERS:
            raise Unfit(
                f"has {len(name)} characters",
                f"use at most {_MOST_DEPLOYMENT_CHARACTERS}, "
                "for it becomes a part of longer names that AWS limits",
            )
        if not _DEPLOYMENT.fullmatch(name):
            raise Unfit(
                "does not fit the names of stacks, repositories and parameters",
                "use lower-case letters, digits and single hyphens between them, "
                "beginning with a letter",
            )
        return name

    return ValueKind(noun="name", read=read)


def orchestrators() -> ValueKind[tuple[Orchestrator, ...]]:
    """``batch``, ``eks``, or both, as a list or as that word."""
    listed = comma_separated(_orchestrator, noun="`batch`, `eks` or `both`")

    def read(value: object) -> tuple[Orchestrator, ...]:
        named = [*Orchestrator] if value == "both" else sorted(listed.read(value))
        return tuple(Orchestrator(name) for name in named)

    return ValueKind(noun=listed.noun, read=read)


def _orchestrator(name: str) -> str:
    if name not in [*Orchestrator]:
        raise Unfit(
            f"names the unknown orchestrator {name!r}", did_you_mean(name, (*Orchestrator, "both"))
        )
    return name


def region_name() -> ValueKind[str]:
    """A region's name; another check tells whether it offers the type."""
    return matching(
        r"[a-z]{2}(?:-[a-z]+)+-[0-9]",
        noun="region",
        reason="is not a region's name",
        remedy="give one such as us-west-2",
    )


def zone() -> ValueKind[str]:
    """A zone id (``usw2-az4``) or a zone name (``us-west-2d``)."""
    return matching(
        r"[a-z]+[0-9]-az[0-9]+|[a-z]{2}(?:-[a-z]+)+-[0-9][a-z]",
        noun="zone id",
        reason="is neither a zone id nor a zone name",
        remedy="give a zone id such as usw2-az4",
    )


def is_zone_name(zone: str) -> bool:
    """Tell ``us-west-2d`` from ``usw2-az4``."""
    return "-az" not in zone


def image_reference() -> ValueKind[str]:
    """A container image with a tag or digest that always means the same image."""
    well_formed = matching(
        f"{_REPOSITORY}(?:{_TAG})?(?:{_DIGEST})?",
        noun="image",
        reason="is not an image reference",
        remedy="give registry/repository:tag, in lower case up to the tag",
    )

    def read(value: object) -> str:
        reference = well_formed.read(value)
        name = reference.rpartition("/")[2]
        if "@" not in name and (":" not in name or name.endswith(":latest")):
            raise Unfit(
                "may be another image tomorrow", "give a tag other than latest, or a digest"
            )
        return reference

    return ValueKind(noun=well_formed.noun, read=read)


def cpu_instance_type(name: str) -> str:
    """Accept an x86-64 type large enough for a CPU job."""
    if name not in CPU_INSTANCE_TYPES:
        raise Unfit(
            f"names {name!r}, which is not a known x86-64 type with room for a job of 16 vCPUs and "
            "56 GiB",
            did_you_mean(name, CPU_INSTANCE_TYPES),
        )
    return name


def data_uri(uri: str) -> str:
    """Accept a prefix in a bucket."""
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.'()/-]*)?", uri):
        raise Unfit(f"names {uri!r}, which is not a prefix in a bucket", "write s3://bucket/prefix")
    return uri


def lustre_dns_name() -> ValueKind[str]:
    """The DNS name of a file system, as FSx shows it."""
    return matching(
        r"fs-[0-9a-f]{8,17}\.fsx\.[a-z0-9-]+\.amazonaws\.com(\.cn)?",
        noun="DNS name",
        reason="is not the DNS name of a file system",
        remedy="give one such as fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    )


def lustre_mount_name() -> ValueKind[str]:
    """The mount name of a file system, as FSx shows it."""
    return matching(
        r"[a-z0-9]{4,16}",
        noun="mount name",
        reason="is not a mount name",
        remedy="give what FSx shows as the mount name, for example fqgwbbmv",
    )


def kms_key_arn() -> ValueKind[str]:
    """The ARN of a KMS key: IAM policies accept no alias as a resource (KMS Developer Guide)."""
    return matching(
        r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+",
        noun="key ARN",
        reason="is not the ARN of a KMS key",
        remedy="give one such as arn:aws:kms:us-west-2:111122223333:key/1234abcd-12ab-34cd-56ef-"
        "1234567890ab, and not an alias",
    )


def placement_group_name() -> ValueKind[str]:
    """The name of a placement group, as EC2 shows it: up to 255 ASCII characters."""
    return matching(
        r"[A-Za-z0-9._/()\[\]:@+=&;{}!$*-][ A-Za-z0-9._/()\[\]:@+=&;{}!$*-]{0,254}",
        noun="group name",
        reason="is not the name of a placement group",
        remedy="give the group's name, up to 255 letters, digits, hyphens and the like",
    )


def bucket_name() -> ValueKind[str]:
    """The name of an S3 bucket, not its URI or ARN."""
    return matching(
        r"(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
        noun="bucket name",
        reason="is not the name of a bucket",
        remedy="give 3 to 63 lower-case letters, digits, hyphens and dots, without s3:// or a path",
    )


def principal_arn(arn: str) -> str:
    """Accept the ARN of a role or a user, as access entries do."""
    if re.fullmatch(r"arn:aws[a-z-]*:sts::\d{12}:assumed-role/.+", arn):
        raise Unfit(
            f"names the session {arn!r}, not a principal",
            "give its role: arn:aws:iam::<account>:role/<name>",
        )
    # Every region that sells Trainium is in the partition aws.
    if not re.fullmatch(
        r"arn:aws:iam::\d{12}:(role|user)/([\w+=,.@-]+/)*[\w+=,.@-]+", arn, re.ASCII
    ):
        raise Unfit(
            f"names {arn!r}, which is not the ARN of an IAM role or user",
            "give arn:aws:iam::<account>:role/<name>",
        )
    if ":role/aws-service-role/" in arn:
        raise Unfit(
            f"names {arn!r}, a role that only a service of AWS can take on",
            "give a role or user that you sign in as",
        )
    return arn


def endpoint_cidr(written: str) -> str:
    """Accept a range that calls can come from, but not everybody's."""
    addresses = cidr(8, 32).read(written)
    if _overlaps(addresses, _NOBODY):
        raise Unfit(
            f"names {addresses}, which no call comes from",
            "give the addresses of those who are to use the cluster",
        )
    return addresses


def is_private(addresses: str) -> bool:
    """Tell whether ``addresses`` cannot be the source of a call from the internet."""
    return _overlaps(addresses, _PRIVATE)


def _overlaps(addresses: str, others: tuple[str, ...]) -> bool:
    return any(IPv4Network(addresses).overlaps(IPv4Network(other)) for other in others)


def system_instance_type(name: str) -> str:
    """Accept an x86-64 type with room for the add-ons."""
    if name not in SYSTEM_INSTANCE_TYPES:
        raise Unfit(
            f"names {name!r}, which is not a known x86-64 type for add-ons",
            did_you_mean(name, SYSTEM_INSTANCE_TYPES),
        )
    return name


def host_image_release() -> ValueKind[str]:
    """The release version of an EKS-optimised host image, as a node group has it."""
    return matching(
        r"1\.\d{2}\.\d{1,2}-20\d{6}",
        noun="release version",
        reason="is not the release version of a host image",
        remedy="give one such as 1.35.6-20260625; SSM's parameter "
        "/aws/service/eks/optimized-ami/<version>/amazon-linux-2023/x86_64/<neuron or standard>"
        "/recommended/release_version has the newest",
    )


def image_registry() -> ValueKind[str]:
    """The host of a registry, with a prefix of its repositories."""
    return matching(
        r"(?!docker\.io)[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?(/[a-z0-9._-]+)*",
        noun="registry",
        reason="is not a registry other than Docker Hub",
        remedy="give its host and prefix, without https:// and a slash at the end",
    )


def add_on_version(text: str) -> str:
    """Accept ``<add-on>=<version>``."""
    name, _, version = text.partition("=")
    if name not in ADD_ONS:
        raise Unfit(f"names the unknown add-on {name!r}", did_you_mean(name, ADD_ONS))
    if not re.fullmatch(r"v\d+\.\d+\.\d+-eksbuild\.\d+", version, re.ASCII):
        example = ADD_ONS[name][DEFAULT_KUBERNETES_VERSION]
        raise Unfit(
            f"gives {name} the version {version!r}",
            f"write {name}=<a version of aws eks describe-addon-versions>, as in {name}={example}",
        )
    return text


def chart_version(text: str) -> str:
    """Accept ``<chart>=<version>``."""
    name, _, version = text.partition("=")
    if name not in CHARTS:
        raise Unfit(f"names the unknown chart {name!r}", did_you_mean(name, CHARTS))
    if not re.fullmatch(r"v?\d+\.\d+\.\d+", version, re.ASCII):
        raise Unfit(
            f"gives {name} the version {version!r}",
            f"write {name}=<three numbers>, as in {name}={CHARTS[name].version}",
        )
    return text
