"""Checks the page of `jobs tensorboard` at the printed address."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rehearsal.deployment.state import ROOT
from rehearsal.proofs import browser
from trainium_catalogue.contract import LOSS_SCALAR

DRAWN = "a headless browser finds the loss curve on TensorBoard's page"
"""Name of the check that needs a browser."""
LIMIT_S = 90.0
"""Timeout for TensorBoard to start and read a run."""
_STOP_LIMIT_S = 20.0
_URL = re.compile(r"http://127\.0\.0\.1:\d+/[^\s(]*")


def check_page(
    command: Sequence[str], run: str, *, log: Path, environment: Mapping[str, str]
) -> int:
    """Run the command until its page shows the run, interrupt it, and return its exit code."""
    with log.open("w", encoding="utf-8") as record:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=record,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + LIMIT_S
        result = ""
        try:
            while not result and process.poll() is None and time.monotonic() < deadline:
                result = describe_run(log.read_text(encoding="utf-8"), run)
                time.sleep(0.5)
            result += describe_curve(log, run) if result and browser.is_installed() else ""
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=_STOP_LIMIT_S)
        finally:
            process.kill()
    with log.open("a", encoding="utf-8") as record:
        record.write(result or f"TensorBoard has no scalars for {run}\n")
    return code


def describe_curve(log: Path, run: str) -> str:
    """Describe the curve on the page whose address is in the log; save a screenshot."""
    url = url_in(log.read_text(encoding="utf-8"))
    assert url is not None
    try:
        (charts,) = browser.look([url], runs=[run], picture=log.with_suffix(".png"))
    except browser.BrowserError as error:
        return f"{error}\n"
    return f"the page draws {charts[run]} of {LOSS_SCALAR}\n"


def url_in(output: str) -> str | None:
    """Return the address printed by the command, if any."""
    # The line is wrapped to the terminal's width.
    match = _URL.search(output.replace("\n", ""))
    return match and match[0]


def describe_run(output: str, run: str) -> str:
    """Describe a run on the page whose address is in the output; empty until it has scalars."""
    url = url_in(output)
    if url is None:
        return ""
    try:
        # Loopback: never go through the user's proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url.partition('?')[0]}data/plugin/scalars/tags", timeout=5) as response:
            tags: dict[str, Any] = json.load(response)
    except (urllib.error.URLError, OSError, ValueError):
        return ""
    return "".join(
        f"{name} has {', '.join(sorted(entries))}\n"
        for name, entries in tags.items()
        if name.startswith(run) and entries
    )
