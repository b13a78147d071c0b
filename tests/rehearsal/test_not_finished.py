"""Rehearsals that do not finish: interrupted, or refused immediately."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from rehearsal.deployment.server import wait_until
from rehearsal.deployment.state import ROOT, RehearsalFolder
from tests.support.limits import scaled

ADDRESSES = "127.0.42"


def command(folder: Path, *words: str) -> list[str]:
    place = ["--folder", str(folder), "--addresses", ADDRESSES]
    return [sys.executable, "-m", "rehearsal", "run", *place, *words]


def test_ctrl_c_ends_with_130_and_leaves_no_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "--orchestrators", "batch"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        # Like a terminal: the signal goes to a whole process group.
        start_new_session=True,
    )
    synth_log = RehearsalFolder(tmp_path).log("cdk-synth")
    assert wait_until(synth_log.exists, limit_s=scaled(60))
    assert any("trainium_emulators.aws.server" in line for line in command_lines_with(ADDRESSES))
    os.killpg(process.pid, signal.SIGINT)

    assert process.wait(timeout=scaled(60)) == 130
    assert command_lines_with(ADDRESSES) == []
    receipt = json.loads(RehearsalFolder(tmp_path).receipt.read_text())
    assert receipt["outcome"] == receipt["phases"][-1]["outcome"] == "interrupted"


def test_down_interrupts_run_and_reports_no_proof(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "--orchestrators", "batch"), cwd=ROOT, stdout=subprocess.DEVNULL
    )
    assert wait_until(RehearsalFolder(tmp_path).log("cdk-synth").exists, limit_s=scaled(60))
    down = subprocess.run(
        [sys.executable, "-m", "rehearsal", "down", "--folder", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert (down.returncode, process.wait(timeout=scaled(60))) == (1, 130)
    assert down.stdout.startswith("interrupted, leftovers were not searched for; ")


def test_unknown_fault_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--fault", "kill-chld"),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "did you mean 'kill-child'" in done.stderr


def command_lines_with(addresses: str) -> list[str]:
    """Return the command lines with a rehearsal's ``--addresses``, such as its server's."""
    lines = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    return [line for line in lines if f"--addresses {addresses}" in line]
