"""Jobs that end early, within a micro-batch: whole steps are safe, and all ranks leave at once."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.training.conftest import Cluster
from tests.training.llama.conftest import TINY, write_dataset
from training.core.job import Stopped, StopSwitch
from training.storage import open_objects

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

STEPS = 5
MICRO_BATCHES = 8
WORDS = (f"--max-steps={STEPS}", "--micro-batch=1")


def asks_in(step: int, micro: int, stop: StopSwitch) -> Callable[[str], None]:
    """Ask when micro-batch ``micro``, from 1, of ``step`` begins; none may follow it."""
    begun = 0

    def on_report(text: str) -> None:
        nonlocal begun
        if re.match(r"step \d+ of", text):
            assert not stop.requested, "a micro-batch was begun after the request"
            begun += text.startswith(f"step {step} of")
            stop.requested = begun == micro

    return on_report


def stop_in(laptop: Laptop, run: str, step: int, micro: int, *words: str) -> None:
    stop = StopSwitch()
    with pytest.raises(Stopped):
        laptop.train(*WORDS, *words, run=run, on_report=asks_in(step, micro, stop), stop=stop)
    status = laptop.status(run)
    assert (status["state"], status["step"]) == ("stopped", step - 1)


def saved(laptop: Laptop, run: str) -> list[int]:
    return [line["step"] for line in laptop.lines(run, "saved")]


@pytest.fixture(scope="module")
def whole(laptop: Laptop) -> list[float]:
    """Losses of a run that nobody stops."""
    laptop.train(*WORDS, run="whole")
    return laptop.losses("whole")


@pytest.mark.parametrize("micro", [1, 4, MICRO_BATCHES - 1])
def test_a_stop_drops_the_step_that_is_not_whole_and_saves_the_one_before(
    laptop: Laptop, whole: list[float], micro: int
) -> None:
    run = f"stopped-{micro}"
    stop_in(laptop, run, 3, micro)

    assert saved(laptop, run) == [2]
    laptop.train(run=run, tiny=False)
    assert laptop.losses(run) == whole


def test_a_stop_in_the_last_micro_batch_saves_the_step(laptop: Laptop, whole: list[float]) -> None:
    stop = StopSwitch()
    with pytest.raises(Stopped):
        laptop.train(*WORDS, run="last", on_report=asks_in(3, MICRO_BATCHES, stop), stop=stop)

    assert laptop.status("last")["step"] == 3
    assert saved(laptop, "last") == [3]
    laptop.train(run="last", tiny=False)
    assert laptop.losses("last") == whole


def test_the_last_whole_step_is_logged_once_however_seldom_steps_are(
    laptop: Laptop, whole: list[float]
) -> None:
    stop_in(laptop, "seldom", 4, 2, "--log-every=100")
    laptop.train(run="seldom", tiny=False)

    steps = {line["step"]: line for line in laptop.lines("seldom", "step")}
    assert [line["step"] for line in laptop.lines("seldom", "step")] == [1, 3, 4, 5]
    assert [steps[step]["loss"] for step in (1, 3, 4, 5)] == [whole[i] for i in (0, 2, 3, 4)]


def test_a_stop_in_the_first_step_of_a_job_saves_nothing_and_loses_nothing(
    laptop: Laptop, whole: list[float]
) -> None:
    stop_in(laptop, "early", 1, 3)
    assert not laptop.file("checkpoints", "early").exists()
    laptop.train(*WORDS, "--steps-this-run=2", run="early")
    stop_in(laptop, "early", 3, 3)
    assert saved(laptop, "early") == [2]

    laptop.train(run="early", tiny=False)
    assert laptop.losses("early") == whole


def test_a_step_that_is_saved_already_is_not_saved_again(laptop: Laptop) -> None:
    stop_in(laptop, "saved", 3, 5, "--save-every=2")

    assert saved(laptop, "saved") == [2]


PAIR = (
    *(word for word in TINY if "batch" not in word),
    *("--dataset=words", "--tensor-parallel=2", "--max-steps=2", "--peer-timeout-s=3"),
    *("--global-batch=48", "--micro-batch=1", "--log-every=1"),
)


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
        return (self.cluster.folder / "build/runs/test-run" / key).read_text()

    def losses(self) -> dict[int, float]:
        lines = map(json.loads, self.file("metrics/train.jsonl").splitlines())
        steps = [line for line in lines if line["event"] == "step"]
        assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
        return {line["step"]: line["loss"] for line in steps}


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[list[Pair]]:
    """Two runs that do not know of each other, with the same dataset."""
    pairs = []
    for name in ("whole", "stopped"):
        folder = tmp_path / name
        data = open_objects(str(folder / "build/datasets/words"), region=None, endpoint_url=None)
        write_dataset(data)
        pairs.append(Pair(Cluster(folder, num_nodes=2)))
    yield pairs
    for pair in pairs:
        pair.cluster.kill()


def test_ranks_of_two_nodes_leave_a_step_together_and_make_it_again(pairs: list[Pair]) -> None:
    whole, stopped = pairs
    whole.start(1)
    assert whole.end() == {0: 0, 1: 0}, whole.cluster.all_logs()

    stopped.start(1)
    stopped.cluster.wait_for("training: step 1 of", node=0)
    os.kill(stopped.cluster.launcher(0), signal.SIGTERM)
    assert stopped.end() == {0: 143, 1: 143}, stopped.cluster.all_logs()
    log = stopped.cluster.log(0)
    found = re.search(r"asked to stop; (\d+) of 24 micro-batches of step 2 are lost", log)
    assert found is not None and 0 < int(found[1]) < 24, log
    status = json.loads(stopped.file("results/status.json"))
    assert (status["state"], status["step"], status["last_checkpoint_step"]) == ("stopped", 1, 1)

    stopped.start(2)
    assert stopped.end() == {0: 0, 1: 0}, stopped.cluster.all_logs()
    assert stopped.losses() == whole.losses()
    assert len(whole.losses()) == 2


def test_ranks_of_two_nodes_give_up_together_when_nothing_can_be_saved(pairs: list[Pair]) -> None:
    pair, _ = pairs
    place = pair.cluster.folder / "build/runs/test-run"
    place.mkdir(parents=True)
    (place / "checkpoints").write_text("a file where a folder is wanted")

    pair.start(1, "--save-every=1", "--max-steps=20", "--global-batch=8")

    assert pair.end() == {0: 75, 1: 75}, pair.cluster.all_logs()
    for node in (0, 1):
        log = pair.cluster.log(node)
        assert "StorageUnavailable: 3 saves in a row have failed, the last one of step 3" in log
    status = json.loads(pair.file("results/status.json"))
    assert status["state"] == "failed" and status["step"] in (3, 4)
