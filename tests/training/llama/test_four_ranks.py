"""Jobs of several ranks: they compute the same as one rank, and give up together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.llama.conftest import TINY, Laptop, write_dataset
from tests.training.worker_ranks import run_on_ranks
from training.core.progress import read_failures
from training.storage import open_objects
from trainium_catalogue.exit_codes import ExitCode

VALIDATION_TOKENS = 13 * 16 + 1
"""13 sequences: no multiple of what any number of ranks computes at once."""
WORDS = (
    *("--dataset=split", "--document-masks=true", "--max-steps=2", "--eval-every=2"),
    *("--micro-batch=1", "--log-every=1"),
)
SHAPE = (*(word for word in TINY if "batch" not in word), "--tensor-parallel=2")
RUN = "build/runs/test-run"


# `make rehearse` trains on four ranks; the losses of two are compared below.
@pytest.mark.full
def test_four_ranks_train_and_evaluate_as_one_does(laptop: Laptop, tmp_path: Path) -> None:
    four = Laptop(tmp_path / "build")
    for place in (laptop, four):
        write_dataset(place.objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)
    words = (*WORDS, "--global-batch=8")
    laptop.train(*words, run="one")
    output, *_ = run_on_ranks(tmp_path, "llama-tiny", (*SHAPE, *words), run="four")

    assert "tensor parallel 2 x data parallel 2" in output
    assert four.losses("four") == pytest.approx(laptop.losses("one"), abs=1e-5)
    (one,), (found,) = laptop.lines("one", "evaluation"), four.lines("four", "evaluation")
    assert (found["step"], found["val_loss"]) == (2, pytest.approx(one["val_loss"], abs=1e-5))


def test_data_parallel_ranks_of_a_tied_model_have_the_losses_of_one(tmp_path: Path) -> None:
    """FSDP gathers the loss's tied weight after the model's own pass."""
    words = (
        *(word for word in TINY if "micro" not in word),
        *("--micro-batch=2", "--model=qwen3-tiny", "--head-dim=16", "--dataset=words"),
        *("--tensor-parallel=1", "--max-steps=4"),
    )
    alone = Laptop(tmp_path / "alone", workload="pretrain", words=words)
    two = Laptop(tmp_path / "two" / "build")
    for place in (alone, two):
        write_dataset(place.objects.at("datasets/words"))
    alone.train()
    run_on_ranks(tmp_path / "two", "pretrain", words, run="tiny", num_ranks=2)

    assert two.losses() == pytest.approx(alone.losses(), rel=1e-5)


# test_failed_saves has the single-rank job, and trainer/test_vote the ranks' agreement.
@pytest.mark.full
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
