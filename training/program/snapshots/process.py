"""The launcher's handle on its snapshot process, and the files that they exchange."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from training.core.contract import NodeContract
from training.core.files import write_whole
from training.core.processes import start_process
from training.core.progress import ENV_SCRATCH, ENV_SNAPSHOTS
from training.program.reports import ScratchDocument
from training.program.settings import ProgramFolders, ProgramSettings
from training.program.snapshots.manifest import Root, SnapshotSummary
from training.storage import Objects, StorageAccess
from trainium_catalogue.contract import run_prefix
from trainium_catalogue.exit_codes import ExitCode

MODULE = "training.program.snapshots.writer"
SETTINGS_FILE = "snapshots-settings.json"
SNAPSHOTS_FILE = "snapshots.json"
_RESTART_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """The configuration of the snapshot process."""

    storage: StorageAccess
    """The deployment's bucket or, without one, a local folder."""
    run: str
    job_id: str
    attempt: int
    node: int
    main: int
    num_nodes: int
    scratch: Path
    checkpoints: Path
    """The program's checkpoint folder."""
    cache: Path
    """The folder of compiled graphs."""
    every_s: float
    keep: int
    mib_per_s: float
    limit_gib: float

    @staticmethod
    def of(
        node: NodeContract, settings: ProgramSettings, folders: ProgramFolders
    ) -> SnapshotSettings:
        """Assemble the configuration of a node's process."""
        return SnapshotSettings(
            storage=StorageAccess.of(node),
            run=node.run,
            job_id=node.job_id,
            attempt=node.attempt,
            node=node.node_index,
            main=node.main_index,
            num_nodes=node.num_nodes,
            scratch=folders.scratch,
            checkpoints=folders.checkpoints,
            cache=folders.cache,
            every_s=settings.snapshot_every_s,
            keep=settings.keep_snapshots,
            mib_per_s=settings.snapshot_mib_per_s,
            limit_gib=settings.snapshot_limit_gib,
        )

    @property
    def is_main(self) -> bool:
        """True on the node that completes snapshots."""
        return self.node == self.main

    @property
    def folders(self) -> dict[Root, Path]:
        """The persisted folders."""
        return {Root.CHECKPOINTS: self.checkpoints, Root.CACHE: self.cache}

    @property
    def quiet_s(self) -> float:
        """Time without changes after which the checkpoint folder is quiescent."""
        return min(2.0, self.every_s / 2)

    def write(self) -> Path:
        """Write the settings for the process."""
        path = self.scratch / SETTINGS_FILE
        write_whole(path, json.dumps(asdict(self), default=str).encode())
        return path

    @staticmethod
    def read(path: Path) -> SnapshotSettings:
        """Read the settings written by ``write``."""
        document = json.loads(path.read_text())
        document["storage"] = StorageAccess(**document["storage"])
        for name in ("scratch", "checkpoints", "cache"):
            document[name] = Path(document[name])
        return SnapshotSettings(**document)


def open_snapshots(bucket: Objects, run: str) -> Objects:
    """Open the prefix of a run's snapshots in the bucket."""
    return bucket.at(run_prefix(run, "snapshots"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A reason to end the job."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport(ScratchDocument):
    """The process's report in ``snapshots.json``, updated about once a second."""

    FILE: ClassVar[str] = SNAPSHOTS_FILE

    last_change_at: float | None = None
    """Time of the last change in the folder, or of the last progress of the last snapshot, in
    seconds since the epoch; None before the first."""
    bytes: int = 0
    """Size of the checkpoint folder."""
    snapshots: tuple[SnapshotSummary, ...] = ()
    """Complete snapshots, oldest first; known on the main node only."""
    problem: Problem | None = None
    """A reason to end the job now."""
    failure: Problem | None = None
    """The reason for a missing last snapshot, with the exit code of an otherwise successful job."""

    @staticmethod
    def read(scratch: Path) -> SnapshotReport:
        """Read the latest report; an empty one if there is none."""
        return SnapshotReport.find(scratch) or SnapshotReport()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalSnapshotRequest(ScratchDocument):
    """A request to take the last snapshot and exit, in the file ``snapshots-final``."""

    FILE: ClassVar[str] = "snapshots-final"

    take: bool = True
    """False to exit without a snapshot, since files may be torn after the loss of a node."""
    clean: bool = True
    """True if every worker exited on its own. Otherwise the folder is captured only if the program
    was not writing when it was killed."""
    until_s: float | None = None
    """Deadline on ``CLOCK_MONOTONIC``, which all processes share; None for no deadline."""


class SnapshotProcess:
    """The launcher's handle on its node's process; only ``kill`` waits for it."""

    def __init__(self, settings: SnapshotSettings, env: Mapping[str, str]) -> None:
        """Start the process, which dies with this one; ``env`` contains the job's credentials."""
        self._scratch = settings.scratch
        self._env = {name: value for name, value in env.items() if name != ENV_SCRATCH}
        self._killed = False
        self._failed_request: Problem | None = None
        settings.write()
        self._start()

    def _start(self) -> None:
        self._started_s = time.monotonic()
        self._process = start_process(
            [sys.executable, "-m", MODULE, str(self._scratch / SETTINGS_FILE)],
            {**self._env, ENV_SNAPSHOTS: str(self._scratch)},
        )

    def poll(self) -> SnapshotReport:
        """Read the latest report; restart the process if it failed, unless ``kill`` was called."""
        may_restart = time.monotonic() - self._started_s > _RESTART_INTERVAL_S
        if self._process.poll() and not self._killed and may_restart:
            self._start()
        return SnapshotReport.read(self._scratch)

    def final(
        self, *, take: bool = True, clean: bool = True, within_s: float | None = None
    ) -> None:
        """Request the last snapshot; ``done`` becomes True within ``within_s``."""
        until_s = None if within_s is None else time.monotonic() + within_s
        try:
            FinalSnapshotRequest(take=take, clean=clean, until_s=until_s).write(self._scratch)
        except OSError as error:
            reason = f"no last snapshot: cannot write the request for it: {error}"
            self._failed_request = Problem(code=ExitCode.HOST, reason=reason)
            self.kill()

    @property
    def done(self) -> bool:
        """True once the process has exited after ``final`` or ``kill``."""
        self.poll()
        return self._killed or self._process.poll() == 0

    @property
    def failure(self) -> Problem | None:
        """The reason for a missing last snapshot, once done."""
        return self._failed_request or SnapshotReport.read(self._scratch).failure

    def kill(self) -> None:
        """Kill the process before workers are killed, so that it captures no torn files."""
        self._killed = True
        self._process.kill()
        self._process.wait()
