"""Verify on four real processes, TP 2 x DP 2: green as it is, red with each defect put back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.ports import reserve_port

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("rank_program.py")
RANKS = 4
Found = dict[str, tuple[bool, str]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What every rank has found; they agree."""
    folder = tmp_path_factory.mktemp("verify-ranks")
    with reserve_port(0) as port:
        processes = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), str(folder)],
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": f"{ROOT}:{ROOT / 'constructs'}",
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "WORLD_SIZE": str(RANKS),
                    "RANK": str(rank),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(RANKS)
        ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [p.returncode for p in processes] == [0] * RANKS, "\n---\n".join(outputs)
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert all(result == results[0] for result in results)
    return {name: (ok, detail) for name, (ok, detail) in results[0].items()}


@pytest.mark.parametrize("name", ["gradients", "gradients at 4", "resume", "BERT", "digits"])
def test_what_is_right_passes(found: Found, name: str) -> None:
    ok, detail = found[name]

    assert ok, detail


@pytest.mark.parametrize(
    "name",
    [
        "llama: lost sum", "llama: sum, not mean", "llama: one rank's data", "llama: local norm",
        "llama: ranks swapped", "BERT: sum, not mean", "BERT: one rank's data",
        "digits: sum, not mean", "digits: one rank's data",
    ],
)  # fmt: skip
def test_a_defect_fails(found: Found, name: str) -> None:
    ok, detail = found[name]

    assert not ok, detail
