"""A Kubernetes cluster's stand-in: an API server, Volcano and a kubelet on one machine."""

from trainium_emulators.kubernetes.cluster import Cluster, serve
from trainium_emulators.kubernetes.settings import Settings

__all__ = ["Cluster", "Settings", "serve"]
