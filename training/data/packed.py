"""Reads a packed dataset as sequences: shards in a local folder, mapped into memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.manifest import DatasetError, Manifest, Shard, sha256_of
from training.objects import ObjectMissing, Objects
from trainium_catalogue.contract import DATASET_MANIFEST

_MIB = 1024 * 1024


class PackedDataset:
    """One stream of token ids over all shards, cut into sequences of any length."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._shards = [
            np.memmap(folder / shard.name, dtype=dtype, mode="r", shape=(shard.tokens,))
            for shard in manifest.shards
        ]
        self._starts = np.cumsum([0, *(shard.tokens for shard in manifest.shards)])

    def num_sequences(self, seq_len: int) -> int:
        """Sequences of ``seq_len`` tokens; the last token of each is the next one's first label."""
        return max(0, (self.manifest.num_tokens - 1) // seq_len)

    def sequence(self, index: int, seq_len: int) -> NDArray[np.int64]:
        """Inputs and, one further, labels of a sequence: int64 of shape [seq_len + 1]."""
        if not 0 <= index < self.num_sequences(seq_len):
            raise IndexError(
                f"sequence {index} of {self.num_sequences(seq_len)} of {seq_len} tokens"
            )
        start, rest = index * seq_len, seq_len + 1
        result = np.empty(rest, np.int64)
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while rest:
            offset = start - int(self._starts[number])
            found = self._shards[number][offset : offset + rest]
            result[seq_len + 1 - rest :][: len(found)] = found
            start, rest, number = start + len(found), rest - len(found), number + 1
        return result

    def require(
        self, *, vocab_size: int, seq_len: int, tokenizer_sha256: str | None = None
    ) -> None:
        """Refuse a model that this dataset does not fit, with ``DatasetError``.

        ``tokenizer_sha256`` is that of the run's checkpoints, where there are any.
        """
        manifest = self.manifest
        if manifest.vocab_size > vocab_size:
            raise DatasetError(
                f"the dataset has ids up to {manifest.vocab_size - 1} and the model's vocabulary "
                f"only {vocab_size}; train with --vocab-size {manifest.vocab_size} or tokenize "
                "with the model's own tokenizer"
            )
        if tokenizer_sha256 not in (None, manifest.tokenizer_sha256):
            raise DatasetError(
                f"the dataset was made with tokenizer {manifest.tokenizer} "
                f"({manifest.tokenizer_sha256[:12]}), the run was trained with another one "
                f"({str(tokenizer_sha256)[:12]}), whose ids mean other words; use the run's "
                "dataset or start a new run"
            )
        if self.num_sequences(seq_len) == 0:
            raise DatasetError(
                f"the dataset has {manifest.num_tokens} tokens, too few for one sequence of "
                f"{seq_len} and a label; use more text or a smaller --seq-len"
            )


def open_dataset(
    objects: Objects,
    cache: Path,
    *,
    is_leader: bool,
    wait: Callable[[], None],
    report: Callable[[str], None],
) -> PackedDataset:
    """Bring the dataset at ``objects`` to the folder ``cache`` of this node, verified, and map it.

    One process of each node is the leader and downloads what the folder lacks; the others return
    from ``wait``, a barrier of the node's processes at least, when it is there. ``DatasetError``
    names a shard that is missing or is not what the manifest says.
    """
    if is_leader:
        _stage(objects, cache, report)
    wait()
    path = cache / DATASET_MANIFEST
    return PackedDataset(cache, Manifest.from_json(path.read_bytes(), name=str(path)))


def _stage(objects: Objects, cache: Path, report: Callable[[str], None]) -> None:
    name = f"{objects.uri}/{DATASET_MANIFEST}"
    try:
        data = objects.get(DATASET_MANIFEST)
    except ObjectMissing:
        raise DatasetError(
            f"{objects.uri} holds no complete dataset: it has no {DATASET_MANIFEST}; "
            "run tokenize, or wait until it has finished"
        ) from None
    manifest = Manifest.from_json(data, name=name)
    cache.mkdir(parents=True, exist_ok=True)
    missing = []
    for shard in manifest.shards:
        report(f"checking {shard.name}")
        if not _is_right(cache / shard.name, shard):
            missing.append(shard)
    if missing:
        # Gone until all shards are right, so that nobody takes a torn folder for a whole one.
        (cache / DATASET_MANIFEST).unlink(missing_ok=True)
    needed, free = sum(shard.bytes for shard in missing), shutil.disk_usage(cache).free
    if needed > free:
        raise DatasetError(
            f"{cache} has {free // _MIB} MiB free and the dataset needs {needed // _MIB} more; "
            "give the nodes a larger volume or put the cache on Lustre"
        )
    moved = 0

    def on_bytes(count: int) -> None:
        nonlocal moved
        moved += count
        report(f"dataset: {moved // _MIB} of {needed // _MIB} MiB")

    for shard in missing:
        _fetch(objects, cache / shard.name, shard, on_bytes)
    half = cache / f"{DATASET_MANIFEST}.part"
    half.write_bytes(data)
    half.replace(cache / DATASET_MANIFEST)


def _fetch(objects: Objects, path: Path, shard: Shard, on_bytes: Callable[[int], None]) -> None:
    try:
        objects.get_file(shard.name, path, on_bytes=on_bytes)
    except ObjectMissing:
        raise DatasetError(
            f"shard {shard.name} of {objects.uri} is missing though its manifest lists it; "
            "run tokenize again, which makes only what is missing"
        ) from None
    if not _is_right(path, shard):
        found = path.stat().st_size
        path.unlink()
        raise DatasetError(
            f"shard {shard.name} of {objects.uri} is damaged: {found} bytes were read and "
            f"{shard.bytes} with sha256 {shard.sha256[:12]} are expected; delete it and run "
            "tokenize again, which makes only what is missing"
        )


def _is_right(path: Path, shard: Shard) -> bool:
    return path.is_file() and path.stat().st_size == shard.bytes and sha256_of(path) == shard.sha256
