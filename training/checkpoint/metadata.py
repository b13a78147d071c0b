"""Reads torch's ``.metadata``, which is a pickle, without running what a pickle could run.

A pickle names functions and calls them, and whoever may write below ``runs/`` writes checkpoints,
with their checksums. So each name that it may contain becomes a class of this module that only
records its arguments, any other name is refused, and torch's objects are made from the records once
these have been checked. torch's own ``pickle.load`` is never called.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from training.checkpoint.marker import CheckpointDamaged, FileSum

_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = frozenset(
    {
        *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
        *((_METADATA, name) for name in ("TensorStorageMetadata", "ChunkStorageMetadata")),
        *((_METADATA, name) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        # The folder that was saved to; 3.13 has it in another module. Not used.
        *((module, "PosixPath") for module in ("pathlib", "pathlib._local")),
    }
)
"""What torch 2.9 and 2.13 write for tensors. ``BytesStorageMetadata`` is not among them: no state
here has such entries, and torch reads them with ``torch.load(weights_only=False)``."""


class _Record:
    """An object that a pickle describes: its class, arguments and state, and nothing else."""

    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any) -> _Record:
        found = object.__new__(cls)
        found.arguments, found.state = arguments, None
        return found

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Makes records; their classes are new for each pickle, which may change them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.kinds = {
            (module, name): type(name, (_Record,), {"__module__": module})
            for module, name in _ALLOWED
        }

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the class of records for a name; ``UnpicklingError`` for any other name."""
        if (module, name) in self.kinds:
            return self.kinds[module, name]
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint contains")


def read_metadata(data: bytes, files: Mapping[str, FileSum]) -> Metadata:
    """Read where each tensor of a checkpoint lies in its ``files``; else ``CheckpointDamaged``."""
    unpickler = _Unpickler(data)
    try:
        return _Checked(unpickler.kinds, files).metadata(unpickler.load())
    except CheckpointDamaged:
        raise
    except Exception as error:  # a pickle can raise almost anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointDamaged(f".metadata cannot be read: {reason[:300]}") from None


class _Checked:
    """Makes torch's objects from records, and raises for what torch would not have written."""

    def __init__(
        self, kinds: Mapping[tuple[str, str], type[_Record]], files: Mapping[str, FileSum]
    ) -> None:
        self._kinds, self._files = kinds, files

    def metadata(self, record: Any) -> Metadata:
        state = self._state(record, "Metadata")
        stored = _mapping(state["storage_data"])
        return Metadata(
            state_dict_metadata={
                _text(name): self._tensor(_text(name), found)
                for name, found in _mapping(state["state_dict_metadata"]).items()
            },
            storage_data={self._index(key): self._place(found) for key, found in stored.items()},
        )

    def _tensor(self, name: str, record: Any) -> TensorStorageMetadata:
        state = self._state(record, "TensorStorageMetadata")
        # TensorProperties.__getstate__: dtype, layout, requires_grad, memory format, pinned.
        dtype = self._raw_state(state["properties"], "TensorProperties")[0]
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name} has no type")
        size, chunks = self._size(state["size"]), []
        for item in state["chunks"]:
            chunk = self._state(item, "ChunkStorageMetadata")
            offsets, sizes = self._size(chunk["offsets"]), self._size(chunk["sizes"])
            if len(offsets) != len(size) or len(sizes) != len(size):
                raise ValueError(f"{name} has a part with another number of dimensions")
            if any(at + part > all_ for at, part, all_ in zip(offsets, sizes, size, strict=True)):
                raise ValueError(f"{name} has a part that lies outside of it")
            chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
        return TensorStorageMetadata(
            properties=TensorProperties(dtype=dtype), size=size, chunks=chunks
        )

    def _index(self, record: Any) -> MetadataIndex:
        state = self._state(record, "MetadataIndex")
        offset, index = state["offset"], state["index"]
        return MetadataIndex(
            fqn=_text(state["fqn"]),
            offset=None if offset is None else self._size(offset),
            index=None if index is None else _natural(index),
        )

    def _place(self, record: Any) -> _StorageInfo:
        # _StorageInfo leaves out what is None.
        state = self._state(record, "_StorageInfo", "torch.distributed.checkpoint.filesystem")
        name = _text(state["relative_path"])
        offset, length = _natural(state["offset"]), _natural(state["length"])
        if state.get("transform_descriptors"):
            raise ValueError(f"{name!r} is compressed, which this version never does")
        if name not in self._files:
            raise ValueError(f"{name!r} is not listed in the marker")
        if offset + length > self._files[name].num_bytes:
            raise ValueError(f"{name!r} ends before a tensor in it does")
        return _StorageInfo(relative_path=name, offset=offset, length=length)

    def _size(self, record: Any) -> torch.Size:
        (found,) = self._known(record, "torch", "Size").arguments
        return torch.Size([_natural(number) for number in found])

    def _state(self, record: Any, name: str, module: str = _METADATA) -> Mapping[str, Any]:
        return _mapping(self._raw_state(record, name, module))

    def _raw_state(self, record: Any, name: str, module: str = _METADATA) -> Any:
        return self._known(record, module, name).state

    def _known(self, record: Any, module: str, name: str) -> _Record:
        if type(record) is not self._kinds[module, name]:
            raise ValueError(f"it has a {type(record).__name__} in place of a {name}")
        assert isinstance(record, _Record)
        return record


def _mapping(value: Any) -> Mapping[Any, Any]:
    if type(value) is not dict:
        raise ValueError(f"it has a {type(value).__name__} in place of a mapping")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"it has a {type(value).__name__} in place of a name")
    return value


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"it has a {type(value).__name__} in place of a size")
    return value
