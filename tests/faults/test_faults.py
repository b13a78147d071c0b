"""Runs with faults end like runs without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.store import Losses, judge
from tests.support.limits import scaled
from training.storage import LocalObjects
from trainium_catalogue.contract import RUN_LOCK, RUN_STATUS, TRAIN_METRICS

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / folder) for folder in ("", "emulators"))
SCHEDULES = 20


# The faults of the reports that led to this are in llama/test_replaced_runs.py, without a seed.
@pytest.mark.full
@pytest.mark.timeout(2400)
def test_twenty_random_fault_schedules_leave_a_run_unaffected(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--schedules", str(SCHEDULES), "--seed", "1"],
        env={**os.environ, "PYTHONPATH": PATHS, "TMPDIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(1200),
        check=False,
    )

    assert ended.returncode in (0, 1), ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["wrong"] == []
    assert found["schedules"] == SCHEDULES
    assert {"kill", "freeze", "replace", "storage", "second"} <= found["faults"].keys()
    assert {"batch, s3: right", "eks, folder: right"} <= found["outcomes"].keys()


WHOLE: Losses = {"step": {8: 1.5}, "evaluation": {}}
HOLDER = {"job_id": "last", "attempt": 1}
STEP = json.dumps({"event": "step", "step": 8, "loss": 1.5})


@pytest.mark.parametrize(
    ("lines", "status", "found"),
    [
        ([], {}, "lines of steps: {}"),
        ([STEP, STEP], {}, "lines of steps: {8: 2}"),
        ([STEP.replace("1.5", "1.6")], {}, "losses of steps differ"),
        ([STEP], {"state": "saving", "step": 4}, "status saving 4 by ('last', 1)"),
        ([STEP], {"attempt": 2}, "status finished 8 by ('last', 2); held by ('last', 1)"),
    ],
)
def test_wrong_code_is_detected(
    tmp_path: Path, lines: list[str], status: dict[str, Any], found: str
) -> None:
    run = LocalObjects(tmp_path)
    run.put(TRAIN_METRICS, "".join(f"{line}\n" for line in lines).encode())
    run.put(RUN_LOCK, json.dumps({**HOLDER, "released": True}).encode())
    document = {**HOLDER, "state": "finished", "step": 8, **status}
    run.put(RUN_STATUS, json.dumps(document).encode())

    first, last = judge(run, WHOLE, set())

    assert first.startswith(found)
    assert last.startswith("the last checkpoint is missing")
