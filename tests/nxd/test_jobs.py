"""Complete jobs on the real NxD: killed, damaged, resumed on other ranks, exported.

Interrupted runs must equal one uninterrupted run, bit for bit on the same ranks.
"""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path

import pytest

from tests.nxd.faults import ENV_HOLD
from tests.nxd.jobs import SAVE_EVERY, STEPS, LocalRuns, flip_a_bit, write_digits
from tests.training.conftest import Cluster
from trainium_catalogue.contract import WITHDRAWN_BYTES

pytestmark = pytest.mark.timeout(900)
FOUR = ("--tensor-parallel=2",)
"""Tensor parallel 2 x data parallel 2, on two nodes."""
HALF = STEPS // 2
CLOSE = 2e-3
"""Of losses on other ranks or in fp32: bf16 keeps 8 bits."""


@pytest.fixture(scope="module")
def whole(runs: LocalRuns) -> list[float]:
    """Return the losses of an uninterrupted run on four ranks."""
    runs.finish("whole", *FOUR, nodes=2, processes=2)
    return runs.losses("whole")


def test_a_job_trains_to_its_end(runs: LocalRuns, whole: list[float]) -> None:
    (end,) = runs.lines("whole", "end")

    assert end["status"] == "finished"
    assert len(whole) == STEPS
    assert whole[-1] < whole[0] - 1
    held_out = runs.held_out("whole")
    assert len(held_out) == STEPS // SAVE_EVERY
    assert sorted(held_out, reverse=True) == held_out


def test_resumed_jobs_have_exactly_the_losses_of_an_uninterrupted_run(
    runs: LocalRuns, whole: list[float], tmp_path: Path
) -> None:
    # Killed during a save: step 6 lacks only its marker.
    sign = tmp_path / "held"
    job = runs.start("pieces", *FOUR, nodes=2, processes=2, extra={ENV_HOLD: f"{HALF}:{sign}"})
    _wait_for(sign, job)
    os.kill(job.launcher(1), signal.SIGKILL)
    assert job.end(within_s=120) == {0: 75, 1: 137}, job.all_logs()
    marker = runs.checkpoint("pieces", HALF) / "complete.json"
    assert marker.stat().st_size == WITHDRAWN_BYTES

    # Resumed from step 3, and stopped on request.
    job = runs.start("pieces", *FOUR, nodes=2, processes=2)
    job.wait_for(f"training: step {HALF + 1} of", node=0, within_s=240)
    os.kill(job.launcher(0), signal.SIGTERM)
    assert job.end(within_s=120) == {0: 143, 1: 143}, job.all_logs()
    assert runs.checkpoint("pieces", HALF).name in job.all_logs(), "the torn one is passed over"

    # Damaged: a single bit of the newest checkpoint.
    newest = max(
        path.parent for path in runs.checkpoint("pieces", 0).parent.glob("*/complete.json")
    )
    file = flip_a_bit(newest)
    log = runs.finish("pieces", *FOUR, nodes=2, processes=2)
    (refused,) = [line for line in log.splitlines() if f"skipping checkpoint {newest.name}" in line]
    assert file in refused

    assert runs.losses("pieces") == whole
    assert runs.held_out("pieces") == runs.held_out("whole")
    assert runs.lines("pieces", "resume")[0]["step"] == HALF // 2


@pytest.mark.parametrize(
    ("tensor", "processes"), [(1, 1), (2, 2), (4, 4)], ids=["one-rank", "two-ranks", "tp4"]
)
def test_a_run_resumes_on_other_ranks(
    runs: LocalRuns, whole: list[float], tensor: int, processes: int
) -> None:
    run = f"on-{processes}"
    runs.copy("whole", run, up_to=HALF)
    runs.finish(run, f"--tensor-parallel={tensor}", processes=processes)

    (resume,) = runs.lines(run, "resume")
    assert resume["step"] == HALF
    assert runs.losses(run) == pytest.approx(whole, rel=CLOSE)
    assert runs.losses(run)[:HALF] == whole[:HALF]
    assert runs.held_out(run) == pytest.approx(runs.held_out("whole"), rel=CLOSE)


def test_the_native_backend_resumes_an_nxd_run(runs: LocalRuns, whole: list[float]) -> None:
    runs.copy("whole", "then-native", up_to=HALF)
    runs.finish("then-native", "--tensor-parallel=1", native=True)

    assert runs.losses("then-native") == pytest.approx(whole, rel=CLOSE)


def test_nxd_resumes_a_native_run(runs: LocalRuns, whole: list[float]) -> None:
    runs.finish("then-nxd", "--tensor-parallel=1", f"--steps-this-run={HALF}", native=True)
    runs.finish("then-nxd", *FOUR, processes=4)

    assert runs.losses("then-nxd") == pytest.approx(whole, rel=CLOSE)
    (resume,) = runs.lines("then-nxd", "resume")
    assert resume["step"] == HALF


def test_an_export_loads_in_transformers(runs: LocalRuns, whole: list[float]) -> None:
    runs.finish("whole", "--run=whole", "--dtype=float32", workload="export", native=True)
    loss = _loss_of_export(runs.root / "export" / "whole", runs.root / "datasets" / "words")

    # Training sequences, on a trained model.
    assert math.isclose(loss, whole[-1], rel_tol=0.05)


def test_mnists_backend_trains_and_tests_as_the_native_one(runs: LocalRuns) -> None:
    write_digits(runs.root)
    words = ("--dataset=digits", "--log-every=1", "--batch-size=8")
    log = runs.finish("digits", *words, workload="mnist", nodes=2)
    native = runs.finish("digits-native", *words, workload="mnist", nodes=2, native=True)

    assert runs.losses("digits") == pytest.approx(runs.losses("digits-native"), rel=1e-5)
    (found,), (expected,) = (
        [line for line in text.splitlines() if line.startswith("Test accuracy")]
        for text in (log, native)
    )
    assert found == expected


def _loss_of_export(folder: Path, dataset: Path) -> float:
    """Return transformers' mean loss over the dataset's first tokens."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    ids = np.fromfile(dataset / "shard-00000.bin", "<u2", count=2048).astype(np.int64)
    batch = torch.from_numpy(ids).view(-1, 16)
    with torch.no_grad():
        return float(model(input_ids=batch, labels=batch).loss)


def _wait_for(sign: Path, job: Cluster, within_s: float = 240) -> None:
    deadline = time.monotonic() + within_s
    while not sign.exists():
        assert time.monotonic() < deadline, job.all_logs()
        time.sleep(0.05)
