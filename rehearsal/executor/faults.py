"""Faults that the executor provokes in a node, from outside, on the first attempt only."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from rehearsal.executor.node import Node, wait_for

NO_CAPACITY = "no-capacity"
CHILD = 1
"""The node that a child's fault hits."""
FEW_OPEN_FILES = 256
"""File limit of a node that is meant to fail preflight."""
WORKING = "first all-reduce"
"""A line of the main node's log by which all nodes are at work together."""
WORKING_WITHIN_S = 120.0

_SIGNALS = {
    "kill-child": signal.SIGKILL,
    "kill-main": signal.SIGKILL,
    "hang-child": signal.SIGSTOP,
}

KINDS = (*_SIGNALS, "preflight-failure", NO_CAPACITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, armed for the next job."""

    kind: str

    def open_files(self, index: int) -> int | None:
        """File limit that the node starts with, or None for the usual one."""
        return FEW_OPEN_FILES if self.kind == "preflight-failure" and index == CHILD else None

    def inject(self, nodes: Mapping[int, Node], *, main_index: int) -> str | None:
        """Hit the launcher of a node once the nodes work together; says what was done."""
        if self.kind not in _SIGNALS:
            return None
        victim = main_index if self.kind == "kill-main" else CHILD

        def working() -> bool:
            lines = list(nodes[main_index].lines)
            return victim in nodes and any(line.startswith(WORKING) for line in lines)

        if not wait_for(working, WORKING_WITHIN_S):
            return f"node {victim} was not hit: the nodes did not work together in time"
        number = _SIGNALS[self.kind]
        nodes[victim].send(number)
        return f"{number.name} to node {victim}, process {nodes[victim].pid}"
