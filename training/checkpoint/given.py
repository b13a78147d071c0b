"""Weights that a run begins with: a folder of safetensors, read part by part.

The format: eight bytes with the length of a JSON header, the header, then the tensors, dense and in
row-major order (huggingface/safetensors, README, "Format"). So the rows of a matrix are one range
of a file, and a rank that computes with some of them reads nothing else.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from training.storage import ObjectMissing, Objects
from trainium_catalogue.models.in_bucket import WEIGHTS, WEIGHTS_INDEX
from trainium_catalogue.typed_json import read_json, read_object, typed

_LENGTH_BYTES = 8
_FIRST_READ_BYTES = 256 * 1024
"""Holds the whole header of most files."""
_AT_MOST_HEADER_BYTES = 100_000_000
"""The library's own limit (safetensors, ``MAX_HEADER_SIZE``)."""
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_AT_ONCE_BYTES = 64 * 1024 * 1024
"""Most bytes of a tensor that are read at once."""
_SAMPLE_BYTES = 1024
_SAMPLES_AT_ONCE = 16
_SOME = 5


class GivenWeightsError(ValueError):
    """The weights that a run is to begin with cannot be used; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """Where a tensor lies."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """First byte in the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """What is read of the index of several files."""

    weight_map: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A tensor in the header of a file."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.data_offsets) != 2 or any(number < 0 for number in self.shape):
            raise ValueError("a tensor has no such shape or place")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTable:
    """What the headers of all files say; small enough to send to every rank."""

    tensors: Mapping[str, _Tensor]
    num_bytes: int
    """Of all files."""

    @staticmethod
    def read(objects: Objects) -> GivenTable:
        """Read the header of every file; refuse what is missing or cut short."""
        sizes = {info.key: info.size for info in objects.list()}
        named: Mapping[str, str] | None = None
        if WEIGHTS in sizes:
            files = [WEIGHTS]
        elif WEIGHTS_INDEX in sizes:
            named = _weight_map(objects)
            files = sorted(set(named.values()))
        else:
            raise GivenWeightsError(
                f"{objects.uri} has neither {WEIGHTS} nor {WEIGHTS_INDEX}; put a model there in "
                "the layout of transformers' save_pretrained, with python -m jobs upload FOLDER"
            )
        if missing := [file for file in files if file not in sizes]:
            raise GivenWeightsError(
                f"{objects.uri} lacks {_some(missing)}, which its index names; upload the folder "
                "again, it goes on where it ended"
            )
        tensors: dict[str, _Tensor] = {}
        for file in files:
            found = _header(objects, file, sizes[file])
            tensors.update(
                (name, tensor)
                for name, tensor in found.items()
                if named is None or named.get(name) == file
            )
        if named is not None and (absent := sorted(named.keys() - tensors.keys())):
            raise GivenWeightsError(
                f"{objects.uri}: its index names {_some(absent)}, which no file has; the files are "
                "those of another model, upload the folder anew"
            )
        return GivenTable(tensors=tensors, num_bytes=sum(sizes[file] for file in files))


