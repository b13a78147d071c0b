"""Runs on one rank: output, resumption, refusals."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.checkpoint.documents import assert_valid
from tests.training.llama.conftest import write_dataset
from training.core.contract import NodeContract
from training.storage.run_lock import Holder, RunLock, RunLost
from training.trainer.runs import RunConfigError
from trainium_catalogue.parameters.training import SHAPE_FIELDS

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

STEPS = 6


@pytest.fixture(scope="module")
def whole(laptop: Laptop) -> list[float]:
    """Return the losses of an uninterrupted run."""
    laptop.train(f"--max-steps={STEPS}", "--save-every=2", run="whole")
    return laptop.losses("whole")


def test_the_loss_starts_at_chance_level_and_falls(whole: list[float]) -> None:
    assert len(whole) == STEPS
    assert whole[0] == pytest.approx(math.log(256), abs=0.1)
    assert whole[-1] < whole[0] - 0.5


def test_an_interrupted_run_has_exactly_the_losses_of_an_uninterrupted_one(
    laptop: Laptop, whole: list[float]
) -> None:
    for steps in (1, 3, 9):
        laptop.train(f"--max-steps={STEPS}", f"--steps-this-run={steps}", run="pieces")

    assert laptop.losses("pieces") == whole
    resumed = laptop.lines("pieces", "resume")
    assert [line["step"] for line in resumed] == [1, 4]


def test_the_mesh_that_is_checked_is_the_runs_own(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []
    monkeypatch.setattr(
        NodeContract, "check_backend", lambda _, values: checked.append(values["tensor-parallel"])
    )
    laptop.train("--max-steps=1", run="mesh")
    laptop.train(run="mesh", tiny=False)

    assert checked == [1, 1]


def test_a_checkpoint_of_a_release_that_described_six_sizes_resumes(
    laptop: Laptop, whole: list[float]
) -> None:
    laptop.train(f"--max-steps={STEPS}", "--steps-this-run=3", run="older")
    marker = laptop.file("checkpoints/step-00000003/complete.json", "older")
    document = json.loads(marker.read_text())
    document["model"] = {field: document["model"][field] for field in SHAPE_FIELDS.values()}
    marker.write_text(json.dumps(document))

    laptop.train(run="older", tiny=False)

    assert laptop.losses("older") == whole


def test_accumulation_and_activation_checkpointing_change_no_loss(
    laptop: Laptop, whole: list[float]
) -> None:
    laptop.train("--max-steps=3", "--micro-batch=8", run="at-once")
    laptop.train("--max-steps=3", "--activation-checkpointing=false", run="stored")

    # The learning rate of the first steps is in warm-up and the same.
    assert laptop.losses("at-once")[:2] == pytest.approx(whole[:2], abs=1e-5)
    assert laptop.losses("stored") == pytest.approx(laptop.losses("at-once"), abs=1e-5)


def test_repeated_steps_replace_the_earlier_lines(laptop: Laptop, whole: list[float]) -> None:
    laptop.train(f"--max-steps={STEPS}", "--save-every=2", run="again")
    for name in ("step-00000006", "step-00000004"):
        shutil.rmtree(laptop.file(f"checkpoints/{name}", "again"))

    laptop.train(run="again", tiny=False)

    assert laptop.losses("again") == whole
    (resume,) = laptop.lines("again", "resume")
    assert (resume["step"], resume["dropped"]) == (2, STEPS - 2)


def test_every_line_and_the_status_match_their_schemas(laptop: Laptop, whole: list[float]) -> None:
    for line in laptop.lines("whole"):
        assert_valid(line, "train-metrics-line.schema.json")
    status = laptop.status("whole")
    assert_valid(status, "run-status.schema.json")
    assert (status["state"], status["step"], status["last_checkpoint_step"]) == (
        "finished", STEPS, STEPS,
    )  # fmt: skip
    assert status["loss"] == whole[-1]


def test_tensorboard_has_the_scalars_of_the_reference(laptop: Laptop, whole: list[float]) -> None:
    events = EventAccumulator(str(laptop.file("logs/tensorboard", "whole")))
    events.Reload()

    assert set(events.Tags()["scalars"]) == {
        "step loss", "learning rate", "throughput", "grad-norm",
    }  # fmt: skip
    assert [scalar.value for scalar in events.Scalars("step loss")] == pytest.approx(whole)


def test_the_results_have_the_names_of_the_reference(laptop: Laptop, whole: list[float]) -> None:
    results = json.loads(laptop.file("results/results.json", "whole").read_text())["results"]

    assert results["parameters"]["Data parallel degree"] == 1
    assert results["parameters"]["Dataset"] == "words"
    named = {metric["MetricName"]: metric for metric in results["metrics"]}
    assert set(named) == {
        "Loss", "Throughput", "Final loss", "Time to train", "Average throughput",
        "Peak throughput",
    }  # fmt: skip
    assert named["Final loss"]["MeasuredValue"] == round(whole[-1], 4)


def test_a_run_past_its_requested_steps_is_complete(laptop: Laptop) -> None:
    laptop.train("--max-steps=3", run="fewer")
    laptop.train("--max-steps=2", run="fewer")

    status = laptop.status("fewer")
    assert (status["step"], status["max_steps"], status["state"]) == (3, 3, "finished")


def test_a_flipped_bit_costs_one_checkpoint_only(
    laptop: Laptop, whole: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    laptop.train(f"--max-steps={STEPS}", "--save-every=2", "--steps-this-run=4", run="flipped")
    (path,) = laptop.file("checkpoints/step-00000004", "flipped").glob("*.distcp")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    laptop.train(run="flipped", tiny=False)

    assert "skipping checkpoint step-00000004" in capfd.readouterr().out
    assert laptop.losses("flipped") == whole


def test_compiling_makes_three_steps_and_leaves_nothing(
    laptop: Laptop, capfd: pytest.CaptureFixture[str]
) -> None:
    laptop.train("--compile-only", run="compiled")

    assert not laptop.file("", "compiled").exists()
    assert "compile: ran 3 steps" in capfd.readouterr().out


def test_a_new_run_without_a_dataset_is_refused(laptop: Laptop) -> None:
    with pytest.raises(ValueError, match="run none is new and has no dataset; submit with"):
        laptop.train("--tensor-parallel=1", run="none", tiny=False)


def test_another_tokenizer_is_refused(laptop: Laptop) -> None:
    write_dataset(laptop.objects.at("datasets/changes"))
    laptop.train("--max-steps=2", "--steps-this-run=1", "--dataset=changes", run="changes")
    write_dataset(laptop.objects.at("datasets/changes"), tokenizer="c" * 64)

    with pytest.raises(RunConfigError, match=r"cannot continue with tokenizer_sha256=cccccccccccc"):
        laptop.train(run="changes", tiny=False)


def test_a_job_that_loses_the_run_lock_stops_writing_its_status(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.trainer.trainer.RunLock", partial(RunLock, heartbeat_s=0.05))
    objects = laptop.objects.at("runs/taken")

    def take(text: str) -> None:
        if text.startswith("step 3"):
            taker = Holder(job_id="x", attempt=1, node="", since="", heartbeat="", heartbeat_s=1)
            objects.put("lock.json", json.dumps(asdict(taker)).encode())

    with pytest.raises(RunLost):
        laptop.train("--max-steps=100000", run="taken", on_report=take)

    assert laptop.status("taken")["state"] == "training"


def test_a_non_finite_loss_ends_the_run_without_a_checkpoint(laptop: Laptop) -> None:
    with pytest.raises(
        ValueError, match=r"step \d is .* and the gradient norm nan; continue from.*smaller lr"
    ):
        laptop.train("--lr=1e30", "--max-steps=5", "--warmup-steps=0", "--max-grad-norm=0",
                     run="diverges")  # fmt: skip

    assert laptop.status("diverges")["state"] == "failed"
    assert laptop.lines("diverges", "saved") == []
