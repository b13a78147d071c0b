"""A Kubernetes cluster's stand-in: an API server, Volcano and a kubelet on one machine."""

from trainium_emulators.kubernetes.cluster import ClusterEmulator, serve
from trainium_emulators.kubernetes.settings import ClusterSettings

__all__ = ["ClusterEmulator", "ClusterSettings", "serve"]
