"""Training beside Hugging Face's Trainer and litgpt, and the time until a killed job trains again.

All trainers have the same model (llama-tiny's preset with its 4 million parameters), batch,
sequences, optimizer, schedule, clipping and dtype, write a log record per step and save nothing;
each has a process of its own, and waits while another is measured.
"""

import atexit
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from benchmarks.checkpoint import ask
from benchmarks.pairs import Comparison
from benchmarks.processes import BASELINE_PYTHON, ROOT
from trainium_catalogue import contract

STEPS = 6
"""Steps per measurement."""
_BATCH, _SEQ_LEN, _VOCABULARY = 8, 128, 32000
_SETTINGS = (
    *(f"--global-batch={_BATCH}", f"--micro-batch={_BATCH}", f"--seq-len={_SEQ_LEN}"),
    *("--tensor-parallel=1", "--activation-checkpointing=false", "--dataset=words"),
)
_TRAINS = "training: step "
_RESTART = (
    *("--global-batch=8", "--micro-batch=4", "--seq-len=32", "--dataset=words"),
    *("--max-steps=100000", "--save-every=5", "--tensor-parallel=2"),
)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        **environment,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # as torchrun sets it for each of several workers
        "HF_HUB_OFFLINE": "1",
        contract.ENV_DEVICE: "cpu",
    }


def step(environment: Mapping[str, str]) -> list[Comparison]:
    """Compare the seconds that the same steps take, with each of the two others."""
    servers: dict[str, subprocess.Popen[str]] = {}

    def seconds(trainer: str) -> float:
        if trainer not in servers:
            servers[trainer] = _start(trainer, _environment(environment))
        return ask(servers[trainer], str(STEPS))

    def beside(name: str, baseline: str, trainer: str) -> Comparison:
        return Comparison(
            name=name,
            product=f"{STEPS} steps of llama-tiny, batch {_BATCH} x {_SEQ_LEN}, by our loop",
            baseline=baseline,
            target=0.55,
            measure_product=lambda: seconds("loop"),
            measure_baseline=lambda: seconds(trainer),
        )

    return [
        beside("train", "the same by transformers.Trainer", "trainer"),
        beside("train-litgpt", "the same by litgpt's loop, its model not compiled", "litgpt"),
    ]


def _start(trainer: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    folder = tempfile.TemporaryDirectory()
    python = sys.executable if trainer == "loop" else BASELINE_PYTHON
    process = subprocess.Popen(
        [python, "-m", "benchmarks.train_worker", trainer],
        cwd=folder.name,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    return process


class _Job:
    """The attempts of a two-process job on this machine."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = {
            **_environment(environment),
            contract.ENV_PROCESSES_PER_NODE: "2",
            contract.ENV_RUN: "bench",
            "AWS_BATCH_JOB_ID": "bench",
        }
        self._folder = folder
        self._attempts = itertools.count(1)
        self._process: subprocess.Popen[str] | None = None

    def start(self, *, until: int) -> float:
        """Start an attempt and wait for ``until`` steps; return the time of the first."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "training.launch", "llama-tiny", *_RESTART],
            cwd=self._folder,
            env={**self._environment, "AWS_BATCH_JOB_ATTEMPT": str(next(self._attempts))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        first, seen, output = 0.0, 0, []
        for line in _lines(self._process):
            output.append(line)
            if line.startswith(_TRAINS):
                first = first or time.perf_counter()
                seen += 1
                if seen == until:
                    return first
        raise RuntimeError("".join(output))

    def kill_a_worker(self) -> float:
        """Send SIGKILL and wait until the node has ended; return the time of sending."""
        assert self._process is not None
        (victim, *_) = _workers(self._process.pid)
        killed = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        for _ in _lines(self._process):
            continue
        self._process.wait()
        return killed


def _lines(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _workers(launcher: int) -> list[int]:
    """Find a launcher's workers: the processes that torchrun, its child, has started."""

    def children(parent: int) -> list[int]:
        text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        return [int(word) for word in text.split()]

    return [
        pid
        for agent in children(launcher)
        for pid in children(agent)
        if b"training.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def restart(environment: Mapping[str, str]) -> Comparison:
    """Compare the time from a worker's death to the next training step with a cold start."""

    def cold() -> float:
        with tempfile.TemporaryDirectory() as name:
            folder = _prepared(Path(name), environment)
            job = _Job(environment, folder)
            began = time.perf_counter()
            trains = job.start(until=1)
            job.kill_a_worker()
            return trains - began

    def again() -> float:
        with tempfile.TemporaryDirectory() as name:
            job = _Job(environment, _prepared(Path(name), environment))
            job.start(until=12)  # two checkpoints
            killed = job.kill_a_worker()
            trains = job.start(until=1)
            job.kill_a_worker()
            return trains - killed

    return Comparison(
        name="restart",
        product="a worker is killed until the next attempt has made a step, 2 processes",
        baseline="start of a new job until it has made a step",
        target=1.5,
        measure_product=again,
        measure_baseline=cold,
    )


def _prepared(folder: Path, environment: Mapping[str, str]) -> Path:
    """Put a dataset into the folder."""
    command = [sys.executable, "-m", "benchmarks.train_worker", "dataset"]
    subprocess.run(command, cwd=folder, env=_environment(environment), check=True)
    return folder


def settings() -> tuple[str, ...]:
    """Flags of the workload on which both trainers are measured."""
    return _SETTINGS


def sizes() -> dict[str, Any]:
    """Batch, sequence and vocabulary of both trainers."""
    return {"batch": _BATCH, "seq_len": _SEQ_LEN, "vocabulary": _VOCABULARY}
