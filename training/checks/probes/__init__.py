"""Probes that look from inside a node's container whether the claims of docs/claims.toml hold."""

from training.checks.probes import container, machine, storage
from training.checks.probes.node import PROBES, Check, Node

# The modules are imported for what they register.
__all__ = ["PROBES", "Check", "Node", "container", "machine", "storage"]
