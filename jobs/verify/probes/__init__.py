"""Probes that check claims from the desk: with read-only calls, and from what jobs left behind."""

from jobs.verify.probes import account, cluster, hosts, network, runs
from jobs.verify.probes.desk import PROBES, Desk

# Importing the modules registers their probes.
__all__ = ["PROBES", "Desk", "account", "cluster", "hosts", "network", "runs"]
