"""Faults that the executor injects into a node from outside, on the first attempt only."""

import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainium_emulators.nodes.node import NodeProcess, wait_for

NO_CAPACITY = "no-capacity"
CHILD = 1
"""Index of the node hit by a fault of a child."""
FEW_OPEN_FILES = 256
"""Open-file limit of a node that is meant to fail preflight."""
WORKING = "first all-reduce"
"""Line in the main node's log which shows that all nodes work together."""
WORKING_WITHIN_S = 600.0

_SIGNALS = {
    "kill-child": signal.SIGKILL,
    "kill-main": signal.SIGKILL,
    "hang-child": signal.SIGSTOP,
    "lose-host": signal.SIGKILL,
}
_OF_MAIN = ("kill-main", "lose-host")

KINDS = (*_SIGNALS, "preflight-failure", NO_CAPACITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    """A fault armed for a job."""

    kind: str
    run: str | None = None
    """Name of the job to hit; None for the next one."""
    after: str = WORKING
    """Beginning of a line in the main node's log; the fault is injected right after it."""

    @classmethod
    def parse(cls, text: str) -> "NodeFault":
        """Read the JSON that arms a fault."""
        given = json.loads(text)
        return cls(kind=given["kind"], run=given.get("run"), after=given.get("after", WORKING))

    @property
    def takes_host(self) -> bool:
        """True if the host is lost, along with the agent that reports exit codes."""
        return self.kind == "lose-host"

    def open_files(self, index: int) -> int | None:
        """Open-file limit that the node starts with, or None for the usual one."""
        return FEW_OPEN_FILES if self.kind == "preflight-failure" and index == CHILD else None

    def inject(
        self,
        nodes: Mapping[int, NodeProcess],
        *,
        main_index: int,
        before: Callable[[], None] = lambda: None,
    ) -> str | None:
        """Hit a node's launcher once the nodes work together; return what was done."""
        if self.kind not in _SIGNALS:
            return None
        victim = main_index if self.kind in _OF_MAIN else CHILD

        def working() -> bool:
            lines = list(nodes[main_index].lines)
            return victim in nodes and any(line.startswith(self.after) for line in lines)

        if not wait_for(working, WORKING_WITHIN_S):
            return f"node {victim} was not hit: the nodes did not work together in time"
        before()
        number = _SIGNALS[self.kind]
        nodes[victim].send(number)
        return f"{number.name} to node {victim}, process {nodes[victim].pid}"
