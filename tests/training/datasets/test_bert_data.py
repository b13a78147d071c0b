"""BERT's datasets: sequences made from text, and the reference's tar, shard by shard."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.training.datasets.conftest import quiet
from tests.training.datasets.site import Site, serve
from training.core.failures import classify
from training.datasets.manifest import DatasetError
from training.datasets.prepared import bert_tar
from training.datasets.prepared.bert_shards import KEYS, check_shard, empty, read_shard, write_shard
from training.datasets.prepared.bert_tar import prepare_bert_tar
from training.datasets.prepared.bert_tiny import (
    CLS,
    MASK,
    SEP,
    make_tokenizer,
    make_vocabulary,
    prepare_bert_tiny,
    to_sentences,
)
from training.datasets.prepared.prepare import prepare_dataset
from training.storage import LocalObjects, StorageAccess
from trainium_catalogue.exit_codes import ExitCode

DOCUMENTS = 60


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bert-tiny, made from a few documents."""
    root = tmp_path_factory.mktemp("tiny")
    prepare_dataset(
        "bert-tiny", StorageAccess(root=str(root)), max_documents=DOCUMENTS, report=quiet
    )
    return root / "datasets/bert-tiny"


@pytest.fixture(scope="module")
def rows(tiny: Path) -> dict[str, Any]:
    """Return all its sequences."""
    shards = [read_shard(path) for path in sorted(tiny.glob("*_training_*.hdf5"))]
    return {key: np.concatenate([shard[key] for shard in shards]) for key in KEYS}


def test_the_files_have_the_references_names_and_keys(tiny: Path) -> None:
    paths = sorted(tiny.glob("*_training_*.hdf5"))
    with h5py.File(paths[0]) as file:
        found = {key: str(file[key].dtype) for key in file}

    assert found == KEYS
    manifest = json.loads((tiny / "manifest.json").read_text())
    assert [shard["name"] for shard in manifest["shards"]] == [path.name for path in paths]
    assert manifest["num_sequences"] == sum(shard["samples"] for shard in manifest["shards"])


def test_the_same_text_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    prepare_dataset(
        "bert-tiny", StorageAccess(root=str(tmp_path)), max_documents=DOCUMENTS, report=quiet
    )

    for path in tiny.iterdir():
        assert (tmp_path / "datasets/bert-tiny" / path.name).read_bytes() == path.read_bytes()


def test_sequences_are_two_segments_between_special_tokens(rows: dict[str, Any]) -> None:
    ids, lengths = rows["input_ids"], rows["input_mask"].sum(axis=1)
    last = np.take_along_axis(ids, lengths[:, None] - 1, axis=1)

    assert (ids[:, 0] == CLS).all()
    assert (last == SEP).all()
    assert ((ids == SEP).sum(axis=1) == 2).all()
    assert (ids[rows["input_mask"] == 0] == 0).all()
    assert set(np.unique(rows["segment_ids"])) == {0, 1}


def test_15_percent_of_the_words_are_predicted_and_most_of_them_masked(
    rows: dict[str, Any],
) -> None:
    positions, labels = rows["masked_lm_positions"], rows["masked_lm_ids"]
    is_predicted = positions > 0
    inputs = np.take_along_axis(rows["input_ids"], positions, axis=1)[is_predicted]

    share = is_predicted.sum() / rows["input_mask"].sum()
    assert 0.12 < share < 0.17
    assert is_predicted.any(axis=1).all()
    assert 0.75 < (inputs == MASK).mean() < 0.85
    assert 0.07 < (inputs == labels[is_predicted]).mean() < 0.14
    assert not np.isin(labels[is_predicted], (CLS, SEP, MASK)).any()


def test_out_of_vocabulary_words_become_word_pieces() -> None:
    vocabulary = make_vocabulary(["buckets hold objects", "buckets"], 150)
    tokenizer = make_tokenizer(vocabulary)

    (sentence,) = to_sentences(tokenizer, "Buckets hop.")
    words = [vocabulary[one] for one in sentence]
    assert words == ["buckets", "h", "##o", "##p", "."]


def test_a_single_document_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="need at least 2 documents with text, not 1;"):
        prepare_bert_tiny(
            LocalObjects(tmp_path),
            tmp_path,
            documents=[{"text": "One. Two."}],
            source={},
            report=quiet,
        )


# --- the reference's tar --------------------------------------------------------------------------
COUNTS = (3, 5, 2)


def shard_bytes(folder: Path, count: int, **changed: Any) -> bytes:
    arrays = {**empty(count, seq_len=128, max_predictions=20), **changed}
    arrays["masked_lm_positions"][:, 0] = 1
    path = folder / "shard.hdf5"
    write_shard(path, arrays)
    return path.read_bytes()


