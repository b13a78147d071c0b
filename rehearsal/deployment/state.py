"""The settings and files of a rehearsal, and the state of the one that is up."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Positive

ORCHESTRATORS = tuple(Orchestrator)
ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENT = "default"


class OptionsError(ValueError):
    """Raised when the user asks for something impossible; nothing has been started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """A user's own program, as `jobs submit` is told of it."""

    file: str = ""
    module: str | None = None
    """Run instead of a file, from the working folder or a package that the nodes have."""
    argv: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    checkpoint_dir: str | None = None
    requirements: str | None = None
    workdir: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    fault_after: str = "*"
    """Pattern of a file that a snapshot must have before a node is hurt."""


EXAMPLE = ProgramOptions(
    file=str(ROOT / "examples" / "own-program" / "train.py"), argv=("--epochs", "120")
)
"""Runs long enough for a first snapshot, also on a slow machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The validated options of the command line."""

    orchestrators: tuple[str, ...] = ("batch",)
    """Orchestrators of the nodes: batch, eks or both."""
    nodes: Positive
    processes_per_node: Positive
    processes_of: Mapping[str, Positive]
    """Processes per node for individual workloads."""
    instance_type: str
    workloads: tuple[str, ...]
    """Workloads: all-reduce, llama-tiny and program on Batch; mnist, bert-tiny, program on EKS."""
    faults: tuple[str, ...]
    parameters: tuple[str, ...]
    """``key=value``, passed to ``jobs submit --set``."""
    containers: bool
    addresses: str
    """First three octets of the nodes' addresses."""
    program: ProgramOptions = EXAMPLE
    """What the workload ``program`` runs."""


@dataclass(frozen=True, slots=True)
class RehearsalFolder:
    """The files of a rehearsal; a new rehearsal replaces those of the last."""

    path: Path

    @property
    def assembly(self) -> Path:
        return self.path / "cdk.out"

    @property
    def docker(self) -> Path:
        return self.path / "docker"

    @property
    def docker_record(self) -> Path:
        return self.path / "docker.jsonl"

    @property
    def server_log(self) -> Path:
        return self.path / "server.log"

    @property
    def environment(self) -> Path:
        return self.path / "environment.sh"

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig for the emulated cluster, so that the user's own file stays untouched."""
        return self.path / "kubeconfig"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def receipt(self) -> Path:
        return self.path / "receipt.json"

    @property
    def report(self) -> Path:
        return self.path / "report.txt"

    def log(self, name: str) -> Path:
        return self.path / f"{name}.log"

    def clear(self) -> None:
        """Remove the files of the last rehearsal; a stale receipt would look like a new one."""
        self.path.mkdir(parents=True, exist_ok=True)
        for path in self.path.iterdir():
            if path.is_file():
                path.unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalState:
    """A rehearsal that is up, for ``down`` and for the next one."""

    pid: int
    started: str
    """Start time of the process, to recognise a reused process id."""
    endpoint: str | None = None

    @classmethod
    def here(cls, endpoint: str | None = None) -> RehearsalState:
        """Return the state of a rehearsal that is run by this process."""
        return cls(pid=os.getpid(), started=_start_time(os.getpid()) or "", endpoint=endpoint)

    @property
    def alive(self) -> bool:
        return _start_time(self.pid) == self.started

    def save(self, folder: RehearsalFolder) -> None:
        folder.state.write_text(json.dumps(asdict(self)), encoding="utf-8")


def load_state(folder: RehearsalFolder) -> RehearsalState | None:
    """Return the rehearsal that is up in ``folder``, or None."""
    try:
        state = RehearsalState(**json.loads(folder.state.read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    return state if state.alive else None


def refuse_second(folder: RehearsalFolder) -> None:
    """Refuse a second rehearsal in a folder: both would overwrite each other's files."""
    if (state := load_state(folder)) is not None:
        raise OptionsError(
            f"a rehearsal is up in {folder.path} (process {state.pid}); "
            "end it with: python -m rehearsal down"
        )


def _start_time(pid: int) -> str | None:
    """Start time of a process in kernel ticks; without /proc, only whether it exists."""
    try:
        # Fields after the command name, which may contain spaces: proc(5), fields 3 and 22.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        # A zombie has ended, even if its parent never reaps it.
        return None if fields[0] == "Z" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    return "unknown"
