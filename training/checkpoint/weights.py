"""The weights of a checkpoint, whole, whatever topology wrote them; a few tensors at a time."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from training.checkpoint.dcp import Reader
from training.checkpoint.errors import CheckpointDamaged, CheckpointUnusable
from training.checkpoint.marker import CheckpointInfo
from training.objects import Objects

OnBytes = Callable[[int], None]
_PREFIXES = ("model.", "")
"""Under which a trainer may keep its model in the state; names below are Hugging Face's."""
_NXD_FILE = re.compile(r"model/dp_rank_00_tp_rank_(\d+)_pp_rank_(\d+)\.pt")


class Weights(Protocol):
    """Where the tensors of a model come from."""

    def read(self, names: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Whole tensors on the host; ``CheckpointDamaged`` where their bytes are wrong."""


def open_weights(
    objects: Objects,
    info: CheckpointInfo,
    *,
    shapes: Mapping[str, torch.Size],
    split_dimensions: Mapping[str, int | None],
    on_bytes: OnBytes,
) -> Weights:
    """The weights of the checkpoint in ``objects``; ``CheckpointUnusable`` if they do not fit.

    ``shapes`` are those of the whole model, ``split_dimensions`` how tensor parallelism divides
    each tensor (None: not at all), which only NxD's format does not record.
    """
    if info.format == "dcp":
        return _DcpWeights(objects, info, shapes=shapes, on_bytes=on_bytes)
    return _NxdWeights(objects, info, shapes=shapes, dimensions=split_dimensions, on_bytes=on_bytes)


class _DcpWeights:
    """Reads slices of every rank's file: they begin with the model, moments follow."""

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
        self._metadata = Reader(objects, info.files, on_bytes).fetch_metadata()
        stored = self._reader().read_metadata().state_dict_metadata
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
        """Read straight into tensors of ``dtype``: fp32 exists a shard of a tensor at a time."""
        whole = {name: torch.empty(self._shapes[name], dtype=dtype) for name in names}
        state: dict[str, Any] = {f"{self._prefix}{name}": t for name, t in whole.items()}
        try:
            with warnings.catch_warnings():
                # One process reads alone, and torch warns that it does.
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                dcp_load(state, storage_reader=self._reader(), no_dist=True)
        except CheckpointException as error:
            ((cause, _),) = error.failures.values()
            raise cause from None
        return whole


class _NxdWeights:
    """Joins one file per tensor-parallel rank, as neuronx_distributed's ``save_checkpoint`` writes.

    ``model/`` holds what the devices compute with; fp32 master weights are in ``optim/``, cut by
    data-parallel rank along boundaries that NxD does not record, so they are not exported.
    """

    def __init__(
        self,
        objects: Objects,
        info: CheckpointInfo,
        *,
        shapes: Mapping[str, torch.Size],
        dimensions: Mapping[str, int | None],
        on_bytes: OnBytes,
    ) -> None:
        self._info, self._shapes, self._dimensions = info, shapes, dimensions
        if any(".pt.tensors/" in name for name in info.files):
            raise CheckpointUnusable(
                f"checkpoint {info.name} was written with NxD's use_xser, one file a tensor, which "
                "this does not read; convert it with neuronx_distributed's own converter"
            )
        found = {name: match for name in info.files if (match := _NXD_FILE.fullmatch(name))}
        if any(int(match[2]) for match in found.values()):
            raise CheckpointUnusable(
                f"checkpoint {info.name} was written with pipeline parallelism, which this does "
                "not read; convert it with neuronx_distributed's own converter"
            )
        ranks = sorted(int(match[1]) for match in found.values())
        if not ranks or ranks != list(range(len(ranks))):
            raise CheckpointDamaged(f"model files of tensor-parallel ranks {ranks} are there")
        self._folder = tempfile.TemporaryDirectory(prefix="trainium-export-")
        self._parts: list[Mapping[str, torch.Tensor]] = []
        for name in sorted(found, key=lambda name: int(found[name][1])):
            path = Path(self._folder.name) / name
            objects.get_file(name, path, on_bytes=on_bytes)
            # Mapped: 13.5 GB for Llama-2-7B in all, of which only what is read is in memory.
            document = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            self._parts.append(document.get("model", document))

    def read(self, names: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Join the parts of each tensor."""
        return {name: self._joined(name).to(dtype) for name in names}

    def _joined(self, name: str) -> torch.Tensor:
        for part in self._parts:
            if name not in part:
                raise CheckpointUnusable(f"checkpoint {self._info.name} has no {name}")
        dimension = self._dimensions[name]
        if dimension is None:
            whole = self._parts[0][name]
        else:
            whole = torch.cat([part[name] for part in self._parts], dim=dimension)
        if whole.shape != self._shapes[name]:
            raise CheckpointUnusable(
                f"checkpoint {self._info.name} is of another model: {name} is {list(whole.shape)}, "
                f"run.json says {list(self._shapes[name])}"
            )
        return whole
