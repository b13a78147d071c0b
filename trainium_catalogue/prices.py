"""Monthly list prices of resources that a deployment may leave in an account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PRICES_OF: Final = "2026-06"
"""Month of the prices in us-east-1, without free tiers and discounts. For orientation only."""
HOURS_PER_MONTH: Final = 730
_VPC = "https://aws.amazon.com/vpc/pricing/"
_LUSTRE = "https://aws.amazon.com/fsx/lustre/pricing/"


@dataclass(frozen=True, slots=True)
class MonthlyPrice:
    """Price of one unit for a month."""

    usd: float
    unit: str
    source: str


PRICES: Final[Mapping[str, MonthlyPrice]] = {
    "s3": MonthlyPrice(0.023, "GB in S3 Standard", "https://aws.amazon.com/s3/pricing/"),
    # PERSISTENT_2 on SSDs, by MB/s per TiB.
    "lustre-125": MonthlyPrice(0.145, "GB", _LUSTRE),
    "lustre-250": MonthlyPrice(0.210, "GB", _LUSTRE),
    "lustre-500": MonthlyPrice(0.340, "GB", _LUSTRE),
    "lustre-1000": MonthlyPrice(0.600, "GB", _LUSTRE),
    "gp3": MonthlyPrice(0.08, "GB", "https://aws.amazon.com/ebs/pricing/"),
    "ecr": MonthlyPrice(0.10, "GB", "https://aws.amazon.com/ecr/pricing/"),
    "nat-gateway": MonthlyPrice(0.045 * HOURS_PER_MONTH, "gateway, without traffic", _VPC),
    "interface-endpoint": MonthlyPrice(
        0.01 * HOURS_PER_MONTH,
        "zone, without traffic",
        "https://aws.amazon.com/privatelink/pricing/",
    ),
    "address": MonthlyPrice(0.005 * HOURS_PER_MONTH, "public IPv4 address", _VPC),
    "eks": MonthlyPrice(
        0.10 * HOURS_PER_MONTH, "control plane", "https://aws.amazon.com/eks/pricing/"
    ),
    "kms": MonthlyPrice(1.0, "key", "https://aws.amazon.com/kms/pricing/"),
    "secret": MonthlyPrice(0.40, "secret", "https://aws.amazon.com/secrets-manager/pricing/"),
    "logs": MonthlyPrice(0.03, "GB", "https://aws.amazon.com/cloudwatch/pricing/"),
}
"""Prices by kind; kinds without a price cost nothing."""
