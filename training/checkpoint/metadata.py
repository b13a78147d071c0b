"""Parse torch's ``.metadata``, a pickle, without unpickling it.

Unpickling can call arbitrary functions, and anyone with write access to ``runs/`` can write
checkpoints with valid checksums. So this module interprets only the opcodes that torch's pickles
use: only a dozen class and function names are allowed, and "calling" one only records the
arguments. torch's objects are created from the records after validation.
"""

from __future__ import annotations

import math
import pickletools
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

from training.checkpoint.marker import CheckpointDamaged, MarkedFile

_METADATA = "torch.distributed.checkpoint.metadata"
_ENCODING = (_METADATA, "_MEM_FORMAT_ENCODING")
_GETATTR = ("builtins", "getattr")
_CLASSES = frozenset(
    {
        *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
        *((_METADATA, name) for name in ("TensorStorageMetadata", "ChunkStorageMetadata")),
        *((_METADATA, name) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        # The folder of the save, which is not used; Python 3.13 has the class in another module.
        *((module, "PosixPath") for module in ("pathlib", "pathlib._local")),
        # Early versions of Python 3.11, such as Debian 12's 3.11.2, pickle an enum member as
        # getattr(class, name), later ones as class(value) (CPython pull request 26658, issue
        # 105332). Also unused.
        _GETATTR,
    }
)
"""The classes and functions that torch 2.9 and 2.13 write for tensors. ``BytesStorageMetadata`` is
excluded: no state here has such entries, and torch reads them with
``torch.load(weights_only=False)``."""
_MAX_REASON_CHARACTERS = 300


class _Class:
    """The name of a class or function in a pickle."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def is_named(self, full_name: tuple[str, str]) -> bool:
        return (self.module, self.name) == full_name


class _Record:
    """A recorded instantiation: class, arguments and state."""

    def __init__(self, kind: _Class, arguments: tuple[Any, ...]) -> None:
        self.kind, self.arguments = kind, arguments
        self.state: Any = None


def read_metadata(data: bytes, files: Mapping[str, MarkedFile]) -> Metadata:
    """Parse tensor locations within ``files``; raise ``CheckpointDamaged`` if invalid."""
    try:
        return _Validator(files).metadata(_parse(data))
    except Exception as error:  # a pickle can be invalid in almost any way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointDamaged(
            f".metadata cannot be read: {reason[:_MAX_REASON_CHARACTERS]}"
        ) from None


def _parse(data: bytes) -> Any:
    """Interpret a pickle of protocol 4 or 5, Python's defaults since 3.8; raise if it is invalid.

    Opcodes come from the standard library's table (pickletools.opcodes). Only strings and
    records are hashed, and memory use is bounded by the length of the pickle.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: list[Any] = []
    for opcode, argument, _ in pickletools.genops(data):
        match opcode.name:
            case "MEMOIZE":
                memo.append(stack[-1])
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[_natural(argument)])
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode.name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "TUPLE":
                stack.append(tuple(_pop_from(stack, marks.pop())))
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode.name == "NEWTRUE")
            case "APPEND":
                item = stack.pop()
                _list(stack[-1]).append(item)
            case "APPENDS":
                items = _pop_from(stack, marks.pop())
                _list(stack[-1]).extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set_items(stack[-1], [key, value])
            case "SETITEMS":
                items = _pop_from(stack, marks.pop())
                _set_items(stack[-1], items)
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_resolve_global(module, name))
            case "REDUCE" | "NEWOBJ":
                arguments, kind = stack.pop(), stack.pop()
                if type(kind) is not _Class or type(arguments) is not tuple:
                    raise ValueError("it calls something that is not a class")
                if kind.is_named(_GETATTR) and not _is_encoding(arguments):
                    raise ValueError("it reads an attribute of something other than an encoding")
                stack.append(_Record(kind, arguments))
            case "BUILD":
                state = stack.pop()
                if type(stack[-1]) is not _Record:
                    raise ValueError("it changes something that it did not create")
                stack[-1].state = state
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                (result,) = stack
                return result
            case other:
                raise ValueError(f"it contains the opcode {other}, which torch does not write")
    raise ValueError("it is truncated")


def _is_encoding(arguments: tuple[Any, ...]) -> bool:
    """Return whether these arguments of getattr name a memory format."""
    holder = arguments[0] if arguments else None
    return type(holder) is _Class and holder.is_named(_ENCODING)


def _pop_from(stack: list[Any], mark: int) -> list[Any]:
    items = stack[mark:]
    del stack[mark:]
    return items


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError("it appends to something that is not a list")
    return value


