"""Shards for pre-training BERT: HDF5 files in the layout of AWS's sample script.

``dp_bert_large_hf_pretrain_hdf5.py`` in aws-neuron-samples, and the NVIDIA scripts that it derives
from, read files named ``*_training_*.hdf5`` with these keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.datasets.manifest import DatasetError

KIND = "bert"
SHARD_NAME = re.compile(r"(?!\.).*_training_.*\.hdf5")
"""The shell pattern ``*_training_*.hdf5``, which skips hidden files, such as those that macOS adds
to archives."""

Arrays = Mapping[str, NDArray[Any]]
"""Maps keys to values, one row per sequence."""

_PER_TOKEN = ("input_ids", "input_mask", "segment_ids")
_PER_PREDICTION = ("masked_lm_positions", "masked_lm_ids")
_PER_SEQUENCE = ("next_sentence_labels",)
_MAX_COMPRESSION = 1100
"""Upper bound on gzip's compression factor (zlib, "Maximum Compression Factor": 1032)."""
KEYS: Mapping[str, str] = {
    "input_ids": "int32",
    "input_mask": "int8",
    "segment_ids": "int8",
    "masked_lm_positions": "int32",
    "masked_lm_ids": "int32",
    "next_sentence_labels": "int8",
}
"""Maps keys to types. Unused predictions of a sequence are 0, the position of ``[CLS]``."""


def write_shard(path: Path, arrays: Arrays) -> None:
    """Write a shard; equal arrays give equal bytes."""
    import h5py

    with h5py.File(path, "w") as file:
        for key, dtype in KEYS.items():
            file.create_dataset(key, data=arrays[key].astype(dtype), compression="gzip")


def read_shard(path: Path) -> dict[str, NDArray[Any]]:
    """Read a shard; raise ``DatasetError`` if it is invalid, ``OSError`` for file system errors."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            links = {key: file.get(key, getclass=True, getlink=True) for key in KEYS}
            missing = [key for key, link in links.items() if link is None]
            # Soft and external links, and external storage, could expose files on this machine.
            for key, link in links.items():
                if key not in missing and not (
                    link is h5py.HardLink and _is_array(file[key], path.stat().st_size)
                ):
                    raise ValueError(f"{key} is not an array in this file")
            arrays = {} if missing else {key: file[key][:] for key in KEYS}
    except (OSError, KeyError, RuntimeError, TypeError, ValueError, MemoryError) as error:
        # h5py raises any of these for a damaged file; only system errors have an errno.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DatasetError(
            f"{path.name} is not a valid HDF5 file ({error}); prepare it again"
        ) from None
    if missing:
        raise DatasetError(
            f"{path.name} has no {', '.join(missing)}; a shard must have {', '.join(KEYS)}; "
            "prepare it again"
        )
    return arrays


def _is_array(entry: Any, file_bytes: int) -> bool:
    """Return whether an HDF5 entry is an array that can be stored in ``file_bytes``."""
    import h5py

    return (
        isinstance(entry, h5py.Dataset)
        and not entry.is_virtual
        and not entry.external
        and entry.nbytes <= _MAX_COMPRESSION * file_bytes
    )


def check_shard(path: Path, *, seq_len: int, max_predictions: int, vocab_size: int) -> int:
    """Count a shard's sequences; raise ``DatasetError`` if its arrays are inconsistent."""
    arrays = read_shard(path)
    count = len(arrays["input_ids"])
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(_PER_TOKEN, (count, seq_len)),
        **dict.fromkeys(_PER_PREDICTION, (count, max_predictions)),
        **dict.fromkeys(_PER_SEQUENCE, (count,)),
    }
    for key, shape in shapes.items():
        if arrays[key].shape != shape or arrays[key].dtype.kind not in "iu":
            raise DatasetError(
                f"{path.name}: {key} is {arrays[key].dtype} of shape {arrays[key].shape}, not "
                f"integers of shape {shape}; use shards with sequences of {seq_len} tokens and up "
                f"to {max_predictions} predictions"
            )
    if count == 0:
        raise DatasetError(f"{path.name} has no sequences; remove it")
    limits = {
        "input_ids": vocab_size,
        "input_mask": 2,
        "segment_ids": 2,
        "masked_lm_positions": seq_len,
        "masked_lm_ids": vocab_size,
        "next_sentence_labels": 2,
    }
    for key, limit in limits.items():
        smallest, largest = int(arrays[key].min()), int(arrays[key].max())
        if smallest < 0 or largest >= limit:
            raise DatasetError(
                f"{path.name}: {key} ranges from {smallest} to {largest}; valid values are 0 to "
                f"{limit - 1}; use shards that were made with a vocabulary of {vocab_size}"
            )
    return count


def facts(*, seq_len: int, max_predictions: int, vocab_size: int, samples: int) -> dict[str, Any]:
    """Build the facts for the manifest of a BERT dataset."""
    return {
        "seq_len": seq_len,
        "max_predictions": max_predictions,
        "vocab_size": vocab_size,
        "num_sequences": samples,
        "num_tokens": samples * seq_len,
    }


def empty(count: int, *, seq_len: int, max_predictions: int) -> dict[str, NDArray[np.int64]]:
    """Create zeroed arrays for ``count`` sequences."""
    return {
        **{key: np.zeros((count, seq_len), np.int64) for key in _PER_TOKEN},
        **{key: np.zeros((count, max_predictions), np.int64) for key in _PER_PREDICTION},
        **{key: np.zeros(count, np.int64) for key in _PER_SEQUENCE},
    }
