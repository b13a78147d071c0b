"""EC2's quotas in the emulated account: moto's Service Quotas knows those of VPC alone."""

from collections.abc import Callable
from typing import Any

from moto.servicequotas.models import ServiceQuotasBackend

PLENTY = 100_000.0

VALUES: dict[str, float] = {}
"""vCPUs by quota code; PLENTY for every other one, as there is room for everything here."""


def install() -> None:
    """Answer GetServiceQuota for EC2."""
    known: Callable[..., dict[str, Any]] = ServiceQuotasBackend.get_service_quota

    def get(backend: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        if service_code != "ec2":
            return known(backend, service_code, quota_code)
        return {
            "ServiceCode": service_code,
            "QuotaCode": quota_code,
            "Value": VALUES.get(quota_code, PLENTY),
            "Unit": "None",
            "Adjustable": True,
        }

    ServiceQuotasBackend.get_service_quota = get
