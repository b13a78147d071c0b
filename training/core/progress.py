"""Workers' progress and failures, reported to the launcher through small files."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.core.files import write_whole
from trainium_catalogue.exit_codes import ExitCode

ENV_SCRATCH = "TRAINIUM_SCRATCH"
"""Scratch folder of one launch on one node; being unique, it also marks the launch's processes."""
ENV_SNAPSHOTS = "TRAINIUM_SNAPSHOTS"
"""Marks the snapshot process instead of ``ENV_SCRATCH``, because it outlives the workers."""

_WRITE_INTERVAL_S = 0.2

MAX_COMPILE_S = 4 * 3600
"""Longer compilation counts as a hang; also the timeout when waiting for a compiling rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The latest report of one worker."""

    pid: int
    rank: int
    step: str
    ready: bool
    """True once the workload has begun, after imports and the rendezvous of all ranks."""
    done: bool
    steps_completed: int = 0
    """Optimizer steps, including earlier attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of a worker, or of all workers of a node."""

    rank: int
    """-1 for the process that compiles for all ranks of the node."""
    code: ExitCode
    error: str
    weak: bool = False
    """True if only an exit code is known, which losing a peer may also cause."""
    unfit_host: bool = False
    """True if the error shows that this node's host is broken."""

    @property
    def whose(self) -> str:
        """Name the rank, as a prefix for the error."""
        return f"rank {self.rank}: " if self.rank >= 0 else ""


class WorkerProgress:
    """The worker's side: reports progress and failure."""

    def __init__(self, scratch: Path, *, local_rank: int, rank: int) -> None:
        self._scratch = scratch
        self._path = scratch / f"progress-{local_rank}.json"
        self._rank = rank
        self._step = ""
        self._ready = False
        self._steps_completed = 0
        self._written_s = float("-inf")

    def report(self, step: str) -> None:
        """Report progress; ``step`` names the current activity. Cheap enough to call every step."""
        now = time.monotonic()
        if step == self._step and now - self._written_s < _WRITE_INTERVAL_S:
            return
        self._step, self._written_s = step, now
        self._write(done=False)

    def made(self, steps: int) -> None:
        """Record the number of optimizer steps; it is part of the next report."""
        self._steps_completed = steps

    def begin(self) -> None:
        """Report that the workload starts; from now on the hang limit applies."""
        self._ready = True
        self._write(done=False)

    def finish(self) -> None:
        """Report that all work is done; from now on silence is not a hang."""
        self._write(done=True)

    def fail(self, code: ExitCode, error: str, *, unfit_host: bool = False) -> None:
        """Record the reason, before the process exits and its peers' connections break."""
        failure = Failure(rank=self._rank, code=code, error=error, unfit_host=unfit_host)
        _write_whole(self._scratch / f"failure-{self._rank}.json", asdict(failure))

    def _write(self, *, done: bool) -> None:
        state = WorkerState(
            pid=os.getpid(),
            rank=self._rank,
            step=self._step,
            ready=self._ready,
            done=done,
            steps_completed=self._steps_completed,
        )
        _write_whole(self._path, asdict(state))


def read_states(scratch: Path) -> dict[Path, WorkerState]:
    """Read every worker's latest report."""
    return {
        path: WorkerState(**json.loads(path.read_text()))
        for path in sorted(scratch.glob("progress-*.json"))
    }


def read_failures(scratch: Path) -> list[Failure]:
    """Read every failure recorded by a worker."""
    documents = [json.loads(path.read_text()) for path in sorted(scratch.glob("failure-*.json"))]
    return [Failure(**{**d, "code": ExitCode(d["code"])}) for d in documents]


def _write_whole(path: Path, document: dict[str, Any]) -> None:
    # A heartbeat thread (core/heartbeat.py) may write at the same time.
    write_whole(path, json.dumps(document).encode())
