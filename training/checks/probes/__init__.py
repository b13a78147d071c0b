"""Probes that look from inside a node's container whether the claims of docs/claims.toml hold."""

from training.checks.probes import container, machine, storage
from training.checks.probes.node import PROBES, ProbedNode, VerifyResult

# The modules are imported for what they register.
__all__ = ["PROBES", "ProbedNode", "VerifyResult", "container", "machine", "storage"]
