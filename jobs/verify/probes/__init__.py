"""Probes that look from the desk whether claims hold: read-only calls, and what jobs have left."""

from jobs.verify.probes import account, cluster, hosts, network, runs
from jobs.verify.probes.desk import PROBES, Desk

# The modules are imported for what they register.
__all__ = ["PROBES", "Desk", "account", "cluster", "hosts", "network", "runs"]
