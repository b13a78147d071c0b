"""Emulates a Kubernetes cluster on one machine: API server, Volcano and kubelet."""

from trainium_emulators.kubernetes.cluster import ClusterEmulator, serve
from trainium_emulators.kubernetes.settings import ClusterSettings

__all__ = ["ClusterEmulator", "ClusterSettings", "serve"]