def _set_items(target: Any, items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Records are hashed by identity.
        if type(key) not in (str, _Record):
            raise ValueError(f"it has a key of type {type(key).__name__}")
        if type(target) is not dict:
            raise ValueError("it sets an item of something that is not a mapping")
        target[key] = value


def _resolve_global(module: Any, name: Any) -> Any:
    if type(module) is not str or type(name) is not str:
        raise ValueError("it refers to a class by a value that is not a string")
    if (module, name) in _CLASSES:
        return _Class(module, name)
    # Not getattr, which imports some modules of torch.
    dtype = vars(torch).get(name) if module == "torch" else None
    if isinstance(dtype, torch.dtype):
        return dtype
    raise ValueError(f"it names {f'{module}.{name}'!r}, which no checkpoint contains")


class _Validator:
    """Creates torch's objects from records, and rejects any that torch would not have written."""

    def __init__(self, files: Mapping[str, MarkedFile]) -> None:
        self._files = files

    def metadata(self, record: Any) -> Metadata:
        state = self._state(record, "Metadata")
        stored = _mapping(state["storage_data"])
        places = {self._index(key): self._place(value) for key, value in stored.items()}
        tensors = {
            _text(name): self._state(value, "TensorStorageMetadata")
            for name, value in _mapping(state["state_dict_metadata"]).items()
        }
        # Otherwise many tensors could share one very long list of chunks.
        if sum(len(_list(tensor["chunks"])) for tensor in tensors.values()) > len(places):
            raise ValueError("it has more tensor parts than locations")
        return Metadata(
            state_dict_metadata={
                name: self._tensor(name, tensor, places) for name, tensor in tensors.items()
            },
            storage_data=places,
        )

    def _tensor(
        self, name: str, state: Mapping[str, Any], places: Mapping[MetadataIndex, _StorageInfo]
    ) -> TensorStorageMetadata:
        # TensorProperties.__getstate__: dtype, layout, requires_grad, memory format, pinned.
        dtype = self._raw_state(state["properties"], "TensorProperties")[0]
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name!r} has no dtype")
        size, chunks = self._size(state["size"]), []
        for item in state["chunks"]:
            chunk = self._state(item, "ChunkStorageMetadata")
            offsets, sizes = self._size(chunk["offsets"]), self._size(chunk["sizes"])
            if len(offsets) != len(size) or len(sizes) != len(size):
                raise ValueError(f"{name!r} has a part with a different number of dimensions")
            if any(first + n > limit for first, n, limit in zip(offsets, sizes, size, strict=True)):
                raise ValueError(f"{name!r} has a part outside its bounds")
            if math.prod(sizes) and MetadataIndex(name, offsets) not in places:
                raise ValueError(f"{name!r} has a part that is not in any file")
            chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
        if sum(math.prod(chunk.sizes) for chunk in chunks) < math.prod(size):
            raise ValueError(f"{name!r} has parts that do not cover it")
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
        # _StorageInfo omits fields that are None.
        state = self._state(record, "_StorageInfo", "torch.distributed.checkpoint.filesystem")
        name = _text(state["relative_path"])
        offset, length = _natural(state["offset"]), _natural(state["length"])
        if state.get("transform_descriptors"):
            raise ValueError(f"{name!r} is compressed, which this version does not support")
        if name not in self._files:
            raise ValueError(f"{name!r} is not listed in the marker")
        if offset + length > self._files[name].bytes:
            raise ValueError(f"{name!r} ends before its last tensor does")
        return _StorageInfo(relative_path=name, offset=offset, length=length)

    def _size(self, record: Any) -> torch.Size:
        (numbers,) = self._check_record(record, "torch", "Size").arguments
        return torch.Size([_natural(number) for number in numbers])

    def _state(self, record: Any, name: str, module: str = _METADATA) -> Mapping[str, Any]:
        return _mapping(self._raw_state(record, name, module))

    def _raw_state(self, record: Any, name: str, module: str = _METADATA) -> Any:
        return self._check_record(record, module, name).state

    def _check_record(self, record: Any, module: str, name: str) -> _Record:
        if type(record) is not _Record:
            raise ValueError(f"it has a value of type {type(record).__name__} in place of a {name}")
        if (record.kind.module, record.kind.name) != (module, name):
            raise ValueError(f"it has a {record.kind.name} in place of a {name}")
        return record


def _mapping(value: Any) -> Mapping[Any, Any]:
    if type(value) is not dict:
        raise ValueError(f"it has a value of type {type(value).__name__} in place of a mapping")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"it has a value of type {type(value).__name__} in place of a name")
    return value


def _natural(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"it has a value of type {type(value).__name__} in place of a size")
    if not 0 <= value < 2**63:
        raise ValueError("it has a number out of range in place of a size")
    return value
