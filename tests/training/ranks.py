"""A program run by several ranks, as real processes over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from training.launcher.addresses import reserve_port

ROOT = Path(__file__).resolve().parents[2]


def start_ranks(program: Path, *arguments: str, num_ranks: int) -> list[subprocess.Popen[str]]:
    """Start it on every rank, with what torch.distributed reads from the environment."""
    with reserve_port(0) as port:
        return [
            subprocess.Popen(
                [sys.executable, str(program), *arguments],
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": f"{ROOT}:{ROOT / 'constructs'}",
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "WORLD_SIZE": str(num_ranks),
                    "RANK": str(rank),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(num_ranks)
        ]


def results_of_ranks(
    program: Path, *arguments: str, num_ranks: int, timeout_s: float = 90
) -> list[dict[str, Any]]:
    """What each rank prints last, a line of JSON; all have to end well."""
    processes = start_ranks(program, *arguments, num_ranks=num_ranks)
    try:
        outputs = [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [p.returncode for p in processes] == [0] * num_ranks, "\n---\n".join(outputs)
    return [json.loads(output.splitlines()[-1]) for output in outputs]
