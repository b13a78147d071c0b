"""Read sequences of a packed dataset from memory-mapped shards in a local folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.datasets.manifest import DatasetError, PackedManifest, Shard
from training.datasets.samples.staging import stage
from training.storage import Objects


class TokenStream:
    """The token ids of all shards of a split, cut into sequences of any length."""

    def __init__(
        self, folder: Path, dtype: str, shards: Sequence[Shard], *, has_responses: bool = False
    ) -> None:
        self.has_responses = has_responses
        """True if ids carry the loss bit, and sequences have a fixed length."""
        kind = np.dtype(dtype).newbyteorder("<")
        self._shards = [
            np.memmap(folder / shard.name, dtype=kind, mode="r", shape=(shard.tokens,))
            for shard in shards
        ]
        self._starts = np.cumsum([0, *(shard.tokens for shard in shards)])

    def num_sequences(self, seq_len: int) -> int:
        """Count sequences of ``seq_len`` tokens; one's last label is the next one's first input."""
        if self.has_responses:
            return int(self._starts[-1]) // seq_len
        return max(0, (int(self._starts[-1]) - 1) // seq_len)

    def sequence(self, index: int, seq_len: int) -> NDArray[np.int64]:
        """Return a sequence's ids and its last label: int64 of shape [seq_len + 1]."""
        if not 0 <= index < self.num_sequences(seq_len):
            raise IndexError(
                f"sequence {index} of {self.num_sequences(seq_len)} of {seq_len} tokens"
            )
        start, rest = index * seq_len, seq_len + 1
        result = np.zeros(rest, np.int64)
        if self.has_responses:
            rest -= 1  # the last token's label is ignored
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while rest:
            offset = start - int(self._starts[number])
            ids = self._shards[number][offset : offset + rest]
            result[start - index * seq_len :][: len(ids)] = ids
            start, rest, number = start + len(ids), rest - len(ids), number + 1
        return result


class PackedDataset(TokenStream):
    """The training split and, if present, the validation split."""

    def __init__(self, folder: Path, manifest: PackedManifest) -> None:
        has_responses = manifest.has_responses
        super().__init__(folder, manifest.dtype, manifest.shards, has_responses=has_responses)
        self.manifest = manifest
        self.validation: TokenStream | None = None
        if manifest.validation is not None:
            self.validation = TokenStream(
                folder,
                manifest.dtype,
                manifest.validation.shards,
                has_responses=has_responses,
            )

    def require(self, *, vocab_size: int, seq_len: int, responses: bool = False) -> None:
        """Raise ``DatasetError`` if this dataset does not match the model."""
        manifest = self.manifest
        if manifest.has_responses != responses:
            raise DatasetError(
                "the dataset has prompts and responses; train with --responses"
                if manifest.has_responses
                else "the dataset is text, but --responses needs prompts and responses (tokenize "
                "with --response-seq-len); train on another --dataset, or without --responses"
            )
        if responses and manifest.seq_len != seq_len:
            raise DatasetError(
                f"the dataset has sequences of {manifest.seq_len} tokens, but the run has "
                f"--seq-len {seq_len}; train with --seq-len {manifest.seq_len}"
            )
        if manifest.vocab_size > vocab_size:
            raise DatasetError(
                f"the dataset has token IDs up to {manifest.vocab_size - 1:,}, but the model's "
                f"vocabulary has only {vocab_size:,} tokens; train with --vocab-size "
                f"{manifest.vocab_size} or tokenize with the model's own tokenizer"
            )
        if self.num_sequences(seq_len) == 0:
            raise DatasetError(
                f"the dataset has {manifest.num_tokens:,} tokens, too few for a sequence of "
                f"{seq_len} and a label; use more text or a smaller --seq-len"
            )

    def require_validation(self, *, seq_len: int) -> TokenStream:
        """Return the validation split; raise ``DatasetError`` if it is absent or too short."""
        if self.validation is None:
            raise DatasetError(
                "the dataset has no validation split, which --eval-every needs; "
                "tokenize into another --dataset with a larger --validation-fraction, or train "
                "with --eval-every 0"
            )
        if self.validation.num_sequences(seq_len) == 0:
            raise DatasetError(
                "the dataset's validation split is too small for one sequence of "
                f"{seq_len} and a label; tokenize into another --dataset with a larger "
                "--validation-fraction, or train with --eval-every 0"
            )
        return self.validation


def open_dataset(
    objects: Objects,
    cache: Path,
    *,
    is_leader: bool,
    wait: Callable[[], None],
    report: Callable[[str], None],
) -> PackedDataset:
    """Copy the dataset at ``objects`` to this node's folder ``cache``, verify and map it.

    One process per node, the leader, downloads missing files while the rest block in ``wait``, a
    barrier across at least the node's processes. Raises ``DatasetError`` for a shard that is
    missing or does not match the manifest.
    """
    manifest = stage(
        objects,
        cache,
        parse=lambda data, name: PackedManifest.from_json(data, name=name),
        made_by="tokenize",
        is_leader=is_leader,
        wait=wait,
        report=report,
    )
    return PackedDataset(cache, manifest)
