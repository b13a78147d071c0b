"""A program run by several ranks, in real processes over gloo."""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.limits import scaled
from training.core.processes import die_with_parent
from training.launcher.addresses import reserve_port

ROOT = Path(__file__).resolve().parents[2]


def results_of_ranks(
    program: Path, *arguments: str, num_ranks: int, timeout_s: float = 90
) -> list[dict[str, Any]]:
    """Return each rank's last line, parsed as JSON; all must succeed."""
    with tempfile.TemporaryDirectory() as folder, reserve_port(0) as port:
        code, outputs = run_parent(
            __name__,
            *(folder, str(program), *arguments),
            env=_environment(port, num_ranks),
            folder=Path(folder),
            timeout_s=timeout_s,
        )
    assert code == 0
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def run_parent(
    module: str, *words: str, env: Mapping[str, str], folder: Path, timeout_s: float
) -> tuple[int, list[str]]:
    """Run a module whose ranks write ``rank-<n>.log`` in ``folder``; return its code and these."""
    parent = subprocess.Popen([sys.executable, "-m", module, *words], env=env, cwd=folder)
    try:
        code = parent.wait(scaled(timeout_s))
    finally:
        # Its ranks die with it.
        parent.kill()
        parent.wait()
        logs = [folder / f"rank-{rank}.log" for rank in range(int(env["WORLD_SIZE"]))]
        outputs = [log.read_text() if log.exists() else "" for log in logs]
        print("\n---\n".join(outputs))
    return code, outputs


def _environment(port: int, num_ranks: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_ranks),
    }


def fork_ranks(num_ranks: int, run: Callable[[int], object]) -> bool:
    """Run every rank as a fork, so that slow imports happen once; return whether all succeed.

    Each writes to ``rank-<n>.log`` in the working directory.
    """
    parent = os.getpid()
    for rank in range(num_ranks):
        if not os.fork():
            die_with_parent(parent)
            output = os.open(f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ["RANK"] = str(rank)
            run(rank)
            sys.exit()
    return not any([os.wait()[1] for _ in range(num_ranks)])


def _main(folder: str, program: str, *arguments: str) -> int:
    gc.disable()
    runpy.run_path(program, run_name="imported")
    # Frozen objects are not copied to every rank.
    gc.freeze()
    gc.enable()
    sys.argv = [program, *arguments]
    num_ranks = int(os.environ["WORLD_SIZE"])
    return int(not fork_ranks(num_ranks, lambda rank: runpy.run_path(program, run_name="__main__")))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
