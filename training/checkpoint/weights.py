"""Reads the full weights of a checkpoint of any topology, a few tensors at a time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from training.checkpoint.dcp import METADATA, Reader
from training.checkpoint.marker import CheckpointDamaged, CheckpointInfo, CheckpointUnusable
from training.checkpoint.metadata import read_metadata
from training.storage import Objects, OnBytes, StorageError

_PREFIXES = ("model.", "")
"""Possible prefixes of the weights' names; the rest of each name is Hugging Face's."""


class Weights:
    """The weights of the checkpoint in ``objects``; raises ``CheckpointUnusable`` on a mismatch.

    Also raises ``CheckpointDamaged`` if the metadata is invalid. ``shapes`` covers the whole model.
    Reads slices of every rank's file, in which the weights precede the optimizer state.
    """

    def __init__(
        self,
        objects: Objects,
        info: CheckpointInfo,
        *,
        shapes: Mapping[str, torch.Size],
        on_bytes: OnBytes,
    ) -> None:
        self._objects, self._info, self._on_bytes = objects, info, on_bytes
        self._shapes = shapes
        data = Reader(objects, info.files, on_bytes).fetch(METADATA)
        self._metadata = read_metadata(data, info.files)
        stored = self._metadata.state_dict_metadata
        candidates = {
            prefix: [name for name in shapes if f"{prefix}{name}" not in stored]
            for prefix in _PREFIXES
        }
        self._prefix = min(candidates, key=lambda prefix: len(candidates[prefix]))
        missing = candidates[self._prefix]
        if missing:
            raise CheckpointUnusable(
                f"checkpoint {info.name} has no {missing[0]}, which the run's model needs; resume "
                "with the version of this code that wrote it, or use another run name"
            )
        for name, shape in shapes.items():
            known = stored[f"{self._prefix}{name}"]
            if not isinstance(known, TensorStorageMetadata) or known.size != shape:
                size = list(getattr(known, "size", ()))
                raise CheckpointUnusable(
                    f"checkpoint {info.name} belongs to another model: {name} has shape {size}, "
                    f"but run.json has {list(shape)}"
                )

    def read(self, names: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Read whole tensors to the host; raise ``CheckpointDamaged`` if they are corrupt.

        Converts to ``dtype`` while reading: only one shard of a tensor is in fp32 at a time.
        """
        # Zeros, so that a gap in a checkpoint never exposes this process's memory.
        whole = {name: torch.zeros(self._shapes[name], dtype=dtype) for name in names}
        state: dict[str, Any] = {f"{self._prefix}{name}": t for name, t in whole.items()}
        reader = Reader(self._objects, self._info.files, self._on_bytes)
        reader.use_metadata(self._metadata)
        try:
            with warnings.catch_warnings():
                # torch warns when a single process loads.
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                dcp_load(state, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            ((cause, _),) = error.failures.values()
            if isinstance(cause, CheckpointDamaged | StorageError | OSError):
                raise cause from None
            raise CheckpointDamaged(
                f"the tensors cannot be read: {type(cause).__name__}: {cause}"
            ) from None
        return whole
