"""Ordinary instances for data and export jobs: enough of them to find Spot capacity anywhere.

Sizes: ``aws ec2 describe-instance-types`` (x86-64, because the training image is).
"""

from collections.abc import Mapping
from types import MappingProxyType

JOB_VCPUS = 16
JOB_MEMORY_MIB = 57_344
"""56 GiB: what the ECS agent of a 64 GiB instance registers, with room to spare."""
USD_PER_JOB_HOUR_ESTIMATE = 0.77
"""On-demand list price of an m6i.4xlarge in us-east-1; Spot costs less. For orientation only."""

_GIB = 1024
_FAMILIES = {"m5": 4, "m5a": 4, "m6a": 4, "m6i": 4, "m7a": 4, "m7i": 4} | {
    "r5": 8, "r6a": 8, "r6i": 8, "r7a": 8, "r7i": 8,
}  # fmt: skip
"""GiB of memory for each vCPU."""
_SIZES = {"4xlarge": 16, "8xlarge": 32, "12xlarge": 48, "16xlarge": 64}

CPU_INSTANCE_TYPES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        f"{family}.{size}": (vcpus, vcpus * gib_per_vcpu * _GIB)
        for family, gib_per_vcpu in _FAMILIES.items()
        for size, vcpus in _SIZES.items()
    }
)
"""Name to vCPUs and memory in MiB; each holds one job at least."""

DEFAULT_CPU_INSTANCE_TYPES = ("m6i.4xlarge", "m6a.4xlarge", "m5.4xlarge", "m5a.4xlarge")
"""Several pools of Spot capacity; sold in every region that sells Trainium."""
