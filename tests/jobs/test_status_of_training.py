"""Training in `status`, from the nodes' files in the bucket."""

from __future__ import annotations

from tests.jobs.conftest import Cli
from tests.jobs.test_submit_training import existing_run

STATUS = {"state": "training", "step": 61, "max_steps": 100, "attempt": 2, "num_nodes": 2}


def test_status_shows_checkpoint_of_earlier_attempt(cli: Cli) -> None:
    existing_run(cli, 30, 60)
    cli.put("runs/my-run/results/status.json", {**STATUS, "last_checkpoint_step": None})

    assert "last checkpoint: step 60, by an earlier attempt" in cli.run("status", "my-run").stdout


def test_status_shows_missing_checkpoint(cli: Cli) -> None:
    existing_run(cli)
    cli.put("runs/my-run/results/status.json", {**STATUS, "last_checkpoint_step": None})

    assert "no checkpoint yet" in cli.run("status", "my-run").stdout
