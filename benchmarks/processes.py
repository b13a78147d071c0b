"""Timing of whole processes."""

import hashlib
import io
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE_PYTHON = ROOT / "build" / "baselines" / "bin" / "python"
"""Python of the environment for the baselines in `make bench`."""


def bundle_of(program: str) -> tuple[bytes, str]:
    """Pack a program as train.py, like a bundle; return the archive and its digest."""
    data, buffer = program.encode(), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue(), hashlib.sha256(buffer.getvalue()).hexdigest()


def seconds_of(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the wall-clock seconds of ``command``; raise with its output if it fails."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=dict(env), capture_output=True, text=True)
    elapsed = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return elapsed
