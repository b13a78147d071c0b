"""BERT runs on one rank and on two: losses, position, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BertForPreTraining

from tests.training.bert.conftest import TINY, write_shards
from tests.training.llama.conftest import Laptop, write_dataset
from tests.training.worker_ranks import run_on_ranks
from training.datasets.manifest import DatasetError
from training.models.bert.data import IGNORED, random_batches
from training.models.bert.network import Bert, bert_config
from training.models.llama.export import ExportError, ExportRequest, export
from training.storage import StorageAccess
from training.trainer.runs import RunConfigError
from trainium_catalogue.models.presets import PRESETS, BertShape

STEPS = 12
"""More than an epoch of the 70 sequences."""


@pytest.fixture(scope="module")
def whole(laptop: Laptop) -> list[float]:
    """Losses of an uninterrupted run."""
    laptop.train(f"--max-steps={STEPS}", "--save-every=4", run="whole")
    return laptop.losses("whole")


def test_an_interrupted_run_has_exactly_the_losses_of_an_uninterrupted_one(
    laptop: Laptop, whole: list[float]
) -> None:
    for steps in (1, 4, 20):
        laptop.train(f"--max-steps={STEPS}", f"--steps-this-run={steps}", run="pieces")

    assert laptop.losses("pieces") == whole
    assert [line["step"] for line in laptop.lines("pieces", "resume")] == [1, 5]


def test_dropout_depends_on_the_position_and_not_on_what_ran_before(
    laptop: Laptop, whole: list[float]
) -> None:
    torch.manual_seed(99)
    laptop.train(f"--max-steps={STEPS}", "--steps-this-run=2", run="again")
    laptop.train(f"--max-steps={STEPS}", "--steps-this-run=2", "--dropout=0", run="without")

    assert laptop.losses("again") == whole[:2]
    assert laptop.losses("without") != whole[:2]


def test_the_losses_equal_hugging_faces() -> None:
    shape = PRESETS["bert-tiny"].shape
    assert isinstance(shape, BertShape)
    model, theirs = (kind(bert_config(shape, dropout=0.0)) for kind in (Bert, BertForPreTraining))
    theirs.load_state_dict(model.state_dict())
    batch = random_batches(vocab_size=4096, seed=1, seq_len=64, max_predictions=10)(range(3))
    labels = torch.full((3, 64), IGNORED)
    labels.scatter_(1, batch["positions"], batch["labels"])

    expected = theirs(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        token_type_ids=batch["token_type_ids"],
        labels=labels,
        next_sentence_label=batch["next_sentence_label"],
    ).loss
    assert model(batch).item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("--seq-len=32", "seq_len=16, but the run has seq-len=32; submit with --seq-len 16"),
        (
            "--max-predictions=5",
            "max_predictions=3, but the run has max-predictions=5; submit with",
        ),
        (
            "--vocab-size=32",
            "IDs up to 63, but the model's vocabulary has only 32 tokens; train with --vocab",
        ),
        ("--dataset=words", "is a dataset of kind packed, schema 1, but this workload trains on"),
        ("--dataset=none", "datasets/none is not a complete dataset.* run prepare, or wait for it"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(laptop: Laptop, word: str, reason: str) -> None:
    write_dataset(laptop.objects.at("datasets/words"))

    with pytest.raises(DatasetError, match=reason):
        laptop.train(word, run="refused")


def test_a_manifest_with_wrong_counts_is_refused(laptop: Laptop, tmp_path: Path) -> None:
    objects = laptop.objects.at("datasets/by-hand")
    write_shards(objects, tmp_path, 20)
    manifest = objects.get("manifest.json").decode()
    objects.put("manifest.json", manifest.replace('"samples": 20', '"samples": 25').encode())

    with pytest.raises(DatasetError, match="has 20 sequences, but the dataset's manifest lists 25"):
        laptop.train("--dataset=by-hand", run="by-hand")


def test_a_dataset_on_lustre_is_staged_outside_the_bucket_link(
    laptop: Laptop, tmp_path: Path
) -> None:
    linked = tmp_path / "datasets/shards"
    linked.mkdir(parents=True)
    (linked / "manifest.json").write_text("what the link has imported")
    laptop.train("--max-steps=1", run="lustre", lustre=str(tmp_path))

    assert [path.name for path in linked.iterdir()] == ["manifest.json"]
    assert (linked / "manifest.json").read_text() == "what the link has imported"
    staged = {path.name for path in (tmp_path / "cache/datasets/shards").iterdir()}
    assert staged == {"manifest.json", *(f"words_training_{n}.hdf5" for n in range(3))}


def test_other_shards_under_the_same_name_are_refused(laptop: Laptop, tmp_path: Path) -> None:
    objects = laptop.objects.at("datasets/changes")
    write_shards(objects, tmp_path, 20)
    laptop.train("--max-steps=2", "--steps-this-run=1", "--dataset=changes", run="changes")
    write_shards(objects, tmp_path, 20, seed=1)

    with pytest.raises(RunConfigError, match="cannot continue with data_sha256="):
        laptop.train(run="changes", tiny=False)


def test_an_export_of_a_bert_is_refused(laptop: Laptop, whole: list[float]) -> None:
    request = ExportRequest(run="whole", step=0, dtype="float32")

    with pytest.raises(ExportError, match="run whole is a run of bert-tiny, but only decoders"):
        export(request, StorageAccess(root=str(laptop.folder)), report=lambda text: None)


# --- two ranks, one shard ------------------------------------------------------------------------


def test_two_ranks_with_one_shard_have_the_losses_of_one_rank(
    laptop: Laptop, tmp_path: Path
) -> None:
    two = Laptop(tmp_path / "build", workload="bert-tiny", words=TINY)
    for one in (two, laptop):
        write_shards(one.objects.at("datasets/shards-1"), tmp_path, 70)
    words = [word for word in TINY if not word.startswith("--dataset")]
    words += ["--dataset=shards-1", "--max-steps=5"]
    output, _ = run_on_ranks(tmp_path, "bert-tiny", words, run="two", num_ranks=2)
    laptop.train("--dataset=shards-1", "--max-steps=5", run="one")

    assert "data parallel 2" in output
    assert two.losses("two") == pytest.approx(laptop.losses("one"), abs=1e-4)
