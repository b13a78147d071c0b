"""The choices that EKS offers: Kubernetes versions, host images, ordinary types for add-ons, zones.

Versions of host images: CHANGELOG.md of github.com/awslabs/amazon-eks-ami, which lists, for each
release, Kubernetes' patch versions and the Neuron driver (``aws-neuronx-dkms``).
"""

from collections.abc import Mapping
from types import MappingProxyType

DEFAULT_KUBERNETES_VERSION = "1.35"

KUBERNETES_VERSIONS: Mapping[str, str] = MappingProxyType(
    {"1.34": "1.34.9", "1.35": "1.35.6", "1.36": "1.36.2"}
)
"""Minor version to the patch version of the host images below, in all of them the same.

One minor version around kubectl 1.35, which is what the stack's own kubectl may talk to
(Kubernetes version skew policy).
"""

SYSTEM_AMI_DATE = "20260714"
"""Date of the host image of the system nodes: the newest release of all, with its security fixes.

Theirs need no Neuron driver, so they do not wait for what a Neuron release is tied to."""

NEWER_KERNEL = frozenset({"1.36"})
"""Versions whose host images run Linux 6.18; FSx lists no Lustre client for it that we found."""

SYSTEM_INSTANCE_TYPES = frozenset(
    f"{family}.{size}"
    for family in ("m5", "m5a", "m6a", "m6i", "m7a", "m7i", "r5", "r6i", "r7i")
    for size in ("xlarge", "2xlarge", "4xlarge")
)
"""x86-64, because the training image also serves TensorBoard; large enough for all add-ons."""

DEFAULT_SYSTEM_INSTANCE_TYPES = ("m5.xlarge", "m7i.xlarge")
"""Sold in every zone that sells a Trainium type."""
SYSTEM_NODES = 2
"""Two, so that an update of one leaves the cluster its DNS."""
USD_PER_HOUR_ESTIMATE = 0.10 + SYSTEM_NODES * 0.192
"""Control plane and system nodes, on-demand list prices in us-east-1. For orientation only."""

DEFAULT_IDLE_MINUTES = 30
"""Long enough to read a traceback and submit again on the same nodes; a new one takes about ten
minutes until its image is pulled. At most 11 USD for an idle trn1.32xlarge."""

POD_ADDRESSES = 12
"""Addresses that the network plug-in keeps for the pods of a node (MINIMUM_IP_TARGET)."""
SPARE_ADDRESSES = 2
"""And how many more than are taken (WARM_IP_TARGET)."""
CLUSTER_ADDRESSES = 8
"""Interfaces of the control plane (EKS User Guide: up to four) and of the stack's own functions."""


def host_image_version(kubernetes_version: str, ami_date: str) -> str:
    """Release version of a host image, as a node group pins it."""
    return f"{KUBERNETES_VERSIONS[kubernetes_version]}-{ami_date}"
