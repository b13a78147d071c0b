"""Probes that check the claims of docs/claims.toml from inside a node's container."""

from training.diagnostics.probes import container, machine, storage
from training.diagnostics.probes.node import PROBES, ProbedNode, VerifyResult

# The modules are imported for the probes they register.
__all__ = ["PROBES", "ProbedNode", "VerifyResult", "container", "machine", "storage"]
