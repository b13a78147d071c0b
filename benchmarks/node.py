"""The launcher and the all-reduce workload, compared with a gloo loop under a bare torchrun."""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.pairs import Comparison
from benchmarks.processes import ROOT
from trainium_catalogue import contract

PROCESSES = 2
SMALL = 4096
LARGE = 64 * 1024**2
WARMUP = 2
TIMED = 10
FIRST = "first "
"""Prefix of the line that both sides print after their first collective."""


def full_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Add the variables that both sides of a comparison need."""
    return {
        **environment,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        contract.ENV_DEVICE: "cpu",
        contract.ENV_PROCESSES_PER_NODE: str(PROCESSES),
    }


def free_port() -> int:
    """Find a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _bare(num_bytes: int, warmup: int, timed: int) -> list[str]:
    """Build the command of the baseline: torchrun with a bare worker."""
    # As a module, because a script's folder comes first on Python's path, and this folder's
    # tokenize.py would shadow the standard library's.
    worker = ("--module", "benchmarks.bare_worker")
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1"),
        *(f"--nproc-per-node={PROCESSES}", "--rdzv-backend=static", "--master-addr=127.0.0.1"),
        *(f"--master-port={free_port()}", "--local-addr=127.0.0.1", "--max-restarts=0"),
        *(*worker, str(num_bytes), str(warmup), str(timed)),
    ]


def _product(num_bytes: int, warmup: int, timed: int) -> list[str]:
    size = str(num_bytes)
    return [
        *(sys.executable, "-m", "training.launch", "all-reduce"),
        *("--min-bytes", size, "--max-bytes", size, "--warmup-iterations", str(warmup)),
        *("--iterations", str(timed), "--seconds-per-size", "120"),
    ]


def seconds_to_first(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> float:
    """Return the seconds from the start of the process to its first collective."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=dict(environment), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    output, elapsed = [], None
    for line in process.stdout:
        output.append(line)
        if elapsed is None and line.startswith(FIRST):
            elapsed = time.perf_counter() - start
    if process.wait() or elapsed is None:
        raise RuntimeError("".join(output))
    return elapsed


def _seconds_to_first(command: Sequence[str], environment: Mapping[str, str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return seconds_to_first(command, environment, Path(folder))


def launch(environment: Mapping[str, str]) -> Comparison:
    """Compare the time to the first collective: the overhead of launcher and preflight."""
    full = full_environment(environment)
    return Comparison(
        name="launch",
        product="training.launch, start to first collective",
        baseline="bare torchrun, start to first collective",
        target=1.15,
        measure_product=lambda: _seconds_to_first(_product(SMALL, 0, 1), full),
        measure_baseline=lambda: _seconds_to_first(_bare(SMALL, 0, 1), full),
    )


def all_reduce(environment: Mapping[str, str]) -> Comparison:
    """Compare the median time of a 64 MiB all-reduce."""
    full = full_environment(environment)

    def run(command: Sequence[str], read: Callable[[Path, str], float]) -> float:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder, env=full, text=True, capture_output=True)
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
            return read(Path(folder), done.stdout)

    def from_result(folder: Path, _: str) -> float:
        (path,) = folder.rglob("results/all-reduce.json")
        (size,) = json.loads(path.read_text())["sizes"]
        return float(size["p50_us"]) / 1e6

    def from_output(_: Path, output: str) -> float:
        return float(output.splitlines()[-1])

    return Comparison(
        name="all-reduce",
        product=f"all-reduce workload, {LARGE // 1024**2} MiB, {PROCESSES} ranks",
        baseline="bare loop over torch.distributed.all_reduce with gloo",
        target=1.10,
        measure_product=lambda: run(_product(LARGE, WARMUP, TIMED), from_result),
        measure_baseline=lambda: run(_bare(LARGE, WARMUP, TIMED), from_output),
    )
