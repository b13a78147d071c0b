"""Jobs of several ranks: they compute what one rank does, and leave a step together.

Tensor parallel 2 x data parallel 2, with document masks and a validation split.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.training.conftest import Cluster
from tests.training.llama.conftest import TINY, write_dataset
from tests.training.worker_ranks import run_on_ranks
from training.core.progress import read_failures
from training.storage import open_objects
from trainium_catalogue.exit_codes import ExitCode

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

VALIDATION_TOKENS = 13 * 16 + 1
"""13 sequences: no multiple of what any number of ranks computes at once."""
WORDS = (
    *("--dataset=split", "--document-masks=true", "--max-steps=2", "--eval-every=2"),
    *("--micro-batch=1", "--log-every=1"),
)
SHAPE = (*(word for word in TINY if "batch" not in word), "--tensor-parallel=2")
RUN = "build/runs/test-run"


@dataclass
class Pair:
    """Attempts of a run on two nodes of two ranks.

    Tensor parallel 2, with weights and moments sharded over two; 24 micro-batches a step.
    """

    cluster: Cluster

    def start(self, attempt: int) -> None:
        self.cluster.start(
            *SHAPE,
            *WORDS,
            "--global-batch=48",
            "--peer-timeout-s=3",
            workload="llama-tiny",
            extra={
                "TRAINIUM_PROCESSES_PER_NODE": "2",
                "AWS_BATCH_JOB_ATTEMPT": str(attempt),
            },
        )

    def end(self) -> dict[int, int]:
        return self.cluster.end(within_s=120)

    def file(self, key: str) -> str:
        return (self.cluster.folder / RUN / key).read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Of train.jsonl."""
        lines = map(json.loads, self.file("metrics/train.jsonl").splitlines())
        return [line for line in lines if line["event"] == event]

    def losses(self) -> dict[int, float]:
        steps = self.lines("step")
        assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
        return {line["step"]: line["loss"] for line in steps}

    def evaluations(self) -> dict[int, float]:
        return {line["step"]: line["val_loss"] for line in self.lines("evaluation")}


def make_pair(folder: Path) -> Pair:
    """A run with a dataset of its own."""
    data = open_objects(str(folder / "build/datasets/split"), region=None, endpoint_url=None)
    write_dataset(data, validation_tokens=VALIDATION_TOKENS)
    return Pair(Cluster(folder, num_nodes=2))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A run that a test disturbs."""
    pair = make_pair(tmp_path / "disturbed")
    yield pair
    pair.cluster.kill()


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Pair]:
    """A run that nobody disturbs, ended."""
    pair = make_pair(tmp_path / "whole")
    pair.start(1)
    assert pair.end() == {0: 0, 1: 0}, pair.cluster.all_logs()
    yield pair
    pair.cluster.kill()


def test_four_ranks_train_and_evaluate_as_one_does(laptop: Laptop, tmp_path: Path) -> None:
    four = type(laptop)(tmp_path / "build")
    for place in (laptop, four):
        write_dataset(place.objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)
    small = "--global-batch=8"
    laptop.train(*WORDS, small, run="one")
    words = (*SHAPE, *WORDS, small)
    output, *_ = run_on_ranks(tmp_path, "llama-tiny", words, run="four")

    assert "tensor parallel 2 x data parallel 2" in output
    assert four.losses("four") == pytest.approx(laptop.losses("one"), abs=1e-5)
    (one,), (found,) = laptop.lines("one", "evaluation"), four.lines("four", "evaluation")
    assert (found["step"], found["val_loss"]) == (2, pytest.approx(one["val_loss"], abs=1e-5))


# Two ranks leave in test_killed_and_resumed.py, and the vote of four is in test_vote.py.
@pytest.mark.full
def test_ranks_of_two_nodes_leave_a_step_together_and_make_it_again(
    whole: Pair, pair: Pair
) -> None:
    pair.start(1)
    pair.cluster.wait_for("training: step 1 of", node=0)
    os.kill(pair.cluster.launcher(0), signal.SIGTERM)
    assert pair.end() == {0: 143, 1: 143}, pair.cluster.all_logs()
    log = pair.cluster.log(0)
    found = re.search(r"asked to stop; (\d+) of 24 micro-batches of step 2 are lost", log)
    assert found is not None and 0 < int(found[1]) < 24, log
    status = json.loads(pair.file("results/status.json"))
    assert (status["state"], status["step"], status["last_checkpoint_step"]) == ("stopped", 1, 1)

    pair.start(2)
    assert pair.end() == {0: 0, 1: 0}, pair.cluster.all_logs()
    assert pair.losses() == whole.losses()
    assert pair.evaluations() == whole.evaluations()
    assert len(whole.losses()) == 2


def test_ranks_give_up_together_when_nothing_can_be_saved(tmp_path: Path) -> None:
    write_dataset(
        open_objects(str(tmp_path / "build/datasets/split"), region=None, endpoint_url=None)
    )
    place = tmp_path / RUN
    place.mkdir(parents=True)
    (place / "checkpoints").write_text("a file where a folder is wanted")

    words = (
        *SHAPE,
        "--dataset=split",
        "--save-every=1",
        "--max-steps=20",
        "--global-batch=8",
        "--micro-batch=1",
    )
    outputs = run_on_ranks(tmp_path, "llama-tiny", words, run="test-run", num_ranks=2, fails=True)

    for rank, output in enumerate(outputs):
        assert "StorageUnavailable: 3 saves in a row have failed, the last one of step 3" in output
        (failure,) = read_failures(tmp_path / f"rank-{rank}")
        assert failure.code is ExitCode.HOST
    status = json.loads((place / "results/status.json").read_text())
    assert status["state"] == "failed" and status["step"] in (3, 4)
