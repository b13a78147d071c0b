"""Faults that the emulators inject into the nodes of a job, each at most once."""

import json
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainium_emulators.nodes.node import NodeProcess, wait_for

NO_CAPACITY = "no-capacity"
CHILD = 1
"""Index of the node into which child faults are injected."""
FEW_OPEN_FILES = 256
"""Open-file limit of a node that is meant to fail preflight."""
WORKING = "first all-reduce"
"""Line in the main node's log that shows that all nodes work together."""
WORKING_WITHIN_S = 600.0

_SIGNALS = {
    "kill-child": signal.SIGKILL,
    "kill-main": signal.SIGKILL,
    "hang-child": signal.SIGSTOP,
    "reclaim-child": signal.SIGTERM,
    "reclaim-main": signal.SIGTERM,
}
_MAIN_NODE_KINDS = ("kill-main", "reclaim-main")
_RECLAIM_KINDS = ("reclaim-child", "reclaim-main")
STOP_TIMEOUT_S = 120.0
"""Time between SIGTERM and SIGKILL on a reclaimed host: ECS_CONTAINER_STOP_TIMEOUT of Batch's
hosts, and the notice period of a Spot interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    """A fault armed for a job."""

    kind: str
    run: str | None = None
    """Name of the job into which the fault is injected; None for the next one."""
    after: str = WORKING
    """Prefix of a line in the main node's log; the fault is injected right after that line."""
    after_key: str = ""
    """Alternative: pattern of a key; the fault is injected once any bucket has such an object."""
    after_path: str = ""
    """Pattern of a path that the object must list among its ``files``; empty for any object."""
    has_object: Callable[[str, str], bool] = lambda key, path: False
    """Checks whether any bucket has an object whose key, and a path in it, match patterns."""

    @classmethod
    def parse(cls, text: str, has_object: Callable[[str, str], bool]) -> "NodeFault":
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
    def loses_main(self) -> bool:
        """True if the main node's host is lost."""
        return self.kind == "reclaim-main"

    def open_files(self, index: int) -> int | None:
        """Return the node's initial open-file limit; None for the default."""
        return FEW_OPEN_FILES if self.kind == "preflight-failure" and index == CHILD else None

    def inject(
        self,
        nodes: Mapping[int, NodeProcess],
        *,
        main_index: int,
        before: Callable[[], None] = lambda: None,
        reclaim: Callable[[int], None] | None = None,
    ) -> str | None:
        """Inject the fault at its trigger; return a description.

        Return None for a kind that is not injected into running nodes.

        Args:
            nodes: The running nodes, by index.
            main_index: Index of the main node.
            before: Called just before the injection.
            reclaim: Reclaims a node after a warning. Default: SIGTERM, then SIGKILL.
        """
        if self.kind not in _SIGNALS:
            return None
        victim = main_index if self.kind in _MAIN_NODE_KINDS else CHILD

        def has_ended() -> bool:
            return victim in nodes and nodes[victim].exit_code() is not None

        def is_time() -> bool:
            return has_ended() or (victim in nodes and self._is_due(nodes[main_index]))

        if not wait_for(is_time, WORKING_WITHIN_S):
            return (
                f"the fault was not injected into node {victim}: {self._trigger} did not appear in "
                "time"
            )
        if has_ended():
            return f"the fault was not injected into node {victim}: it ended before {self._trigger}"
        before()
        number, node = _SIGNALS[self.kind], nodes[victim]
        if self.kind not in _RECLAIM_KINDS:
            node.send(number)
            return f"{number.name} to node {victim}, process {node.pid}"
        if reclaim is None:
            stop = threading.Thread(target=node.stop, args=(STOP_TIMEOUT_S,), daemon=True)
            stop.start()
        else:
            reclaim(victim)
        return f"node {victim}, process {node.pid}, is reclaimed: SIGTERM, SIGKILL later"

    def _is_due(self, main: NodeProcess) -> bool:
        if self.after_key:
            return self.has_object(self.after_key, self.after_path)
        return any(line.startswith(self.after) for line in list(main.lines))

    @property
    def _trigger(self) -> str:
        if not self.after_key:
            return f"the line {self.after!r}"
        return self.after_key + (f" with {self.after_path}" if self.after_path else "")
