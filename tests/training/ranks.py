"""A program run by several ranks, in real processes over gloo."""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
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
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(num_ranks)]
        with reserve_port(0) as port:
            parent = subprocess.Popen(
                [sys.executable, "-m", __name__, folder, str(program), *arguments],
                env=_environment(port, num_ranks),
                cwd=ROOT,
            )
        try:
            code = parent.wait(scaled(timeout_s))
        finally:
            # Its ranks die with it.
            parent.kill()
            parent.wait()
        outputs = [log.read_text() if log.exists() else "" for log in logs]
    assert code == 0, "\n---\n".join(outputs)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


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


def _fork_ranks(folder: Path, program: str, *arguments: str) -> int:
    """Run a program on every rank, each a fork, so that slow imports happen once."""
    gc.disable()
    runpy.run_path(program, run_name="imported")
    # Frozen objects are not copied to every rank.
    gc.freeze()
    gc.enable()
    parent = os.getpid()
    children = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        child = os.fork()
        if not child:
            die_with_parent(parent)
            _become(folder / f"{rank}.log", rank, program, arguments)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return int(any(codes))


def _become(log: Path, rank: int, program: str, arguments: tuple[str, ...]) -> None:
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["RANK"] = str(rank)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    sys.exit(_fork_ranks(Path(sys.argv[1]), *sys.argv[2:]))
