"""Whole jobs on the real NxD: killed, damaged, continued on other ranks, exported.

What the pieces must equal is one run that nobody disturbs, to the last digit on the same ranks.
"""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path

import pytest

from tests.nxd.faults import ENV_HOLD
from tests.nxd.jobs import SAVE_EVERY, STEPS, Desk, flip_a_bit, write_digits
from tests.training.conftest import Cluster
from trainium_catalogue.contract import WITHDRAWN_BYTES

pytestmark = pytest.mark.timeout(900)
FOUR = ("--tensor-parallel=2",)
"""Tensor parallel 2 x data parallel 2, on two nodes."""
HALF = STEPS // 2
CLOSE = 2e-3
"""Of losses on other ranks or in fp32: bf16 keeps 8 bits."""


@pytest.fixture(scope="module")
def whole(desk: Desk) -> list[float]:
    """Losses of a run on four ranks that nobody disturbs."""
    desk.finish("whole", *FOUR, nodes=2, processes=2)
    return desk.losses("whole")


def test_a_job_trains_to_its_end(desk: Desk, whole: list[float]) -> None:
    (end,) = desk.lines("whole", "end")

    assert end["status"] == "finished"
    assert len(whole) == STEPS
    assert whole[-1] < whole[0] - 1
    held_out = desk.held_out("whole")
    assert len(held_out) == STEPS // SAVE_EVERY
    assert sorted(held_out, reverse=True) == held_out


def test_pieces_have_exactly_the_losses_of_a_whole_run(
    desk: Desk, whole: list[float], tmp_path: Path
) -> None:
    # Killed during a save: everything of step 6 is there but its marker.
    sign = tmp_path / "held"
    job = desk.start("pieces", *FOUR, nodes=2, processes=2, extra={ENV_HOLD: f"{HALF}:{sign}"})
    _wait_for(sign, job)
    os.kill(job.launcher(1), signal.SIGKILL)
    assert job.end(within_s=120) == {0: 75, 1: 137}, job.all_logs()
    marker = desk.checkpoint("pieces", HALF) / "complete.json"
    assert marker.stat().st_size == WITHDRAWN_BYTES

    # Continued from step 3, and stopped on request.
    job = desk.start("pieces", *FOUR, nodes=2, processes=2)
    job.wait_for(f"training: step {HALF + 1} of", node=0, within_s=240)
    os.kill(job.launcher(0), signal.SIGTERM)
    assert job.end(within_s=120) == {0: 143, 1: 143}, job.all_logs()
    assert desk.checkpoint("pieces", HALF).name in job.all_logs(), "the torn one is passed over"

    # Damaged: a single bit of the newest checkpoint.
    newest = max(
        path.parent for path in desk.checkpoint("pieces", 0).parent.glob("*/complete.json")
    )
    file = flip_a_bit(newest)
    log = desk.finish("pieces", *FOUR, nodes=2, processes=2)
    (refused,) = [line for line in log.splitlines() if f"{newest.name} is refused" in line]
    assert file in refused

    assert desk.losses("pieces") == whole
    assert desk.held_out("pieces") == desk.held_out("whole")
    assert desk.lines("pieces", "resume")[0]["step"] == HALF // 2


@pytest.mark.parametrize(
    ("tensor", "processes"), [(1, 1), (2, 2), (4, 4)], ids=["one-rank", "two-ranks", "tp4"]
)
def test_a_run_continues_on_other_ranks(
    desk: Desk, whole: list[float], tensor: int, processes: int
) -> None:
    run = f"on-{processes}"
    desk.copy("whole", run, up_to=HALF)
    desk.finish(run, f"--tensor-parallel={tensor}", processes=processes)

    (resume,) = desk.lines(run, "resume")
    assert resume["step"] == HALF
    assert desk.losses(run) == pytest.approx(whole, rel=CLOSE)
    assert desk.losses(run)[:HALF] == whole[:HALF]
    assert desk.held_out(run) == pytest.approx(desk.held_out("whole"), rel=CLOSE)


def test_the_native_backend_continues_what_nxd_began(desk: Desk, whole: list[float]) -> None:
    desk.copy("whole", "then-native", up_to=HALF)
    desk.finish("then-native", "--tensor-parallel=1", native=True)

    assert desk.losses("then-native") == pytest.approx(whole, rel=CLOSE)


def test_nxd_continues_what_the_native_backend_began(desk: Desk, whole: list[float]) -> None:
    desk.finish("then-nxd", "--tensor-parallel=1", f"--steps-this-run={HALF}", native=True)
    desk.finish("then-nxd", *FOUR, processes=4)

    assert desk.losses("then-nxd") == pytest.approx(whole, rel=CLOSE)
    (resume,) = desk.lines("then-nxd", "resume")
    assert resume["step"] == HALF


def test_an_export_loads_in_transformers(desk: Desk, whole: list[float]) -> None:
    desk.finish("whole", "--run=whole", "--dtype=float32", workload="export", native=True)
    loss = _loss_of_export(desk.root / "export" / "whole", desk.root / "datasets" / "words")

    # Of the sequences that were trained on, by a model that has been trained.
    assert math.isclose(loss, whole[-1], rel_tol=0.05)


def test_mnists_backend_trains_and_tests_as_the_native_one(desk: Desk) -> None:
    write_digits(desk.root)
    words = ("--dataset=digits", "--log-every=1", "--batch-size=8")
    log = desk.finish("digits", *words, workload="mnist", nodes=2)
    native = desk.finish("digits-native", *words, workload="mnist", nodes=2, native=True)

    assert desk.losses("digits") == pytest.approx(desk.losses("digits-native"), rel=1e-5)
    (found,), (expected,) = (
        [line for line in text.splitlines() if line.startswith("Test accuracy")]
        for text in (log, native)
    )
    assert found == expected


def _loss_of_export(folder: Path, dataset: Path) -> float:
    """Mean over the first tokens of the dataset, by transformers alone."""
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
