"""Emulates a Kubernetes cluster on one machine: API server, Volcano and kubelet."""

from trainium_emulators.kubernetes.cluster import ClusterEmulator, serve
from trainium_emulators.kubernetes.settings import EmulatorSettings

__all__ = ["ClusterEmulator", "EmulatorSettings", "serve"]
