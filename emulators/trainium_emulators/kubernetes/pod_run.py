"""What the kubelet keeps of a pod that runs or has run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainium_emulators.kubernetes import objects
from trainium_emulators.kubernetes.resources import Json
from trainium_emulators.nodes.events import emit
from trainium_emulators.nodes.faults import Fault
from trainium_emulators.nodes.node import Node

_LAST_LINES, _LAST_BYTES = 80, 2048
"""Of a termination message."""


@dataclass(slots=True, kw_only=True)
class Output:
    """What a container has written; an executor's ``Stream``."""

    name: str
    lines: list[tuple[float, str]] = field(default_factory=list)

    def write(self, line: str) -> None:
        """Append one line, now."""
        self.lines.append((time.time(), line))


@dataclass(slots=True, kw_only=True)
class Run:
    """A pod that runs or has run."""

    pod: Json
    index: int
    """Place in its gang."""
    output: Output
    fault: Fault | None = None
    node: Node | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    ended: bool = False

    @property
    def job(self) -> str:
        """The Volcano job's name, or the pod's own."""
        return str(self._annotations.get(objects.JOB_NAME, self.pod["metadata"]["name"]))

    @property
    def attempt(self) -> int:
        """Counted from 1, as on Batch."""
        return 1 + int(self._annotations.get(objects.RETRY_COUNT, 0))

    def tell(self, event: str, **details: Any) -> None:
        """Emit an event of a node; a pod that belongs to no job is none."""
        if objects.JOB_NAME in self._annotations:
            emit(event, job_id=self.job, attempt=self.attempt, node=self.index, **details)

    @property
    def _annotations(self) -> Mapping[str, str]:
        return self.pod["metadata"].get("annotations") or {}

    def label(self, name: str) -> str:
        """A label of the pod; empty without it."""
        return str((self.pod["metadata"].get("labels") or {}).get(name, ""))


def last_words(run: Run, code: int | None) -> Json:
    """What the container's log ends with, for who asks for it (kubelet, kuberuntime)."""
    policy = run.pod["spec"]["containers"][0].get("terminationMessagePolicy")
    if not code or policy != "FallbackToLogsOnError":
        return {}
    lines = [text for _, text in run.output.lines[-_LAST_LINES:]]
    return {"message": "\n".join(lines).encode()[-_LAST_BYTES:].decode(errors="ignore")}


def container_status(run: Run, state: Json, *, ready: bool) -> Json:
    """An entry of ``containerStatuses``."""
    container = run.pod["spec"]["containers"][0]
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": run.restarts,
        "state": state,
        "lastState": {},
    }
