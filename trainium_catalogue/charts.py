"""The pinned Helm charts of a cluster; the constructs set their values.

Versions: releases of github.com/aws-neuron/neuron-helm-charts, and the chart files of
github.com/aws/eks-charts, github.com/kubernetes-sigs/aws-fsx-csi-driver and
github.com/volcano-sh/volcano.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

VOLCANO_VERSION: Final = "1.15.1"
"""The version that the cluster runs, the CLI supports and the emulator follows line by line.

Its chart differs from 1.15.0's only in the version number (git diff v1.15.0 v1.15.1 --
installer/helm). Pushing the tag publishes chart and images (.github/workflows/release.yaml and
release_chart.yaml); public download lists include volcano-1.15.1.tgz from the repository below."""
VOLCANO_KUBERNETES: Final = frozenset({"1.34", "1.35"})
"""Supported Kubernetes versions that Volcano's README lists for this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart's source and its destination."""

    name: str
    """Our name for the chart and its Helm release."""
    chart: str
    """An ``oci://`` reference, or the chart's name in ``repository``."""
    version: str
    repository: str | None
    namespace: str


_CHARTS = (
    Chart(
        name="neuron",
        chart="oci://public.ecr.aws/neuron/neuron-helm-chart",
        # The chart of SDK 2.31. Its device plugin uses the driver, not the runtime in the
        # container, which depends on the Neuron release.
        version="1.9.0",
        repository=None,
        namespace="kube-system",
    ),
    Chart(
        name="efa",
        chart="aws-efa-k8s-device-plugin",
        version="v0.5.30",
        repository="https://aws.github.io/eks-charts",
        namespace="kube-system",
    ),
    Chart(
        name="fsx",
        chart="aws-fsx-csi-driver",
        version="1.17.0",
        repository="https://kubernetes-sigs.github.io/aws-fsx-csi-driver",
        namespace="kube-system",
    ),
    Chart(
        name="volcano",
        chart="volcano",
        version=VOLCANO_VERSION,
        repository="https://volcano-sh.github.io/helm-charts",
        namespace="volcano-system",
    ),
)

CHARTS: Mapping[str, Chart] = MappingProxyType({chart.name: chart for chart in _CHARTS})
"""All charts, by our names."""

NEURON_MONITOR_IMAGE = "public.ecr.aws/neuron/neuron-monitor:1.3.0"
NEURON_MONITOR_PORT = 8000
"""The port of AWS's own DaemonSet (Neuron documentation, Neuron Monitor DaemonSet)."""

FLUENT_BIT_IMAGE = (
    "public.ecr.aws/aws-observability/aws-for-fluent-bit:3.4.15"
    "@sha256:88e1b56cedb230486afeca6eeb26c5f6bd59c48879d0054d1674d5a58838c607"
)
"""AWS's own build, of Fluent Bit 5.0.9; the digest covers both architectures."""

# Accounts of the newer regions that offer Trainium; the older regions share one (EKS User Guide,
# View Amazon container image registries for Amazon EKS add-ons).
_REGISTRY_ACCOUNTS = {"ap-south-2": "900889452093", "ap-southeast-4": "491585149902"}
_REGISTRY_ACCOUNT = "602401143452"


def eks_registry(region: str) -> str:
    """Return the registry of EKS's own images in ``region``."""
    account = _REGISTRY_ACCOUNTS.get(region, _REGISTRY_ACCOUNT)
    return f"{account}.dkr.ecr.{region}.amazonaws.com"
