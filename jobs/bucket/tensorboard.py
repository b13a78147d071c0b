"""TensorBoard of a run on this machine, on copies of the run's logs in the bucket."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from trainium_catalogue.contract import run_prefix

PORT = 6006
"""TensorBoard's own."""
_START_LIMIT_S = 60.0


def check_installed() -> None:
    """Refuse where there is no TensorBoard."""
    if importlib.util.find_spec("tensorboard") is None:
        raise Refusal(
            "no-tensorboard",
            "TensorBoard is not installed here; install what requirements-dev.txt pins "
            "(`make setup`), or use a deployment with a cluster, which has one",
        )


def copy_logs(bucket: Bucket, run: str, folder: Path) -> int:
    """Fetch what is new or has grown; returns how many files the run has."""
    prefix = run_prefix(run, "logs")
    number = 0
    for found in bucket.objects(prefix):
        target = folder / found.key.removeprefix(prefix)
        number += 1
        if target.exists() and target.stat().st_size == found.size:
            continue
        data = bucket.read(found.key)
        if data is None:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        # TensorBoard may be reading it: events are only ever appended.
        with target.open("r+b" if target.exists() else "wb") as file:
            file.write(data)
    return number


def no_logs(bucket: Bucket, run: str) -> Refusal:
    """The refusal for a run that has logged nothing."""
    return Refusal(
        "no-logs",
        f"run {run} has no TensorBoard logs in s3://{bucket.name}/{run_prefix(run, 'logs')}; "
        f"training writes the first with its first logged step: python -m jobs status {run}",
    )


def free_port(wanted: int | None) -> int:
    """The port that is asked for, else TensorBoard's own, else any; refuses a taken one."""
    for port in (PORT, 0) if wanted is None else (wanted,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Refusal(
        "port-taken", f"--port {wanted} is taken on this machine; leave --port out for a free one"
    )


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start TensorBoard and wait until it answers."""
    words = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--reload_interval", "5"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + _START_LIMIT_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while process.poll() is None and time.monotonic() < deadline:
        try:
            opener.open(f"http://127.0.0.1:{port}/", timeout=5).close()
            return process
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    process.terminate()
    raise Refusal(
        "tensorboard", f"TensorBoard does not start here; see why with: {' '.join(words)}"
    )
