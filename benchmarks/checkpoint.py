"""Training stall caused by a checkpoint: asynchronous versus synchronous saving.

Measures how long `save` blocks the caller, with the same code, state and folder. The state has 29.5
million parameters with AdamW's moments, 354 MB: about half of the share that each of 128 ranks
saves of Llama-2-7B. It is written to the local disk, the fastest storage and therefore the hardest
case: the slower the storage, the longer a synchronous save.
"""

import atexit
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

from benchmarks.pairs import Comparison
from benchmarks.processes import ROOT

_FOLDER = ROOT / "build" / "bench" / "checkpoints"
_PARAMETERS = 29_500_000
_TENSORS = 40


def stall(environment: Mapping[str, str]) -> Comparison:
    """Compare both ways of saving, in one long-lived process."""
    saver: list[subprocess.Popen[str]] = []

    def seconds(how: str) -> float:
        if not saver:
            saver.append(_start(environment))
            ask(saver[0], "synchronous")  # the first save also allocates memory and creates folders
        return ask(saver[0], how)

    return Comparison(
        name="checkpoint",
        product="training stalled by an asynchronous save of 354 MB",
        baseline="the same, synchronous",
        target=0.15,
        measure_product=lambda: seconds("asynchronous"),
        measure_baseline=lambda: seconds("synchronous"),
    )


def _start(environment: Mapping[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.checkpoint", str(_FOLDER)],
        env={
            **environment,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",  # as set by torchrun for several workers
        },
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(_FOLDER, ignore_errors=True)

    atexit.register(end)
    return process


def ask(process: subprocess.Popen[str], request: str) -> float:
    """Send a line to a measuring ``process``; return the seconds that it prints in reply."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{request}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"{process.args!r} exited with {process.wait()}; its output is above")
    return float(answer)


def serve(folder: Path) -> None:
    """For each line of standard input, save in the mode it names; print the stall in seconds."""
    import torch

    from training.checkpoint import Checkpoints
    from training.core.ranks import Ranks
    from training.storage import LocalObjects

    warnings.filterwarnings("ignore", message="torch.distributed is disabled")

    def tensors() -> dict[str, torch.Tensor]:
        size = _PARAMETERS // _TENSORS
        return {f"layers.{n}.weight": torch.rand(size) for n in range(_TENSORS)}

    state = {"model": tensors(), "optimizer": {"exp_avg": tensors(), "exp_avg_sq": tensors()}}
    failures: list[str] = []
    checkpoints = Checkpoints(
        LocalObjects(folder),
        Ranks.open(),
        keep_last=1,
        keep_every=0,
        on_failed=lambda step, reason: failures.append(reason),
    )
    for step, line in enumerate(sys.stdin, start=1):
        began_s = time.perf_counter()
        checkpoints.save(state, step, {}, asynchronous=line.strip() == "asynchronous")
        stall_s = time.perf_counter() - began_s
        checkpoints.wait()
        assert not failures, failures
        print(stall_s, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