class GivenWeights:
    """The tensors of a folder; ``GivenWeightsError`` where they are not what they must be."""

    def __init__(
        self,
        objects: Objects,
        table: GivenTable,
        *,
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._objects, self._on_bytes = objects, on_bytes
        self.table = table
        self.bytes_read = 0
        """Of tensors, by this process."""

    @property
    def names(self) -> Iterable[str]:
        """Every tensor."""
        return self.table.tensors.keys()

    def require(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Refuse weights that lack one of these tensors, or have it in another shape or type."""
        tensors, uri = self.table.tensors, self._objects.uri
        if missing := [name for name in shapes if name not in tensors]:
            raise GivenWeightsError(
                f"{uri} has no tensor {_some(missing)}, which the model needs; begin with weights "
                "of a model of this kind, saved by transformers' save_pretrained"
            )
        if extra := sorted(tensors.keys() - shapes.keys()):
            raise GivenWeightsError(
                f"{uri} has {_some(extra)}, which the model would not use; begin with weights of a "
                "model of this kind (adapters are merged first: python -m jobs submit export "
                "--merge)"
            )
        for name, shape in shapes.items():
            found = tensors[name]
            if found.dtype not in _DTYPES:
                raise GivenWeightsError(
                    f"{uri}: {name} is of type {found.dtype}, and only {', '.join(_DTYPES)} can be "
                    "trained on; take the weights that were not quantized"
                )
            if found.shape != tuple(shape):
                raise GivenWeightsError(
                    f"{uri}: {name} is {list(found.shape)}, and the model needs {list(shape)}; "
                    "config.json is another model's, upload the folder anew"
                )

    def sha256(self) -> str:
        """Identify the weights: names, types, shapes, and the first bytes of each tensor.

        Reading all of Llama-2-7B to tell it from another model would take as long as loading it.
        """
        tensors = sorted(self.table.tensors.items())
        with ThreadPoolExecutor(_SAMPLES_AT_ONCE) as pool:
            samples = list(pool.map(self._sample, (tensor for _, tensor in tensors)))
        digest = hashlib.sha256()
        for (name, tensor), sample in zip(tensors, samples, strict=True):
            digest.update(json.dumps([name, tensor.dtype, tensor.shape]).encode())
            digest.update(sample)
        return digest.hexdigest()

    def _sample(self, tensor: _Tensor) -> bytes:
        return self._bytes(tensor, tensor.begin, min(_SAMPLE_BYTES, tensor.num_bytes))

    def read(
        self, name: str, *, offsets: Sequence[int], size: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Read a rectangle of a tensor.

        Some rows are read by themselves. Some columns are cut from their rows, since a range for
        each row would be thousands of requests.
        """
        tensor = self.table.tensors[name]
        kind = _DTYPES[tensor.dtype]
        result = torch.empty(tuple(size), dtype=dtype)
        if not result.numel():
            return result
        row_bytes = kind.itemsize * math.prod(tensor.shape[1:])
        step = max(1, _AT_ONCE_BYTES // row_bytes)
        columns = tuple(
            slice(first, first + count) for first, count in zip(offsets[1:], size[1:], strict=True)
        )
        for row in range(0, size[0], step):
            count = min(step, size[0] - row)
            data = self._bytes(
                tensor, tensor.begin + (offsets[0] + row) * row_bytes, count * row_bytes
            )
            rows = torch.frombuffer(bytearray(data), dtype=kind).view(count, *tensor.shape[1:])
            result[row : row + count] = rows[(slice(None), *columns)]
        return result

    def _bytes(self, tensor: _Tensor, start: int, length: int) -> bytes:
        data = self._objects.get_range(tensor.file, start, length)
        if len(data) != length:
            raise _cut_short(self._objects, tensor.file)
        self.bytes_read += length
        self._on_bytes(length)
        return data


def _weight_map(objects: Objects) -> Mapping[str, str]:
    try:
        files = read_json(objects.get(WEIGHTS_INDEX), _Index).weight_map
    except ValueError:
        files = {}
    if not files:
        raise GivenWeightsError(
            f"{objects.uri}/{WEIGHTS_INDEX} names no weights; upload the folder anew"
        )
    return files


def _header(objects: Objects, file: str, size: int) -> dict[str, _Tensor]:
    """Read where each tensor of a file lies."""
    try:
        head = objects.get_range(file, 0, min(size, _FIRST_READ_BYTES))
    except ObjectMissing:
        head = b""
    if len(head) < _LENGTH_BYTES:
        raise _cut_short(objects, file)
    (length,) = struct.unpack("<Q", head[:_LENGTH_BYTES])
    if length > _AT_MOST_HEADER_BYTES:
        raise _no_safetensors(objects, file)
    start = _LENGTH_BYTES + length
    if start > size:
        raise _cut_short(objects, file)
    if start > len(head):
        head += objects.get_range(file, len(head), start - len(head))
    try:
        document = read_object(head[_LENGTH_BYTES:start])
        document.pop("__metadata__", None)
        tensors = {
            name: _Tensor(
                file=file,
                dtype=entry.dtype,
                shape=entry.shape,
                begin=start + entry.data_offsets[0],
                num_bytes=entry.data_offsets[1] - entry.data_offsets[0],
            )
            for name, entry in ((name, typed(item, _Entry)) for name, item in document.items())
        }
    except ValueError:
        raise _no_safetensors(objects, file) from None
    for tensor in tensors.values():
        kind = _DTYPES.get(tensor.dtype)
        expected = tensor.num_bytes if kind is None else kind.itemsize * math.prod(tensor.shape)
        # The library refuses both too; read as they are, they would give another tensor's numbers.
        if tensor.begin < start or tensor.num_bytes != expected:
            raise _no_safetensors(objects, file)
    end = max((tensor.begin + tensor.num_bytes for tensor in tensors.values()), default=start)
    if size < end:
        raise GivenWeightsError(
            f"{objects.uri}/{file} has {size} bytes and its header tells of {end}: it was cut "
            "short; upload it again"
        )
    return tensors


def _cut_short(objects: Objects, file: str) -> GivenWeightsError:
    return GivenWeightsError(f"{objects.uri}/{file} was cut short; upload it again")


def _no_safetensors(objects: Objects, file: str) -> GivenWeightsError:
    return GivenWeightsError(
        f"{objects.uri}/{file} is no safetensors file; save the model with transformers' "
        "save_pretrained, and upload that folder (a Git LFS pointer: git lfs pull first)"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SOME} more" if len(names) > _SOME else ""
    return ", ".join(names[:_SOME]) + more
