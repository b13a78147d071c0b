"""The choices on EKS: Kubernetes versions, AMIs, instance types for add-ons, addresses.

Versions of AMIs: CHANGELOG.md of github.com/awslabs/amazon-eks-ami, which lists for each
release the Kubernetes patch versions and the Neuron driver (``aws-neuronx-dkms``).
"""

from collections.abc import Mapping
from datetime import date
from types import MappingProxyType

from trainium_catalogue.instances import EfaLayout, InstanceType

DEFAULT_KUBERNETES_VERSION = "1.35"

KUBERNETES_VERSIONS: Mapping[str, str] = MappingProxyType(
    {"1.34": "1.34.9", "1.35": "1.35.6", "1.36": "1.36.2"}
)
"""Minor version to patch version, the same in the Neuron AMIs of all our releases.

The stack's kubectl 1.35 supports one minor version on either side (Kubernetes version skew policy).
"""

STANDARD_SUPPORT_ENDS: Mapping[str, date] = MappingProxyType(
    {"1.34": date(2026, 12, 2), "1.35": date(2027, 3, 27), "1.36": date(2027, 8, 2)}
)
"""Date on which EKS automatically upgrades a control plane of this version, because clusters have
the support type STANDARD (EKS User Guide, Kubernetes release calendar)."""
SUPPORT_WARNING_DAYS = 120
"""Synthesis warns from this many days before that date; EKS announces it at least 60 days ahead."""

OLD_IMAGE_DAYS = 120
"""Synthesis warns if the system nodes' image is older than this."""
SYSTEM_IMAGES: Mapping[str, str] = MappingProxyType(
    {"1.34": "1.34.10-20260903", "1.35": "1.35.7-20260903", "1.36": "1.36.3-20260903"}
)
"""Release versions of the system nodes' AMI (github.com/awslabs/amazon-eks-ami, release
v20260903); they need no Neuron driver, so they do not depend on the Neuron release."""

NEURON_DRIVERS_OF_IMAGES: Mapping[str, str] = MappingProxyType(
    {"20260409": "2.27.4.0", "20260610": "2.28.0.0", "20260714": "2.29.0.0"}
)
"""Date of the first Neuron AMI with each driver; the change log lists no newer one."""

ADD_ONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "coredns": {
            "1.34": "v1.13.2-eksbuild.24",
            "1.35": "v1.14.3-eksbuild.16",
            "1.36": "v1.14.3-eksbuild.16",
        },
        "eks-node-monitoring-agent": dict.fromkeys(KUBERNETES_VERSIONS, "v1.7.0-eksbuild.1"),
        "eks-pod-identity-agent": dict.fromkeys(KUBERNETES_VERSIONS, "v1.3.10-eksbuild.3"),
        "kube-proxy": {
            "1.34": "v1.34.6-eksbuild.25",
            "1.35": "v1.35.3-eksbuild.25",
            "1.36": "v1.36.0-eksbuild.21",
        },
        "vpc-cni": dict.fromkeys(KUBERNETES_VERSIONS, "v1.23.1-eksbuild.1"),
    }
)
"""EKS's own add-ons, pinned for each Kubernetes version; unpinned ones would never update.

Versions: EKS User Guide as of 2026-09-26 (coredns, kube-proxy, vpc-cni), the agents' releases."""

NEWER_KERNEL = frozenset({"1.36"})
"""Versions whose AMIs run Linux 6.18, for which we found no Lustre client in FSx's list."""

SYSTEM_INSTANCE_TYPES = frozenset(
    f"{family}.{size}"
    for family in ("m5", "m5a", "m6a", "m6i", "m7a", "m7i", "r5", "r6i", "r7i")
    for size in ("xlarge", "2xlarge", "4xlarge")
)
"""x86-64, because the node scaler runs in the training image; large enough for all add-ons."""

DEFAULT_SYSTEM_INSTANCE_TYPES = ("m5.xlarge", "m7i.xlarge")
"""Types offered in every zone that offers a Trainium type."""
SYSTEM_NODES = 2
"""Two, so that DNS stays available while one node is updated."""
USD_PER_HOUR_ESTIMATE = 0.10 + SYSTEM_NODES * 0.192
"""Control plane and system nodes, on-demand list prices in us-east-1. For orientation only."""

DEFAULT_IDLE_MINUTES = 30
"""Long enough to read a traceback and resubmit on the same nodes; a new node takes about ten
minutes to start and pull its image. At most 11 USD for an idle trn1.32xlarge."""

POD_ADDRESSES = 12
"""Addresses that the network plugin reserves for a node's pods (MINIMUM_IP_TARGET)."""
SPARE_ADDRESSES = 2
"""Addresses that it reserves beyond those in use (WARM_IP_TARGET)."""
CLUSTER_ADDRESSES = 8
"""Interfaces of the control plane (EKS User Guide: up to four) and the stack's own functions."""


def host_image_version(kubernetes_version: str, ami_date: str) -> str:
    """Return the release version of an AMI, as pinned by a node group."""
    return f"{KUBERNETES_VERSIONS[kubernetes_version]}-{ami_date}"


def newest_image(kubernetes_version: str, variant: str = "neuron") -> str:
    """Return the name of the SSM parameter that holds the release version of AWS's newest AMI."""
    return (
        f"/aws/service/eks/optimized-ami/{kubernetes_version}/amazon-linux-2023/x86_64/{variant}/"
        "recommended/release_version"
    )


def cluster_addresses_per_node(instance: InstanceType, layout: EfaLayout) -> int:
    """Count the addresses of a Trainium node in a cluster: its interfaces' and its pods'."""
    interfaces = instance.network_interfaces(layout)
    return sum(interface.takes_address for interface in interfaces) + POD_ADDRESSES
