"""Settings of the emulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainium_emulators.kubernetes.rbac import ADMIN, Caller
from trainium_emulators.nodes.faults import NodeFault
from trainium_emulators.nodes.node import Engine, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorSettings:
    """Settings of a cluster."""

    aws_endpoint: str = ""
    """Endpoint of the AWS emulator that pods use; empty for none."""
    processes_per_node: int = 1
    processes_of: Mapping[str, int] = field(default_factory=dict)
    """Processes per node for individual workloads, by the workload label of their pods."""
    addresses: str = "127.0.0"
    """The first three octets of the pods' loopback addresses."""
    engine: Engine | None = None
    niceness: int = 0
    """Niceness of the pods' processes."""
    take_fault: Callable[[str], NodeFault | None] = lambda run: None
    """Removes and returns the fault armed for a run."""
    claims: Path | None = None
    """Folder for the files of claims, as ``<namespace>/<claim>``; None for a temporary one."""
    identify: Callable[[str], Caller | None] = lambda token: ADMIN
    """Returns the caller of a bearer token; None if the token is unknown."""
    open_stream: Callable[[str, str, str], Stream] | None = None
    """Opens a log stream by region, group and name; None if there is no CloudWatch."""
    count_nodes: bool = False
    """True if pods need a node with free resources; False if they always get one."""
