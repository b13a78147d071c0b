"""The page that `jobs tensorboard` opens, in a real headless browser."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rehearsal.proofs.browser import LOOK, BrowserError, look
from rehearsal.proofs.tensorboard import describe_run, url_in
from tests.jobs.conftest import Cli
from tests.jobs.eks.conftest import ROOT
from tests.training.llama.conftest import CONTEXT
from training.storage import open_objects
from training.trainer.records import StepRecord
from training.trainer.run_files import RunFiles

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


def write(logs: Path, run: str, losses: Sequence[float]) -> None:
    """Write the event file of a training run."""
    files = RunFiles(
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


# TensorBoard and a browser take about ten seconds: only they show what a user sees.
def test_page_has_loss_curve_of_run(cli: Cli, tmp_path: Path) -> None:
    logs = tmp_path / "runs"
    write(logs, "nightly", LOSSES)
    for path in (logs / "nightly").rglob("*tfevents*"):
        key = path.relative_to(logs / "nightly")
        cli.put(f"runs/nightly/{key}", path.read_bytes())
    output = tmp_path / "output"
    with output.open("w") as file:
        words = [sys.executable, "-m", "jobs", "tensorboard", "nightly", "--no-browser"]
        process = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=file)
    try:
        wait(lambda: describe_run(output.read_text(), "nightly"))
        url = url_in(output.read_text())
        assert url is not None
        (page,) = look([url], runs=("nightly", "other"))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)

    curve = page["nightly"]
    assert curve.has_curve
    assert (curve.step, curve.value) == (len(LOSSES), LOSSES[-1])
    assert curve.falls
    assert (page["other"].card, page["other"].has_curve) == (True, False)


def test_page_without_charts_has_no_curve() -> None:
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


def test_page_that_cannot_be_opened_is_an_error() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        address = f"http://127.0.0.1:{server.server_port}"

    with pytest.raises(BrowserError, match="ERR_CONNECTION_REFUSED"):
        look([address], runs=["nightly"])


def test_browser_start_failure_shows_reason(tmp_path: Path) -> None:
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
