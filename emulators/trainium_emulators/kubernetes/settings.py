"""Settings of the emulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainium_emulators.kubernetes.rbac import Caller, everybody_is_admin
from trainium_emulators.nodes.faults import NodeFault
from trainium_emulators.nodes.node import Engine


def no_fault(run: str) -> NodeFault | None:
    """Provoke no fault, which is the default."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorSettings:
    """Settings of one cluster."""

    aws_endpoint: str = ""
    """Emulator of AWS that pods talk to; empty: none."""
    processes_per_node: int = 1
    processes_of: Mapping[str, int] = field(default_factory=dict)
    """Processes per node of single workloads, by the label of their pods."""
    addresses: str = "127.0.0"
    """The first three numbers of the pods' loopback addresses."""
    engine: Engine | None = None
    take_fault: Callable[[str], NodeFault | None] = no_fault
    """Hands out the fault that is armed for a run, once."""
    claims: Path | None = None
    """Folder for the files of claims, in ``<namespace>/<claim>``; None: one of its own."""
    identify: Callable[[str], Caller | None] = everybody_is_admin
    """Tells who sends a bearer token; None for nobody that the cluster knows."""
    count_nodes: bool = False
    """True: pods need a node with room; false: there always is one."""
