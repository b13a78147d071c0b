"""Kinds of names that only the EKS half has."""

from __future__ import annotations

import re
from ipaddress import IPv4Network

from stacks.config import kinds
from stacks.config.refusal import Unfit
from trainium_catalogue.charts import CHARTS
from trainium_catalogue.eks import SYSTEM_INSTANCE_TYPES
from trainium_catalogue.suggest import did_you_mean

# Ranges that are never seen on the internet (RFC 1918, RFC 6598).
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
# Ranges that no call comes from: this network, loopback, link-local, multicast and reserved
# (RFC 6890).
_NOBODY = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")


def principal_arn(arn: str) -> str:
    """Accept what an access entry takes: a role or a user."""
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
    """Accept a range of addresses that calls can come from, and not everybody's."""
    cidr = kinds.cidr(8, 32).read(written)
    if _overlaps(cidr, _NOBODY):
        raise Unfit(
            f"names {cidr}, which no call comes from",
            "give the addresses of those who are to use the cluster",
        )
    return cidr


def is_private(cidr: str) -> bool:
    """Whether no call from the internet comes from ``cidr``."""
    return _overlaps(cidr, _PRIVATE)


def _overlaps(cidr: str, others: tuple[str, ...]) -> bool:
    return any(IPv4Network(cidr).overlaps(IPv4Network(other)) for other in others)


def system_instance_type(name: str) -> str:
    """Accept an x86-64 type with room for the add-ons."""
    if name not in SYSTEM_INSTANCE_TYPES:
        raise Unfit(
            f"names {name!r}, which is not a known x86-64 type for add-ons",
            did_you_mean(name, SYSTEM_INSTANCE_TYPES),
        )
    return name


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
