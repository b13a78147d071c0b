"""Jobs of two nodes of two ranks: they compute what one rank does, and leave a step together.

Tensor parallel 2 x data parallel 2, with document masks and a validation split: each of these
processes takes seconds to start, so all that four ranks show is in as few of them as can show it.
Without masks, four ranks are in test_killed_and_resumed.py.
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
from training.storage import open_objects

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

VALIDATION_TOKENS = 13 * 16 + 1
"""13 sequences: no multiple of what any number of ranks computes at once."""
WORDS = (
    *("--dataset=split", "--document-masks=true", "--max-steps=2", "--eval-every=2"),
    *("--global-batch=48", "--micro-batch=1", "--log-every=1"),
)
PAIR = (
    *(word for word in TINY if "batch" not in word),
    *WORDS,
    *("--tensor-parallel=2", "--peer-timeout-s=3"),
)
RUN = "build/runs/test-run"


@dataclass
class Pair:
    """Attempts of a run on two nodes of two ranks.

    Tensor parallel 2, with weights and moments sharded over two; 24 micro-batches a step.
    """

    cluster: Cluster

    def start(self, attempt: int, *words: str) -> None:
        given = [word.partition("=")[0] for word in words]
        self.cluster.start(
            *(word for word in PAIR if word.partition("=")[0] not in given),
            *words,
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A run that nobody disturbs, ended."""
    pair = make_pair(tmp_path_factory.mktemp("whole"))
    pair.start(1)
    assert pair.end() == {0: 0, 1: 0}, pair.cluster.all_logs()
    yield pair
    pair.cluster.kill()


def test_four_ranks_train_and_evaluate_as_one_does(whole: Pair, laptop: Laptop) -> None:
    write_dataset(laptop.objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)
    laptop.train(*WORDS, run="one")

    assert "tensor parallel 2 x data parallel 2" in whole.cluster.log(0)
    assert list(whole.losses().values()) == pytest.approx(laptop.losses("one"), abs=1e-5)
    (one,) = laptop.lines("one", "evaluation")
    assert whole.evaluations() == {2: pytest.approx(one["val_loss"], abs=1e-5)}


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


def test_ranks_of_two_nodes_give_up_together_when_nothing_can_be_saved(pair: Pair) -> None:
    place = pair.cluster.folder / RUN
    place.mkdir(parents=True)
    (place / "checkpoints").write_text("a file where a folder is wanted")

    pair.start(1, "--save-every=1", "--max-steps=20", "--global-batch=8", "--eval-every=0")

    assert pair.end() == {0: 75, 1: 75}, pair.cluster.all_logs()
    for node in (0, 1):
        log = pair.cluster.log(node)
        assert "StorageUnavailable: 3 saves in a row have failed, the last one of step 3" in log
    status = json.loads(pair.file("results/status.json"))
    assert status["state"] == "failed" and status["step"] in (3, 4)
