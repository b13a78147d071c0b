"""Workers of one job without launchers: slow imports happen once.

Tests on a ``Cluster`` cover launchers and torchrun.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.limits import scaled
from tests.training.nodes import CPU_NODE
from training import worker
from training.core.arguments import parse
from training.core.processes import die_with_parent
from training.core.progress import ENV_SCRATCH
from training.launcher.addresses import reserve_port
from training.workloads import IMPLEMENTATIONS, hide_sklearn

ROOT = Path(__file__).resolve().parents[2]


def run_on_ranks(
    folder: Path,
    workload: str,
    *jobs: Sequence[str],
    run: str,
    num_ranks: int = 4,
) -> list[str]:
    """Run jobs of one run in turn, each on its own processes; return each rank's output.

    Their files are in ``folder / "build"``, as for jobs without a bucket, and each rank's output
    for the launcher in ``folder / "rank-0"`` and so on.
    """
    logs = [folder / f"rank-{rank}.log" for rank in range(num_ranks)]
    words = [[workload, *job] for job in jobs]
    parent = subprocess.Popen(
        [sys.executable, "-m", __name__, run, str(num_ranks), json.dumps(words)],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
            "WORLD_SIZE": str(num_ranks),
        },
        cwd=folder,
    )
    try:
        code = parent.wait(scaled(60))
    finally:
        # Its ranks die with it.
        parent.kill()
        parent.wait()
        outputs = [log.read_text() if log.exists() else "" for log in logs]
        print("\n---\n".join(outputs))
    assert not code
    return outputs


def _run_job(words: Sequence[str], *, run: str, num_ranks: int) -> bool:
    """Run a job on a worker for every rank; return whether all have finished."""
    parent = os.getpid()
    node = replace(CPU_NODE, run=run, processes_per_node=num_ranks)
    with reserve_port(0) as port:
        for rank in range(num_ranks):
            if not os.fork():
                die_with_parent(parent)
                scratch = Path(f"rank-{rank}")
                scratch.mkdir(exist_ok=True)
                node.write(scratch)
                output = os.open(f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.environ |= {
                    "MASTER_PORT": str(port),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    ENV_SCRATCH: str(scratch),
                }
                worker.main(words, os.environ)
                sys.exit()
        return not any([os.wait()[1] for _ in range(num_ranks)])


def _main(run: str, num_ranks: str, jobs: str) -> int:
    every = json.loads(jobs)
    # As in training.worker; frozen objects are not copied to every rank.
    gc.disable()
    hide_sklearn()
    IMPLEMENTATIONS[parse(every[0]).workload.name].load()
    importlib.import_module("training.core.device")
    gc.freeze()
    return int(not all(_run_job(words, run=run, num_ranks=int(num_ranks)) for words in every))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
