"""Documents held out of a dataset: independent of how it is made, and in no batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.training.datasets.conftest import Tokenize, dataset, opened, text_of
from tests.training.datasets.test_packed_dataset import write_dataset
from tests.training.datasets.test_tokenize import complete, contents
from training.datasets.manifest import DatasetError, PackedManifest
from training.datasets.samples.packed import PackedDataset
from training.datasets.text.parts import split_documents

FRACTION = 0.25


def documents(ids: list[int], eos: int = 0) -> set[tuple[int, ...]]:
    """Return the documents of a complete stream."""
    found: list[list[int]] = [[]]
    for token in ids:
        if token == eos:
            found.append([])
        else:
            found[-1].append(token)
    assert found.pop() == []
    return {tuple(document) for document in found}


def test_every_document_is_in_one_split_and_the_fraction_is_about_right(
    tmp_path: Path, run_tokenize: Tokenize, small_tokenizer: Path
) -> None:
    plain = Tokenizer.from_file(str(small_tokenizer))
    everything = {tuple(plain.encode(text_of(number)).ids) for number in range(120)}

    manifest = complete(run_tokenize(validation_fraction=FRACTION))

    assert manifest.validation is not None
    assert manifest.documents + manifest.validation.documents == 120
    assert 15 <= manifest.validation.documents <= 45
    packed = opened(tmp_path)
    validation = packed.require_validation(seq_len=16)
    train = documents(packed.sequence(0, manifest.num_tokens - 1).tolist())
    held_out = documents(validation.sequence(0, manifest.validation.num_tokens - 1).tolist())
    assert len(train) == manifest.documents
    assert train | held_out == everything
    assert not train & held_out


def test_a_document_and_its_duplicates_stay_in_one_split() -> None:
    texts = [text_of(number) for number in range(300)]
    train, held_out = split_documents(texts, FRACTION)

    assert split_documents([*texts, *texts], FRACTION) == (train + train, held_out + held_out)
    # A larger fraction holds out a superset of a smaller one's.
    assert set(held_out) < set(split_documents(texts, 2 * FRACTION)[1])
    assert sorted(train + held_out) == sorted(texts)


def test_only_missing_parts_are_rebuilt(tmp_path: Path, run_tokenize: Tokenize) -> None:
    manifest = complete(run_tokenize(validation_fraction=FRACTION))
    assert manifest.validation is not None
    before = contents(dataset(tmp_path))
    lost = manifest.validation.shards[0].name, manifest.shards[-1].name
    kept = dataset(tmp_path) / manifest.validation.shards[1].name
    inode = kept.stat().st_ino
    for name in lost:
        (dataset(tmp_path) / name).unlink()

    complete(run_tokenize(validation_fraction=FRACTION))

    assert contents(dataset(tmp_path)) == before
    assert kept.stat().st_ino == inode


def test_a_different_fraction_is_a_different_dataset(run_tokenize: Tokenize) -> None:
    run_tokenize()
    with pytest.raises(DatasetError, match=r"another validation-fraction \(none\); use another"):
        run_tokenize(validation_fraction=FRACTION)
    run_tokenize(dataset="split", validation_fraction=FRACTION)
    with pytest.raises(DatasetError, match=r"another validation-fraction \(0.25\); use another"):
        run_tokenize(dataset="split")


def test_a_fully_held_out_text_is_refused_and_leaves_no_files(
    tmp_path: Path, corpus: Path, run_tokenize: Tokenize
) -> None:
    (_, (held_out, *_)) = split_documents(map(text_of, range(120)), FRACTION)
    for path in corpus.iterdir():
        path.unlink()
    (corpus / "book.txt").write_text(held_out)

    with pytest.raises(
        DatasetError,
        match=r"all of its text \(1 document\) is .* submit with --validation-fraction 0",
    ):
        run_tokenize(validation_fraction=FRACTION)

    assert contents(dataset(tmp_path)) == {}
    assert complete(run_tokenize()).documents == 1


def test_a_dataset_without_a_split_keeps_its_format(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "made", list(range(50)), [])
    document = json.loads(manifest.to_json())

    assert document["schema"] == 1
    assert "validation" not in document
    assert PackedManifest.from_json(manifest.to_json(), name="m") == manifest
    with pytest.raises(
        DatasetError, match=r"has no validation split, .*--validation-fraction, or train"
    ):
        PackedDataset(tmp_path / "made", manifest).require_validation(seq_len=8)


def test_a_split_shorter_than_a_sequence_is_refused(tmp_path: Path, run_tokenize: Tokenize) -> None:
    manifest = complete(run_tokenize(validation_fraction=FRACTION))
    assert manifest.validation is not None
    assert PackedManifest.from_json(manifest.to_json(), name="m") == manifest

    with pytest.raises(
        DatasetError, match="validation split is too small for one sequence of 99999"
    ):
        opened(tmp_path).require_validation(seq_len=99999)
