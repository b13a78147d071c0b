"""Client-side probes of claims, using read-only calls and the results of earlier jobs."""

from jobs.verify.probes import account, cluster, hosts, network, runs
from jobs.verify.probes.context import PROBES, ClientContext

# Importing the modules registers their probes.
__all__ = ["PROBES", "ClientContext", "account", "cluster", "hosts", "network", "runs"]
