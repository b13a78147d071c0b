"""Sequences from shards, and refusals of incomplete datasets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.datasets.packed import put_manifest, put_shard
from training.datasets.manifest import DatasetError, PackedManifest, Shard
from training.datasets.samples.packed import PackedDataset, open_dataset
from training.storage import LocalObjects


def write_dataset(folder: Path, tokens: list[int], sizes: list[int]) -> PackedManifest:
    """Write a dataset of these ids, in shards of these sizes and one with the rest."""
    objects, rest = LocalObjects(folder), np.array(tokens, "<u2")
    shards: list[Shard] = []
    for size in [*sizes, len(tokens)]:
        piece, rest = rest[:size], rest[size:]
        if len(piece):
            shards.append(put_shard(objects, f"shard-{len(shards):05d}-000.bin", piece))
    return put_manifest(objects, *shards, vocab_size=1000)


def opened(source: Path, cache: Path) -> PackedDataset:
    return open_dataset(
        LocalObjects(source), cache, is_leader=True, wait=lambda: None, report=lambda text: None
    )


@given(
    sizes=st.lists(st.integers(min_value=1, max_value=40), max_size=5),
    num_tokens=st.integers(min_value=2, max_value=200),
    seq_len=st.integers(min_value=1, max_value=60),
)
@settings(max_examples=50)
def test_sequences_split_the_stream_evenly_across_shard_boundaries(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], num_tokens: int, seq_len: int
) -> None:
    folder = tmp_path_factory.mktemp("dataset")
    tokens = list(range(num_tokens))
    dataset = PackedDataset(folder, write_dataset(folder, tokens, sizes))

    assert dataset.num_sequences(seq_len) == (num_tokens - 1) // seq_len
    for index in range(dataset.num_sequences(seq_len)):
        found = dataset.sequence(index, seq_len)
        assert found.dtype == np.int64
        assert found.tolist() == tokens[index * seq_len : (index + 1) * seq_len + 1]


def test_a_sequence_index_out_of_range_is_refused(tmp_path: Path) -> None:
    dataset = PackedDataset(tmp_path, write_dataset(tmp_path, list(range(9)), []))

    assert dataset.sequence(1, 4).tolist() == [4, 5, 6, 7, 8]
    with pytest.raises(IndexError, match="sequence 2 of 2 of 4 tokens"):
        dataset.sequence(2, 4)


def test_only_the_leader_of_a_node_downloads(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", list(range(50)), [20])
    cache, waits = tmp_path / "cache", []

    def wait() -> None:
        waits.append(sorted(path.name for path in cache.glob("*")))
        opened(tmp_path / "source", cache)  # the leader, concurrently

    found = open_dataset(
        LocalObjects(tmp_path / "source"),
        cache,
        is_leader=False,
        wait=wait,
        report=lambda text: None,
    )

    assert waits == [[]]
    assert found.manifest.num_tokens == 50


def test_a_correct_shard_is_not_downloaded_again(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", list(range(50)), [20])
    opened(tmp_path / "source", tmp_path / "cache")
    kept, wrong = (tmp_path / "cache" / f"shard-0000{n}-000.bin" for n in (0, 1))
    wrong.write_bytes(b"\0" * wrong.stat().st_size)
    before = kept.stat().st_ino

    dataset = opened(tmp_path / "source", tmp_path / "cache")

    assert kept.stat().st_ino == before
    assert dataset.sequence(0, 49).tolist() == list(range(50))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("manifest.json", "not a complete dataset: .* run tokenize, or wait"),
        ("shard-00001-000.bin", "shard shard-00001-000.bin of .* is missing"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, reason: str) -> None:
    write_dataset(tmp_path / "source", list(range(50)), [20])
    (tmp_path / "source" / name).unlink()

    with pytest.raises(DatasetError, match=reason):
        opened(tmp_path / "source", tmp_path / "cache")


def test_a_damaged_shard_is_named_and_not_kept(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", list(range(50)), [20])
    path = tmp_path / "source" / "shard-00001-000.bin"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)

    with pytest.raises(DatasetError, match=r"shard shard-00001-000.bin of .* is damaged"):
        opened(tmp_path / "source", tmp_path / "cache")
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left == {"shard-00000-000.bin"}


def test_a_disk_that_is_too_small_is_reported_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "source", list(range(50)), [])
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    with pytest.raises(DatasetError, match=r"0 MiB free, .* give the nodes a larger volume"):
        opened(tmp_path / "source", tmp_path / "cache")


@pytest.mark.parametrize(
    ("vocab_size", "seq_len", "reason"),
    [
        (999, 49, "IDs up to 999, but the model's vocabulary has only 999"),
        (1000, 50, "50 tokens, too few for a sequence of 50 and a label"),
    ],
)
def test_a_model_that_the_dataset_does_not_fit_is_refused(
    tmp_path: Path, vocab_size: int, seq_len: int, reason: str
) -> None:
    dataset = PackedDataset(tmp_path, write_dataset(tmp_path, list(range(50)), []))

    dataset.require(vocab_size=1000, seq_len=49)
    with pytest.raises(DatasetError, match=reason):
        dataset.require(vocab_size=vocab_size, seq_len=seq_len)


Change = Callable[[dict[str, Any]], object]
NO_MANIFEST = "is not the manifest of a packed dataset: "
WRONG: list[tuple[Change, str]] = [
    # Names that escape the folder.
    *(
        (lambda document, name=name: document["shards"][0].update(name=name), rf"{NO_MANIFEST}sh")
        for name in ("a/../../x", "manifest.json/x", ".part-x")
    ),
    (lambda document: document.pop("schema"), f"{NO_MANIFEST}it has no schema"),
    (lambda document: document.update(schema=4), "has schema 4, but .* reads schemas up to 3"),
    (lambda document: document.update(dtype="O"), "dtype is 'O', not one of uint16, uint32"),
    (lambda document: document.update(shards=[3]), r"shards\[0\] is 3, not an object"),
    (lambda document: document.update(eos_id=-1), "cannot be negative"),
    # Mapped, it would raise a signal in the middle of training.
    (
        lambda document: document["shards"][0].update(tokens=60),
        "100 bytes, but 60 tokens of uint16 take 120",
    ),
]


@pytest.mark.parametrize(("change", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_an_impossible_manifest_is_refused_before_any_byte_is_read(
    tmp_path: Path, change: Change, reason: str
) -> None:
    write_dataset(tmp_path / "source", list(range(50)), [])
    path = tmp_path / "source" / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))

    with pytest.raises(DatasetError, match=reason):
        opened(tmp_path / "source", tmp_path / "cache")

    assert not (tmp_path / "cache").exists()


def test_a_shard_is_not_written_through_a_link(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", list(range(50)), [])
    (tmp_path / "outside").write_bytes(b"old")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "shard-00000-000.bin").symlink_to(tmp_path / "outside")

    with pytest.raises(DatasetError, match="is a symbolic link: nothing is written through"):
        opened(tmp_path / "source", tmp_path / "cache")

    assert (tmp_path / "outside").read_bytes() == b"old"
