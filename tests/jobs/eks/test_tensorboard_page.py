"""The page that `jobs tensorboard` opens, in a real headless browser."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rehearsal.checks.browser import LOOK, BrowserError, look
from rehearsal.checks.tensorboard import seen, url_in
from tests.jobs.eks.conftest import ROOT, EksDesk
from tests.support.limits import scaled
from tests.training.llama.conftest import CONTEXT
from training.storage import open_objects
from training.trainer.records import StepRecord
from training.trainer.run_files import RunFiles
from trainium_catalogue.kubernetes import NAMESPACE, TAINT
from trainium_emulators.kubernetes.resources import DEPLOYMENT

LABELS = {"app.kubernetes.io/name": "tensorboard"}
LOSSES = [*(6 / step for step in range(1, 21)), 0.2897]
RECORD = StepRecord(
    step=1,
    max_steps=len(LOSSES),
    epoch=0,
    loss=0.0,
    lr=0.1,
    grad_norm=1.0,
    step_s=1.0,
    data_s=0.1,
    sequences_per_second=8.0,
    tokens_per_second=128.0,
    mfu=None,
    throughput=8.0,
    tokens_total=128,
)
LIMIT_S = 90


def deployment(logs: Path) -> dict[str, Any]:
    """As the stack makes it; it reads a folder of this machine."""
    listen = ["--host=0.0.0.0", "--port=6006"]
    container = {
        "name": "tensorboard",
        "image": "x",
        "command": ["python", "-m", "tensorboard.main"],
        "args": [f"--logdir={logs}", *listen, "--reload_interval=30"],
    }
    pod = {
        "containers": [container],
        "tolerations": [{"key": TAINT, "operator": "Exists"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "tensorboard", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "tensorboard", "namespace": NAMESPACE},
    "spec": {"selector": LABELS, "ports": [{"name": "http", "port": 6006}]},
}


def write(logs: Path, run: str, losses: Sequence[float]) -> None:
    """What a training writes of its steps, as it writes it."""
    files = RunFiles.open(
        open_objects(str(logs.parent / "bucket" / run), region=None, endpoint_url=None),
        logs / run,
        context=replace(CONTEXT, run=run),
        workload="bert-tiny",
    )
    files.begin(0, num_ranks=1, backend="native")
    for step, loss in enumerate(losses, start=1):
        files.step(replace(RECORD, step=step, loss=loss))
    files.close()


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def answers(eks: EksDesk) -> bool:
    for pod in eks.pods():
        with contextlib.suppress(OSError, KeyError):
            socket.create_connection((pod["status"]["podIP"], 6006), timeout=scaled(5)).close()
            return True
    return False


# TensorBoard and a browser take some ten seconds: nothing less shows what a user sees.
def test_the_page_that_opens_has_the_curve_of_the_runs_loss(eks: EksDesk, tmp_path: Path) -> None:
    logs = tmp_path / "runs"
    eks.desk.put("runs/nightly/run.json")
    write(logs, "nightly", LOSSES)
    write(logs, "short", LOSSES[:1])
    eks.cluster.apply(SERVICE)
    eks.cluster.apply(deployment(logs))
    # TensorBoard takes a port for taken that is so on this machine's first loopback address, which
    # in a cluster is another machine's.
    wait(lambda: answers(eks))
    output = tmp_path / "output"
    with output.open("w") as file:
        words = [sys.executable, "-m", "jobs", "tensorboard", "nightly", "--no-browser"]
        process = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=file)
    try:
        wait(lambda: seen(output.read_text(), "nightly"))
        url = url_in(output.read_text())
        assert url is not None
        everything = url.partition("?")[0]
        own, all_runs = look([url, everything], runs=("nightly", "short", "other"))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        eks.cluster.store.delete(DEPLOYMENT, NAMESPACE, "tensorboard")

    assert "from the cluster" in output.read_text()
    for page in (own, all_runs):
        curve = page["nightly"]
        assert curve.has_curve
        assert (curve.step, curve.value) == (len(LOSSES), LOSSES[-1])
        assert curve.falls
    # One point is no curve, and another run's curve is not this one's.
    assert (own["short"].value, all_runs["short"].value) == (None, LOSSES[0])
    assert not all_runs["short"].has_curve
    assert (all_runs["other"].card, all_runs["other"].has_curve) == (True, False)


def test_a_page_without_charts_has_no_curve() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<h1>step loss nightly</h1>")

        def log_message(self, *words: object) -> None:
            return None

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (page,) = look([f"http://127.0.0.1:{server.server_port}"], runs=["nightly"], limit_s=0.5)
        server.shutdown()

    assert (page["nightly"].card, page["nightly"].has_curve) == (False, False)


def test_a_page_that_cannot_be_opened_is_an_error() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        address = f"http://127.0.0.1:{server.server_port}"

    with pytest.raises(BrowserError, match="ERR_CONNECTION_REFUSED"):
        look([address], runs=["nightly"])


def test_a_browser_that_does_not_start_says_why(tmp_path: Path) -> None:
    script = tmp_path / "look.mjs"
    script.write_text(LOOK.read_text())
    packages = tmp_path / "node_modules"
    (packages / ".chromium").mkdir(parents=True)
    (packages / "playwright-core").symlink_to(LOOK.parent / "node_modules" / "playwright-core")
    with pytest.raises(BrowserError, match="make setup-tests installs it"):
        look(["http://127.0.0.1"], runs=["nightly"], script=script)

    program = packages / ".chromium" / "chromium"
    program.write_text("#!/bin/sh\necho the kernel lacks something >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(BrowserError, match="the kernel lacks something"):
        look(["http://127.0.0.1"], runs=["nightly"], script=script)
