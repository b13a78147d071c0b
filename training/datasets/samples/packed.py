"""Reads a packed dataset as sequences, from memory-mapped shards in a local folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.datasets.manifest import DatasetError, PackedManifest, Shard
from training.datasets.samples.staging import stage
from training.storage import Objects


class TokenStream:
    """The token ids in all shards of a split, cut into sequences of any length."""

    def __init__(
        self, folder: Path, dtype: str, shards: Sequence[Shard], *, has_responses: bool = False
    ) -> None:
        self.has_responses = has_responses
        """True if ids carry the bit that counts, and sequences end where they end."""
        kind = np.dtype(dtype).newbyteorder("<")
        self._shards = [
            np.memmap(folder / shard.name, dtype=kind, mode="r", shape=(shard.tokens,))
            for shard in shards
        ]
        self._starts = np.cumsum([0, *(shard.tokens for shard in shards)])

    def num_sequences(self, seq_len: int) -> int:
        """Count sequences of ``seq_len`` tokens; each one's last label begins the next one."""
        if self.has_responses:
            return int(self._starts[-1]) // seq_len
        return max(0, (int(self._starts[-1]) - 1) // seq_len)

    def sequence(self, index: int, seq_len: int) -> NDArray[np.int64]:
        """Return inputs and labels, shifted by one, of a sequence: int64 of shape [seq_len + 1]."""
        if not 0 <= index < self.num_sequences(seq_len):
            raise IndexError(
                f"sequence {index} of {self.num_sequences(seq_len)} of {seq_len} tokens"
            )
        start, rest = index * seq_len, seq_len + 1
        result = np.zeros(rest, np.int64)
        if self.has_responses:
            rest -= 1  # the label after the last token counts for nothing
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while rest:
            offset = start - int(self._starts[number])
            found = self._shards[number][offset : offset + rest]
            result[start - index * seq_len :][: len(found)] = found
            start, rest, number = start + len(found), rest - len(found), number + 1
        return result


class PackedDataset(TokenStream):
    """The tokens to train on, and the held-out ones."""

    def __init__(self, folder: Path, manifest: PackedManifest) -> None:
        of = manifest.has_responses
        super().__init__(folder, manifest.dtype, manifest.shards, has_responses=of)
        self.manifest = manifest
        self.validation: TokenStream | None = None
        if manifest.validation is not None:
            self.validation = TokenStream(
                folder, manifest.dtype, manifest.validation.shards, has_responses=of
            )

    def require(self, *, vocab_size: int, seq_len: int, responses: bool = False) -> None:
        """Raise ``DatasetError`` for a model that this dataset does not fit."""
        manifest = self.manifest
        if manifest.has_responses != responses:
            raise DatasetError(
                "the dataset has prompts and responses; train with --responses"
                if manifest.has_responses
                else "the dataset is text, and --responses needs prompts and responses (tokenize "
                "--response-seq-len); train on another --dataset, or without --responses"
            )
        if responses and manifest.seq_len != seq_len:
            raise DatasetError(
                f"the dataset has sequences of {manifest.seq_len} tokens and the run --seq-len "
                f"{seq_len}; train with --seq-len {manifest.seq_len}"
            )
        if manifest.vocab_size > vocab_size:
            raise DatasetError(
                f"the dataset has ids up to {manifest.vocab_size - 1} and the model's vocabulary "
                f"only {vocab_size}; train with --vocab-size {manifest.vocab_size} or tokenize "
                "with the model's own tokenizer"
            )
        if self.num_sequences(seq_len) == 0:
            raise DatasetError(
                f"the dataset has {manifest.num_tokens} tokens, too few for one sequence of "
                f"{seq_len} and a label; use more text or a smaller --seq-len"
            )

    def require_validation(self, *, seq_len: int) -> TokenStream:
        """Return the held-out tokens; ``DatasetError`` if they do not fill a sequence."""
        if self.validation is None:
            raise DatasetError(
                "the dataset holds nothing out, and --eval-every needs a validation split; "
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
    """Copy the dataset at ``objects`` to this node's folder ``cache``, verify it and map it.

    One process per node, the leader, downloads what the folder lacks; the others wait for it in
    ``wait``, a barrier of at least the node's processes. ``DatasetError`` names a shard that is
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
