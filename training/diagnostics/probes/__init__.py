"""Probes that check the claims of docs/claims.toml from inside a node's container."""

from training.diagnostics.probes import container, machine, storage
from training.diagnostics.probes.node import PROBES, ProbedNode, VerifyResult

# Importing the modules registers their probes.
__all__ = ["PROBES", "ProbedNode", "VerifyResult", "container", "machine", "storage"]
