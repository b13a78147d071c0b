"""What `status` tells of a training, from what its nodes have left in the bucket."""

from __future__ import annotations

from tests.jobs.conftest import Desk
from tests.jobs.test_submit_training import existing_run

STATUS = {"state": "training", "step": 61, "max_steps": 100, "attempt": 2, "num_nodes": 2}


def test_an_attempt_that_goes_on_from_a_checkpoint_is_not_without_one(desk: Desk) -> None:
    existing_run(desk, 30, 60)
    desk.put("runs/my-run/results/status.json", {**STATUS, "last_checkpoint_step": None})

    assert "last checkpoint: step 60, of an earlier attempt" in desk.run("status", "my-run").stdout


def test_a_run_that_has_saved_nothing_says_so(desk: Desk) -> None:
    existing_run(desk)
    desk.put("runs/my-run/results/status.json", {**STATUS, "last_checkpoint_step": None})

    assert "no checkpoint yet" in desk.run("status", "my-run").stdout
