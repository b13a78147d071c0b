"""Outside Batch the launcher runs a single-node job, on a laptop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.training.conftest import ROOT
from training.launcher.addresses import reserve_port


def launch(folder: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "training.launch", "all-reduce", *words],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "TRAINIUM_DEVICE": "cpu",
            **env,
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_processes_on_one_machine_write_results_only_below_build(tmp_path: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    env = {"TRAINIUM_PROCESSES_PER_NODE": "2", "TMPDIR": str(scratch)}
    with launch(tmp_path, "--max-bytes=4096", **env) as process:
        output = process.communicate()[0]

    assert process.returncode == 0, output
    result = json.loads((tmp_path / "build/runs/local/results/all-reduce.json").read_text())
    assert (result["num_ranks"], result["status"]) == (2, "passed")
    assert list(scratch.iterdir()) == []


def test_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    with launch(tmp_path) as process:
        assert process.stdout is not None
        while "start:" not in process.stdout.readline():
            assert process.poll() is None
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        output = process.communicate()[0]

    assert process.returncode == 143, output
    assert time.monotonic() - started < 10


def test_two_jobs_on_one_machine_get_their_own_ports() -> None:
    with reserve_port(41000) as first, reserve_port(41000) as second:
        assert first != second
