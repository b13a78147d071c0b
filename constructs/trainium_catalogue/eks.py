"""The choices on EKS: Kubernetes versions, host images, instance types for add-ons, addresses.

Versions of host images: CHANGELOG.md of github.com/awslabs/amazon-eks-ami, which lists for each
release the Kubernetes patch versions and the Neuron driver (``aws-neuronx-dkms``).
"""

from collections.abc import Mapping
from types import MappingProxyType

DEFAULT_KUBERNETES_VERSION = "1.35"

KUBERNETES_VERSIONS: Mapping[str, str] = MappingProxyType(
    {"1.34": "1.34.9", "1.35": "1.35.6", "1.36": "1.36.2"}
)
"""Minor version to patch version, the same in all host images below.

One minor version either side of 1.35, which is all that the stack's own kubectl 1.35 supports
(Kubernetes version skew policy).
"""

SYSTEM_AMI_DATE = "20260714"
"""Date of the system nodes' host image: the newest release, with its security fixes.

System nodes need no Neuron driver, so no Neuron release holds their image back."""

NEWER_KERNEL = frozenset({"1.36"})
"""Versions whose host images run Linux 6.18, for which we found no Lustre client listed by FSx."""

SYSTEM_INSTANCE_TYPES = frozenset(
    f"{family}.{size}"
    for family in ("m5", "m5a", "m6a", "m6i", "m7a", "m7i", "r5", "r6i", "r7i")
    for size in ("xlarge", "2xlarge", "4xlarge")
)
"""x86-64, because the training image also serves TensorBoard; large enough for all add-ons."""

DEFAULT_SYSTEM_INSTANCE_TYPES = ("m5.xlarge", "m7i.xlarge")
"""Types sold in every zone that sells a Trainium type."""
SYSTEM_NODES = 2
"""Two, so that the cluster keeps its DNS while one is updated."""
USD_PER_HOUR_ESTIMATE = 0.10 + SYSTEM_NODES * 0.192
"""Control plane and system nodes, on-demand list prices in us-east-1. For orientation only."""

DEFAULT_IDLE_MINUTES = 30
"""Long enough to read a traceback and submit again on the same nodes; a new one takes about ten
minutes to start and pull its image. At most 11 USD for an idle trn1.32xlarge."""

POD_ADDRESSES = 12
"""Addresses that the network plug-in reserves for a node's pods (MINIMUM_IP_TARGET)."""
SPARE_ADDRESSES = 2
"""Addresses that it reserves beyond those in use (WARM_IP_TARGET)."""
CLUSTER_ADDRESSES = 8
"""Interfaces of the control plane (EKS User Guide: up to four) and the stack's own functions."""


def host_image_version(kubernetes_version: str, ami_date: str) -> str:
    """Release version of a host image, as pinned by a node group."""
    return f"{KUBERNETES_VERSIONS[kubernetes_version]}-{ami_date}"
