"""Settings of the emulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainium_emulators.kubernetes.rbac import Caller, everybody_is_admin
from trainium_emulators.nodes.faults import NodeFault
from trainium_emulators.nodes.node import Engine, Stream


def no_fault(run: str) -> NodeFault | None:
    """Inject no fault, which is the default."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorSettings:
    """Settings of a cluster."""

    aws_endpoint: str = ""
    """Endpoint of the AWS emulator that pods use; empty for none."""
    processes_per_node: int = 1
    processes_of: Mapping[str, int] = field(default_factory=dict)
    """Processes per node for individual workloads, by the label of their pods."""
    addresses: str = "127.0.0"
    """The first three numbers of the pods' loopback addresses."""
    engine: Engine | None = None
    take_fault: Callable[[str], NodeFault | None] = no_fault
    """Takes the fault that is armed for a run, once."""
    claims: Path | None = None
    """Folder for the files of claims, in ``<namespace>/<claim>``; None creates one."""
    identify: Callable[[str], Caller | None] = everybody_is_admin
    """Identifies the sender of a bearer token; None for an unknown one."""
    open_stream: Callable[[str, str, str], Stream] | None = None
    """Opens a log stream by region, group and name; None if there is no CloudWatch."""
    count_nodes: bool = False
    """True if pods need a node with free resources; false if there always is one."""
