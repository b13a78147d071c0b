"""A Kubernetes cluster's stand-in: an API server, Volcano and a kubelet on one machine."""

from rehearsal.kubernetes.cluster import Cluster, serve
from rehearsal.kubernetes.settings import Settings

__all__ = ["Cluster", "Settings", "serve"]
