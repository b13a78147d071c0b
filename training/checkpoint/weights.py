"""The whole weights of a checkpoint, whatever topology wrote them; a few tensors at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from training.checkpoint.dcp import Reader
from training.checkpoint.marker import CheckpointDamaged, CheckpointInfo, CheckpointUnusable
from training.checkpoint.metadata import read_metadata
from training.storage import Objects, StorageError

OnBytes = Callable[[int], None]
_PREFIXES = ("model.", "")
"""Prefixes of the model in a trainer's state; the names that follow are Hugging Face's."""


class Weights:
    """The weights of the checkpoint in ``objects``; ``CheckpointUnusable`` if they do not fit.

    ``shapes`` are those of the whole model. Reads slices of every rank's file, which holds the
    model first and then the moments.
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
        data = Reader(objects, info.files, on_bytes).fetch_metadata()
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
                f"checkpoint {info.name} has no {missing[0]}, which the model of the run needs; "
                "was it written by another version of this code?"
            )
        for name, shape in shapes.items():
            known = stored[f"{self._prefix}{name}"]
            if not isinstance(known, TensorStorageMetadata) or known.size != shape:
                size = list(getattr(known, "size", ()))
                raise CheckpointUnusable(
                    f"checkpoint {info.name} is of another model: {name} is {size}, "
                    f"run.json says {list(shape)}"
                )

    def _reader(self) -> Reader:
        reader = Reader(self._objects, self._info.files, self._on_bytes)
        reader.use_metadata(self._metadata)
        return reader

    def read(self, names: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Read whole tensors to the host; ``CheckpointDamaged`` where bytes are wrong.

        Reads straight into ``dtype``: only one shard of a tensor is in fp32 at a time.
        """
        # Zeros, so that no gap in a checkpoint is filled with this process's memory.
        whole = {name: torch.zeros(self._shapes[name], dtype=dtype) for name in names}
        state: dict[str, Any] = {f"{self._prefix}{name}": t for name, t in whole.items()}
        try:
            with warnings.catch_warnings():
                # torch warns that one process reads alone.
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                dcp_load(state, storage_reader=self._reader(), no_dist=True)
        except CheckpointException as error:
            ((cause, _),) = error.failures.values()
            if isinstance(cause, CheckpointDamaged | StorageError | OSError):
                raise cause from None
            raise CheckpointDamaged(
                f"the tensors cannot be read: {type(cause).__name__}: {cause}"
            ) from None
        return whole
