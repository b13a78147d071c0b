"""Benchmarks of training and of recovery from a killed worker.

Training is compared with Hugging Face's Trainer and litgpt. All trainers have the same model
(llama-tiny, 4 million parameters), batch, sequences, optimizer, schedule, clipping and dtype, log a
record per step and save nothing. Each runs in a separate process, and waits while another is
measured.
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
from typing import IO

from benchmarks.checkpoint import ask
from benchmarks.pairs import Comparison
from benchmarks.processes import BASELINE_PYTHON, ROOT
from trainium_catalogue import contract

STEPS = 6
"""Steps per measurement."""
BATCH, SEQ_LEN, VOCABULARY = 8, 128, 32000
"""Sizes and options of all trainers."""
SETTINGS = (
    *(f"--global-batch={BATCH}", f"--micro-batch={BATCH}", f"--seq-len={SEQ_LEN}"),
    *("--tensor-parallel=1", "--activation-checkpointing=false", "--dataset=words"),
)
_STEP_PREFIX = "training: step "
_RESTART = (
    *("--global-batch=8", "--micro-batch=4", "--seq-len=32", "--dataset=words"),
    *("--max-steps=100000", "--save-every=5", "--tensor-parallel=2"),
)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        **environment,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # as set by torchrun for several workers
        "HF_HUB_OFFLINE": "1",
        contract.ENV_DEVICE: "cpu",
    }


def step(environment: Mapping[str, str]) -> list[Comparison]:
    """Compare the time of the same steps with each of the other two trainers."""
    servers: dict[str, subprocess.Popen[str]] = {}

    def seconds(trainer: str) -> float:
        if trainer not in servers:
            servers[trainer] = _start(trainer, _environment(environment))
        return ask(servers[trainer], str(STEPS))

    def versus(name: str, baseline: str, trainer: str) -> Comparison:
        return Comparison(
            name=name,
            product=f"{STEPS} steps of llama-tiny, batch {BATCH} x {SEQ_LEN}, by our loop",
            baseline=baseline,
            target=0.55,
            measure_product=lambda: seconds("loop"),
            measure_baseline=lambda: seconds(trainer),
        )

    return [
        versus("train", "the same by transformers.Trainer", "trainer"),
        versus("train-litgpt", "the same by litgpt's loop, its model not compiled", "litgpt"),
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
        """Start an attempt and wait for ``until`` steps; return the time of the first step."""
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
            if line.startswith(_STEP_PREFIX):
                first = first or time.perf_counter()
                seen += 1
                if seen == until:
                    return first
        raise RuntimeError("".join(output))

    def kill_a_worker(self) -> float:
        """Send SIGKILL and wait for the node to end; return the time of the signal."""
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
    """Find a launcher's workers: the children of its torchrun."""

    def children(parent: int) -> list[int]:
        text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        return [int(pid) for pid in text.split()]

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
            first_step = job.start(until=1)
            job.kill_a_worker()
            return first_step - began

    def after_kill() -> float:
        with tempfile.TemporaryDirectory() as name:
            job = _Job(environment, _prepared(Path(name), environment))
            job.start(until=12)  # two checkpoints
            killed = job.kill_a_worker()
            first_step = job.start(until=1)
            job.kill_a_worker()
            return first_step - killed

    return Comparison(
        name="restart",
        product="from killing a worker to the first step of the next attempt, 2 processes",
        baseline="from the start of a new job to its first step",
        target=1.5,
        measure_product=after_kill,
        measure_baseline=cold,
    )


def _prepared(folder: Path, environment: Mapping[str, str]) -> Path:
    """Create a dataset in the folder."""
    command = [sys.executable, "-m", "benchmarks.train_worker", "dataset"]
    subprocess.run(command, cwd=folder, env=_environment(environment), check=True)
    return folder
