"""Timing of whole processes."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE_PYTHON = ROOT / "build" / "baselines" / "bin" / "python"
"""Python of the environment for the baselines in `make bench`."""


def seconds_of(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the wall-clock seconds of ``command``; raise with its output if it fails."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=dict(env), capture_output=True, text=True)
    elapsed = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return elapsed
