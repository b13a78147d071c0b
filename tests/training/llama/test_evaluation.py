"""The validation loss: correct, the same on any ranks, and without effect on training.

test_killed_and_resumed.py has several ranks.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.checkpoint.documents import assert_valid
from tests.training.llama.conftest import write_dataset
from training.backends.native import NativeBackend
from training.core.job import StopRequested, StopSwitch
from training.datasets.manifest import DatasetError

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

STEPS = 5
SEQ_LEN = 16
SEQUENCES = 13
"""Of the validation split: no multiple of what any number of ranks computes at once."""
VALIDATION_TOKENS = SEQUENCES * SEQ_LEN + 1
SPLIT = "--dataset=split"
EVALUATED = (SPLIT, f"--max-steps={STEPS}", "--eval-every=2")


@pytest.fixture(scope="module", autouse=True)
def split(laptop: Laptop) -> None:
    """Write a dataset with a validation split."""
    write_dataset(laptop.objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)


@pytest.fixture(scope="module")
def evaluated(laptop: Laptop, split: None) -> list[dict[str, Any]]:
    """Return the evaluations of an uninterrupted run."""
    laptop.train(*EVALUATED, run="evaluated")
    return laptop.lines("evaluated", "evaluation")


def val_losses(lines: list[dict[str, Any]]) -> dict[int, float]:
    return {line["step"]: line["val_loss"] for line in lines}


def test_every_second_step_is_evaluated_and_the_last(
    laptop: Laptop, evaluated: list[dict[str, Any]]
) -> None:
    losses = val_losses(evaluated)

    assert list(losses) == [2, 4, STEPS]
    assert losses[STEPS] < losses[2] < math.log(256)
    assert {line["sequences"] for line in evaluated} == {SEQUENCES}
    for line in evaluated:
        assert line["perplexity"] == pytest.approx(math.exp(line["val_loss"]))
        assert_valid(line, "train-metrics-line.schema.json")


def test_it_is_reported_wherever_the_loss_is(
    laptop: Laptop, evaluated: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    last = evaluated[-1]["val_loss"]

    status = laptop.status("evaluated")
    assert_valid(status, "run-status.schema.json")
    assert (status["val_loss"], status["val_step"]) == (last, STEPS)
    events = EventAccumulator(str(laptop.file("logs/tensorboard", "evaluated")))
    events.Reload()
    scalars = events.Scalars("val/loss")
    assert [scalar.step for scalar in scalars] == [2, 4, STEPS]
    assert scalars[-1].value == pytest.approx(last)
    results = json.loads(laptop.file("results/results.json", "evaluated").read_text())["results"]
    (final,) = (m for m in results["metrics"] if m["MetricName"] == "Final validation loss")
    assert final["MeasuredValue"] == round(last, 4)


def test_training_is_bitwise_identical(laptop: Laptop, evaluated: list[dict[str, Any]]) -> None:
    laptop.train(SPLIT, f"--max-steps={STEPS}", run="unevaluated")

    assert laptop.losses("evaluated") == laptop.losses("unevaluated")
    assert laptop.lines("unevaluated", "evaluation") == []
    assert laptop.status("unevaluated")["val_loss"] is None


def test_an_evaluation_subset_is_the_same_for_every_run(laptop: Laptop) -> None:
    for run, words in (("part", "--micro-batch=4"), ("same-part", "--micro-batch=8")):
        laptop.train(SPLIT, "--max-steps=1", "--eval-every=9", "--eval-sequences=6", words, run=run)

    (part,), (same,) = (laptop.lines(run, "evaluation") for run in ("part", "same-part"))
    assert part["sequences"] == same["sequences"] == 6
    assert part["val_loss"] == pytest.approx(same["val_loss"], abs=1e-6)


def test_repeated_steps_are_evaluated_again(
    laptop: Laptop, evaluated: list[dict[str, Any]]
) -> None:
    laptop.train(*EVALUATED, "--save-every=1", run="again")
    for step in (STEPS, 4, 3):
        shutil.rmtree(laptop.file(f"checkpoints/step-{step:08d}", "again"))
    seen: list[Any] = []

    def look(text: str) -> None:
        if text.startswith("step 3"):
            seen.append(laptop.status("again"))

    laptop.train(run="again", tiny=False, on_report=look)

    assert val_losses(laptop.lines("again", "evaluation")) == val_losses(evaluated)
    assert len(laptop.lines("again", "evaluation")) == len(evaluated)
    # Until the next one, the status keeps the evaluation of the earlier attempt.
    assert seen[-1]["val_step"] == 2


def test_a_stop_request_ends_an_evaluation_and_the_resumed_run_repeats_it(
    laptop: Laptop, evaluated: list[dict[str, Any]]
) -> None:
    run, stop, heard = "stopped", StopSwitch(), list[str]()

    def ask(text: str) -> None:
        heard.append(text)
        if text == f"evaluating after step {STEPS}: 2 of 4":
            stop.requested = True

    with pytest.raises(StopRequested):
        laptop.train(*EVALUATED, run=run, on_report=ask, stop=stop)

    assert f"evaluating after step {STEPS}: 3 of 4" not in heard
    assert [line["step"] for line in laptop.lines(run, "evaluation")] == [2, 4]
    status = laptop.status(run)
    assert (status["state"], status["last_checkpoint_step"]) == ("stopped", STEPS)
    laptop.train(run=run, tiny=False)
    assert laptop.losses(run) == laptop.losses("evaluated")
    assert val_losses(laptop.lines(run, "evaluation")) == val_losses(evaluated)
    assert len(laptop.lines(run, "evaluation")) == len(evaluated)
    assert laptop.status(run)["state"] == "finished"


def test_no_step_is_delayed_by_it(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    original = NativeBackend.losses_of

    def slow(self: NativeBackend, tokens: Any) -> torch.Tensor:
        time.sleep(0.15)
        return original(self, tokens)

    monkeypatch.setattr(NativeBackend, "losses_of", slow)
    laptop.train(*EVALUATED, "--log-every=4", run="slow")

    # A step is logged before evaluation: its remaining computation counts as its own time.
    assert [line["step"] for line in laptop.lines("slow", "step")] == [1, 2, 4, STEPS]
    assert all(line["evaluation_s"] > 0.6 for line in laptop.lines("slow", "evaluation"))
    assert all(line["step_s"] < 0.6 for line in laptop.lines("slow", "step"))


def test_the_graph_of_an_evaluation_is_compiled_beforehand(laptop: Laptop) -> None:
    heard: list[str] = []
    laptop.train("--compile-only", "--eval-every=100", run="compiled", on_report=heard.append)
    without: list[str] = []
    laptop.train("--compile-only", run="compiled", on_report=without.append)

    evaluated = heard.index("compiling: evaluating after step 2: 1 of 2")
    # And a step after it, which should find all its graphs.
    assert any(text.startswith("compiling: step 3") for text in heard[evaluated:])
    assert not any("evaluating" in text for text in without)


def test_a_dataset_without_a_held_out_split_is_refused(laptop: Laptop) -> None:
    with pytest.raises(
        DatasetError, match=r"has no validation split, .* larger --validation-fraction"
    ):
        laptop.train("--eval-every=2", run="none")
