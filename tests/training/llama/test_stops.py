"""Jobs that end early, within a micro-batch: complete steps are safe.

test_killed_and_resumed.py has the joint exit of two nodes' ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from training.core.job import StopRequested, StopSwitch

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

STEPS = 5
MICRO_BATCHES = 8
WORDS = (f"--max-steps={STEPS}", "--micro-batch=1")


def asks_in(step: int, micro: int, stop: StopSwitch) -> Callable[[str], None]:
    """Request a stop when micro-batch ``micro``, from 1, of ``step`` starts; none may follow it."""
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
    with pytest.raises(StopRequested):
        laptop.train(*WORDS, *words, run=run, on_report=asks_in(step, micro, stop), stop=stop)
    status = laptop.status(run)
    assert (status["state"], status["step"]) == ("stopped", step - 1)


def saved(laptop: Laptop, run: str) -> list[int]:
    return [line["step"] for line in laptop.lines(run, "saved")]


@pytest.fixture(scope="module")
def whole(laptop: Laptop) -> list[float]:
    """Return the losses of an uninterrupted run."""
    laptop.train(*WORDS, run="whole")
    return laptop.losses("whole")


@pytest.mark.parametrize(
    "words", [(), pytest.param(("--save-every=2",), id="which is saved already")]
)
def test_a_stop_drops_the_partial_step_and_saves_the_previous_one(
    laptop: Laptop, whole: list[float], words: tuple[str, ...]
) -> None:
    run = f"stopped-{len(words)}"
    stop_in(laptop, run, 3, MICRO_BATCHES - 1, *words)

    assert saved(laptop, run) == [2]
    laptop.train(run=run, tiny=False)
    assert laptop.losses(run) == whole


def test_a_stop_in_the_last_micro_batch_saves_the_step(laptop: Laptop, whole: list[float]) -> None:
    stop = StopSwitch()
    with pytest.raises(StopRequested):
        laptop.train(*WORDS, run="last", on_report=asks_in(3, MICRO_BATCHES, stop), stop=stop)

    assert laptop.status("last")["step"] == 3
    assert saved(laptop, "last") == [3]
    laptop.train(run="last", tiny=False)
    assert laptop.losses("last") == whole


def test_the_last_complete_step_is_logged_once_whatever_the_interval(
    laptop: Laptop, whole: list[float]
) -> None:
    stop_in(laptop, "seldom", 4, 2, "--log-every=100")
    laptop.train(run="seldom", tiny=False)

    steps = {line["step"]: line for line in laptop.lines("seldom", "step")}
    assert [line["step"] for line in laptop.lines("seldom", "step")] == [1, 3, 4, 5]
    assert [steps[step]["loss"] for step in (1, 3, 4, 5)] == [whole[i] for i in (0, 2, 3, 4)]


def test_a_stop_in_a_jobs_first_step_saves_and_loses_nothing(
    laptop: Laptop, whole: list[float]
) -> None:
    stop_in(laptop, "early", 1, 3)
    assert not laptop.file("checkpoints", "early").exists()
    laptop.train(*WORDS, "--steps-this-run=2", run="early")
    stop_in(laptop, "early", 3, 3)
    assert saved(laptop, "early") == [2]

    laptop.train(run="early", tiny=False)
    assert laptop.losses("early") == whole
