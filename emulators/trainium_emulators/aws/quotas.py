"""EC2 quotas of the emulated account: moto's Service Quotas has only VPC quotas."""

from collections.abc import Callable
from typing import Any

from moto.servicequotas.models import ServiceQuotasBackend

DEFAULT_VCPUS = 100_000.0

VALUES: dict[str, float] = {}
"""vCPUs by quota code; all other quotas have ``DEFAULT_VCPUS``."""


def install() -> None:
    """Answer GetServiceQuota for EC2."""
    get_moto_quota: Callable[..., dict[str, Any]] = ServiceQuotasBackend.get_service_quota

    def get(backend: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        if service_code != "ec2":
            return get_moto_quota(backend, service_code, quota_code)
        return {
            "ServiceCode": service_code,
            "QuotaCode": quota_code,
            "Value": VALUES.get(quota_code, DEFAULT_VCPUS),
            "Unit": "None",
            "Adjustable": True,
        }

    ServiceQuotasBackend.get_service_quota = get
