"""Workers of one job without launchers: slow imports happen once.

Tests on a ``Cluster`` cover launchers and torchrun.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.training.nodes import CPU_NODE
from tests.training.ranks import _environment, fork_ranks, run_parent
from training import worker
from training.core.arguments import parse
from training.core.progress import ENV_SCRATCH
from training.launcher.addresses import reserve_port
from training.workloads import IMPLEMENTATIONS, hide_sklearn


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
    words = [[workload, *job] for job in jobs]
    with reserve_port(0) as port:
        code, outputs = run_parent(
            __name__,
            *(run, str(num_ranks), json.dumps(words)),
            env={**_environment(port, num_ranks), "HOME": str(folder)},
            folder=folder,
            timeout_s=60,
        )
    assert not code
    return outputs


def _run_job(words: Sequence[str], *, run: str, num_ranks: int) -> bool:
    """Run a job on a worker for every rank; return whether all have finished."""
    node = replace(CPU_NODE, run=run, processes_per_node=num_ranks)

    def work(rank: int) -> None:
        scratch = Path(f"rank-{rank}")
        scratch.mkdir(exist_ok=True)
        node.write(scratch)
        os.environ |= {"LOCAL_RANK": str(rank), ENV_SCRATCH: str(scratch)}
        worker.main(words, os.environ)

    return fork_ranks(num_ranks, work)


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