def tar_of(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        folder = tarfile.TarInfo("hdf5")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            info = tarfile.TarInfo(f"hdf5/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def shard_name(number: int) -> str:
    return f"wikicorpus_en_training_{number}.hdf5"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The publisher: a tar of three shards, a hidden file of macOS and a readme."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    files = {shard_name(n): shard_bytes(tmp_path, count) for n, count in enumerate(COUNTS)}
    others = {"README": b"words", f"._{shard_name(0)}": b"of macOS"}
    with serve({"/set.tar": tar_of({**others, **files})}) as site:
        yield site


def prepare_tar(site: Site, folder: Path, *, report: Any = quiet) -> Any:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return prepare_bert_tar(
        LocalObjects(folder / "set"), scratch, report=report, url=f"{site.url}/set.tar"
    )


def test_every_shard_of_the_tar_is_checked_and_stored(site: Site, tmp_path: Path) -> None:
    dataset = prepare_tar(site, tmp_path)

    assert [file.samples for file in dataset.shards] == list(COUNTS)
    assert {path.name for path in (tmp_path / "set").iterdir()} == {
        *(shard_name(n) for n in range(3)), "manifest.json",
    }  # fmt: skip
    assert dataset.facts["num_sequences"] == sum(COUNTS)
    assert dataset.source["bytes"] == str(len(site.files["/set.tar"]))
    assert list((tmp_path / "scratch").iterdir()) == []


def stop_at_the_second(text: str) -> None:
    if text.startswith(f"uploading {shard_name(1)}"):
        raise KeyboardInterrupt


def test_an_interrupted_job_resumes_with_the_missing_shards(site: Site, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        prepare_tar(site, tmp_path, report=stop_at_the_second)
    made = (tmp_path / "set" / shard_name(0)).stat().st_mtime_ns
    dataset = prepare_tar(site, tmp_path)

    assert (tmp_path / "set" / shard_name(0)).stat().st_mtime_ns == made
    assert [file.samples for file in dataset.shards] == list(COUNTS)


def test_a_dataset_is_incomplete_while_it_is_rebuilt(site: Site, tmp_path: Path) -> None:
    prepare_tar(site, tmp_path)
    files = {shard_name(n): shard_bytes(tmp_path, 7) for n in range(2)}
    site.files["/set.tar"] = tar_of(files)

    with pytest.raises(KeyboardInterrupt):
        prepare_tar(site, tmp_path, report=stop_at_the_second)
    assert not (tmp_path / "set/manifest.json").exists()
    assert prepare_tar(site, tmp_path).samples == 14


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"input_ids": np.zeros((3, 64))}, r"of shape \(3, 64\), not integers of shape \(3, 128\)"),
        (
            {"input_ids": np.full((3, 128), 40000)},
            "input_ids ranges from 40000 to 40000; valid",
        ),
        (
            {"next_sentence_labels": np.array([0, 1, 2])},
            "labels ranges from 0 to 2; valid values are 0",
        ),
    ],
    ids=["length", "vocabulary", "labels"],
)
def test_a_shard_that_does_not_fit_is_refused(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    shard_bytes(tmp_path, 3, **changed)

    with pytest.raises(DatasetError, match=f"shard.hdf5.*{reason}"):
        check_shard(tmp_path / "shard.hdf5", seq_len=128, max_predictions=20, vocab_size=30522)


def test_a_shard_without_a_key_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "half.hdf5", "w") as file:
        file.create_dataset("input_ids", data=np.zeros((3, 128)))

    with pytest.raises(DatasetError, match=r"has no input_mask, segment_ids, .* prepare it again"):
        read_shard(tmp_path / "half.hdf5")


def test_a_file_system_error_is_not_mistaken_for_a_damaged_shard(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_shard(tmp_path / "none.hdf5")
    # Its first bytes cannot be read: EIO, as from an unreachable Lustre server.
    with pytest.raises(OSError, match="Errno 5") as raised:
        read_shard(Path("/proc/self/mem"))
    assert classify(raised.value) is ExitCode.HOST


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "returned 404 Not Found; if it has moved, put the shards below datasets/ yourself"),
        ({"/set.tar": b"no tar" * 1000}, "is not a tar file"),
        ({"/set.tar": tar_of({"README": b"words"})}, r"contains no file named \*_training_\*.hdf5"),
        ({"/set.tar": tar_of({shard_name(0): b"text"})}, "is not a valid HDF5 file"),
    ],
    ids=["gone", "no-tar", "no-shard", "no-hdf5"],
)
def test_a_missing_or_invalid_tar_is_refused(
    site: Site, tmp_path: Path, files: dict[str, bytes], reason: str
) -> None:
    site.files = files

    with pytest.raises(DatasetError, match=reason):
        prepare_tar(site, tmp_path)


def test_a_tar_that_changes_while_it_is_read_is_refused(site: Site, tmp_path: Path) -> None:
    found = bert_tar.WebFile.find(f"{site.url}/set.tar")
    site.files["/set.tar"] += b"more"

    with pytest.raises(DatasetError, match="changed while it was being read; submit prepare again"):
        found.get_range("", 0, 10)


def another_file(file: Any, key: str, folder: Path) -> None:
    """Redirect an array to another file on this machine."""
    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = np.zeros((1, 128), "int32")
    file[key] = h5py.ExternalLink(str(folder / "other.h5"), "x")


def outside(file: Any, key: str, folder: Path) -> None:
    (folder / "secret").write_bytes(b"\1" * 512)
    external = [(str(folder / "secret"), 0, 512)]
    file.create_dataset(key, (1, 128), "int32", external=external)


def huge(file: Any, key: str, folder: Path) -> None:
    file.create_dataset(key, (2**40, 128), "int32", chunks=(1, 128))


FORMS: dict[str, Any] = {
    "an array of another file": another_file,
    "bytes of another file": outside,
    "an array that is larger than memory": huge,
    "a group": lambda file, key, folder: file.create_group(key),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_entry_that_is_not_an_array_of_the_file_is_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / "shard.hdf5"
    write_shard(path, empty(1, seq_len=128, max_predictions=20))
    with h5py.File(path, "r+") as file:
        del file["input_ids"]
        FORMS[form](file, "input_ids", tmp_path)

    with pytest.raises(DatasetError, match="input_ids is not an array in this file"):
        read_shard(path)
