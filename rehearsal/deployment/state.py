"""The settings, files and running state of a rehearsal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Positive
from trainium_catalogue.releases import DEFAULT_RELEASE, NEURON_RELEASES, TorchBackend

ORCHESTRATORS = tuple(Orchestrator)
ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENT = "default"


class OptionsError(ValueError):
    """Raised for invalid options, before anything is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedProgram:
    """A user's own program, as passed to `jobs submit`."""

    file: str = ""
    module: str | None = None
    """Module to run instead of a file, from the working folder or an installed package."""
    argv: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    checkpoint_dir: str | None = None
    requirements: str | None = None
    workdir: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    fault_after: str = "*"
    """Pattern of a file that a snapshot must contain before the fault is injected."""


EXAMPLE = RehearsedProgram(
    file=str(ROOT / "examples" / "own-program" / "train.py"), argv=("--epochs", "120")
)
"""The example, which runs long enough for a first snapshot even on a slow machine."""


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
    neuron_release: str = DEFAULT_RELEASE
    workloads: tuple[str, ...]
    """Workloads: all-reduce, llama-tiny and program on Batch; mnist, bert-tiny, program on EKS."""
    faults: tuple[str, ...]
    parameters: tuple[str, ...]
    """``key=value``, passed to ``jobs submit --set``."""
    containers: bool
    addresses: str
    """First three octets of the nodes' addresses."""
    program: RehearsedProgram = EXAMPLE
    """Program of the workload ``program``."""

    @property
    def on_neuron_device(self) -> bool:
        """True if the nodes train on the emulated device of TorchNeuron."""
        return NEURON_RELEASES[self.neuron_release].backend is TorchBackend.TORCH_NEURON


@dataclass(frozen=True, slots=True)
class RehearsalFolder:
    """The files of a rehearsal, replaced by the next one."""

    path: Path

    @property
    def assembly(self) -> Path:
        return self.path / "cdk.out"

    @property
    def checkpoint(self) -> Path:
        """The exported model, downloaded."""
        return self.path / "checkpoint"

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
        """Kubeconfig for the emulated cluster, separate from the user's own."""
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
        """Remove the previous rehearsal's files, such as its receipt."""
        self.path.mkdir(parents=True, exist_ok=True)
        for path in self.path.iterdir():
            if path.is_file():
                path.unlink()
        # The next rehearsal's weights differ, and `jobs download` would not overwrite these files.
        shutil.rmtree(self.checkpoint, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalState:
    """A running rehearsal, as recorded for ``down`` and the next rehearsal."""

    pid: int
    started: str
    """Start time of the process, to detect a reused process id."""
    endpoint: str | None = None

    @classmethod
    def here(cls, endpoint: str | None = None) -> RehearsalState:
        """Return the state of the rehearsal in this process."""
        return cls(pid=os.getpid(), started=_start_time(os.getpid()) or "", endpoint=endpoint)

    @property
    def alive(self) -> bool:
        return _start_time(self.pid) == self.started

    def save(self, folder: RehearsalFolder) -> None:
        folder.state.write_text(json.dumps(asdict(self)), encoding="utf-8")


def load_state(folder: RehearsalFolder) -> RehearsalState | None:
    """Return the rehearsal running in ``folder``, if any."""
    try:
        state = RehearsalState(**json.loads(folder.state.read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    return state if state.alive else None


def refuse_second(folder: RehearsalFolder) -> None:
    """Refuse a second rehearsal in the same folder."""
    if (state := load_state(folder)) is not None:
        raise OptionsError(
            f"a rehearsal is running in {folder.path} (process {state.pid}); stop it with: python "
            "-m rehearsal down"
        )


def _start_time(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; None if it has ended.

    psutil adds the time of boot, which changes with the system's clock.
    """
    try:
        # Fields after the command name, which may contain spaces: proc(5), fields 3 and 22.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A zombie has ended, even if its parent never reaps it.
    return None if fields[0] == "Z" else fields[19]
