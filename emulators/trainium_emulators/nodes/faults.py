"""Faults that the executor injects into a node from outside, on the first attempt only."""

import json
import signal
import threading
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
    "reclaim-child": signal.SIGTERM,
    "reclaim-main": signal.SIGTERM,
}
_OF_MAIN = ("kill-main", "lose-host", "reclaim-main")
_RECLAIMED = ("reclaim-child", "reclaim-main")
STOP_TIMEOUT_S = 120.0
"""Time between SIGTERM and SIGKILL on a host that is reclaimed: ECS_CONTAINER_STOP_TIMEOUT of
Batch's hosts, and the notice of a Spot interruption."""

KINDS = (*_SIGNALS, "preflight-failure", NO_CAPACITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    """A fault armed for a job."""

    kind: str
    run: str | None = None
    """Name of the job to hit; None for the next one."""
    after: str = WORKING
    """Beginning of a line in the main node's log; the fault is injected right after it."""
    after_key: str = ""
    """Pattern of a key instead: the fault is injected once any bucket has such an object."""
    after_path: str = ""
    """Pattern of a path that the object must list among its ``files``; empty for any object."""
    has_object: Callable[[str, str], bool] = lambda key, path: False
    """Tells whether any bucket has an object whose key, and a path in it, match patterns."""

    @classmethod
    def parse(
        cls, text: str, has_object: Callable[[str, str], bool] = lambda key, path: False
    ) -> "NodeFault":
        """Read the JSON that arms a fault."""
        given = json.loads(text)
        return cls(
            kind=given["kind"],
            run=given.get("run"),
            after=given.get("after", WORKING),
            after_key=given.get("after_key", ""),
            after_path=given.get("after_path", ""),
            has_object=has_object,
        )

    @property
    def takes_host(self) -> bool:
        """True if the host is lost, along with the agent that reports exit codes."""
        return self.kind == "lose-host"

    @property
    def takes_main(self) -> bool:
        """True if the main node's host is lost, at once or after a warning."""
        return self.kind in ("lose-host", "reclaim-main")

    def open_files(self, index: int) -> int | None:
        """Open-file limit that the node starts with, or None for the usual one."""
        return FEW_OPEN_FILES if self.kind == "preflight-failure" and index == CHILD else None

    def inject(
        self,
        nodes: Mapping[int, NodeProcess],
        *,
        main_index: int,
        before: Callable[[], None] = lambda: None,
        take_back: Callable[[int], None] | None = None,
    ) -> str | None:
        """Hit a node once the nodes work together; return what was done.

        Args:
            nodes: The running nodes, by index.
            main_index: Index of the main node.
            before: Called just before the node is hit.
            take_back: Takes a node back with a warning. Default: SIGTERM, and SIGKILL later.
        """
        if self.kind not in _SIGNALS:
            return None
        victim = main_index if self.kind in _OF_MAIN else CHILD

        def has_ended() -> bool:
            return victim in nodes and nodes[victim].exit_code() is not None

        def is_time() -> bool:
            return has_ended() or (victim in nodes and self._is_due(nodes[main_index]))

        if not wait_for(is_time, WORKING_WITHIN_S):
            return f"node {victim} was not hit: {self._awaited} did not come in time"
        if has_ended():
            return f"node {victim} was not hit: it ended before {self._awaited}"
        before()
        number, node = _SIGNALS[self.kind], nodes[victim]
        if self.kind not in _RECLAIMED:
            node.send(number)
            return f"{number.name} to node {victim}, process {node.pid}"
        if take_back is None:
            stop = threading.Thread(target=node.stop, args=(STOP_TIMEOUT_S,), daemon=True)
            stop.start()
        else:
            take_back(victim)
        return f"node {victim}, process {node.pid}, is reclaimed: SIGTERM, SIGKILL later"

    def _is_due(self, main: NodeProcess) -> bool:
        if self.after_key:
            return self.has_object(self.after_key, self.after_path)
        return any(line.startswith(self.after) for line in list(main.lines))

    @property
    def _awaited(self) -> str:
        if not self.after_key:
            return f"the line {self.after!r}"
        return self.after_key + (f" with {self.after_path}" if self.after_path else "")
