"""Operations of a training step on the emulated TorchNeuron device, compared with plain FSDP2.

It counts the operations that an additional layer adds to a step; it measures no time. In eager
mode each operation takes 55 to 65 us on the device; a compiled layer costs only its launch. A
comparison fails if a step has a graph break, compiles after the second step, waits for the device,
or has more than one forward and one backward graph for its layers.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from benchmarks.pairs import Comparison
from benchmarks.processes import ROOT

_DEGREES = (1, 2)
NAMES = tuple(f"neuron-operations-tp{degree}" for degree in _DEGREES)


def comparisons(environment: Mapping[str, str]) -> list[Comparison]:
    """Compare each tensor-parallel degree, counting the operations of each only once."""

    @cache
    def counted(degree: int) -> dict[str, float]:
        return _counted(environment, degree)

    def comparison(name: str, degree: int) -> Comparison:
        return Comparison(
            name=name,
            product=f"operations that a layer adds to a step at tensor parallel {degree}",
            baseline="the same with plain PyTorch, 1 rank: FSDP2, compiled layers, foreach AdamW",
            # With sequence parallelism, ranks also all-reduce two norms' gradients.
            target=1.0 if degree == 1 else 1.2,
            measure_product=lambda: counted(degree)["ours"],
            measure_baseline=lambda: counted(1)["plain"],
        )

    return [comparison(name, degree) for name, degree in zip(NAMES, _DEGREES, strict=True)]


def _counted(environment: Mapping[str, str], degree: int) -> dict[str, float]:
    """Count a step's operations on ``degree`` ranks, each a separate process."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={degree}", "-m", "benchmarks.neuron_worker"),
        ],
        cwd=ROOT,
        env={
            **environment,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'emulators'}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        },
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"counting the operations failed:\n{done.stdout}\n{done.stderr[-4000:]}")
    operations: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return operations
