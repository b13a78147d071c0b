"""Settings of rehearsals, and deployments that stay up, for the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rehearsal.deployment.server import wait_until
from rehearsal.deployment.state import ROOT, RehearsalFolder, Settings
from tests.support.limits import scaled

BIN = Path(sys.executable).parent


def settings(**changes: Any) -> Settings:
    """Return the settings of a rehearsal on Batch."""
    values: dict[str, Any] = {
        "nodes": 4,
        "processes_per_node": 1,
        "processes_of": {"llama-tiny": 2},
        "instance_type": "trn1.32xlarge",
        "workloads": ("all-reduce",),
        "faults": (),
        "parameters": (),
        "containers": False,
        "addresses": "127.0.0",
    }
    return Settings(**{**values, **changes})


def rehearsal(folder: RehearsalFolder, *words: str) -> list[str]:
    """Return a command of the rehearsal in its own folder."""
    return [sys.executable, "-m", "rehearsal", *words, "--folder", str(folder.path)]


@contextmanager
def kept_up(folder: RehearsalFolder, *words: str) -> Iterator[None]:
    """Keep a deployment up."""
    process = subprocess.Popen(rehearsal(folder, "up", *words), cwd=ROOT, stdout=subprocess.DEVNULL)
    assert wait_until(folder.environment.exists, limit_s=scaled(240))
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=scaled(120))


def run_script(folder: RehearsalFolder, script: str, *, options: str = "-uc") -> tuple[int, str]:
    """Run a script in the rehearsal's environment; return its exit code and output."""
    program = f'source "$0"; PATH={BIN}:"$PATH"; {script}'
    done = subprocess.run(
        ["bash", options, program, folder.environment], cwd=ROOT, capture_output=True, text=True
    )
    return done.returncode, done.stdout or done.stderr


def submit_program(folder: RehearsalFolder, text: str, *words: str) -> None:
    """Submit a program to the deployment."""
    program = folder.path / "program" / "wait.py"
    program.parent.mkdir()
    program.write_text(text)
    code, output = run_script(folder, f"python -m jobs submit {program} {' '.join(words)} --yes")
    assert code == 0, output
