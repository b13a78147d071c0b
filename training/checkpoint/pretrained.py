"""Pretrained weights of a run: a folder of safetensors files, read in parts.

The format is an eight-byte header length, a JSON header, then the tensors, dense and in row-major
order (huggingface/safetensors, README, "Format"). Adjacent rows of a matrix are therefore a single
byte range, and each rank reads only its own rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from training.storage import ObjectMissing, Objects
from trainium_catalogue.models.in_bucket import WEIGHTS, WEIGHTS_INDEX
from trainium_catalogue.typed_json import read_json, read_object, typed

_LENGTH_BYTES = 8
_FIRST_READ_BYTES = 256 * 1024
"""Enough for the entire header of most files."""
_MAX_HEADER_BYTES = 100_000_000
"""The library's own limit (safetensors, ``MAX_HEADER_SIZE``)."""
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_READ_BYTES = 64 * 1024 * 1024
"""Maximum size of a single read."""
_SAMPLE_BYTES = 1024
_CONCURRENT_SAMPLES = 16
_MAX_NAMES = 5
"""Maximum number of names in a message."""


class PretrainedWeightsError(ValueError):
    """The pretrained weights cannot be used; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """The location of a tensor."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """First byte in the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """Fields read from the index of a model split over several files."""

    weight_map: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A tensor's entry in a file header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.data_offsets) != 2 or any(number < 0 for number in self.shape):
            raise ValueError("a tensor has an invalid shape or location")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsTable:
    """The headers of all files; small enough to send to every rank."""

    tensors: Mapping[str, _Tensor]
    num_bytes: int
    """Total size of all files."""

    @staticmethod
    def read(objects: Objects) -> WeightsTable:
        """Read the header of every file; refuse missing or truncated files."""
        sizes = {info.key: info.size for info in objects.list()}
        named: Mapping[str, str] | None = None
        if WEIGHTS in sizes:
            files = [WEIGHTS]
        elif WEIGHTS_INDEX in sizes:
            named = _weight_map(objects)
            files = sorted(set(named.values()))
        else:
            raise PretrainedWeightsError(
                f"{objects.uri} has neither {WEIGHTS} nor {WEIGHTS_INDEX}; put a model there in "
                "the layout of transformers' save_pretrained, with python -m jobs upload FOLDER"
            )
        if missing := [file for file in files if file not in sizes]:
            raise PretrainedWeightsError(
                f"{objects.uri} lacks {_some(missing)}, which its index lists; upload the folder "
                "again: the upload resumes where it stopped"
            )
        tensors: dict[str, _Tensor] = {}
        for file in files:
            header = _header(objects, file, sizes[file])
            tensors.update(
                (name, tensor)
                for name, tensor in header.items()
                if named is None or named.get(name) == file
            )
        if named is not None and (absent := sorted(named.keys() - tensors.keys())):
            raise PretrainedWeightsError(
                f"{objects.uri}: its index lists {_some(absent)}, which no file contains, so "
                "the files belong to another model; upload the folder again"
            )
        return WeightsTable(tensors=tensors, num_bytes=sum(sizes[file] for file in files))


class PretrainedWeights:
    """The tensors of a folder; raises ``PretrainedWeightsError`` if they are invalid."""

    def __init__(
        self,
        objects: Objects,
        table: WeightsTable,
        *,
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._objects, self._on_bytes = objects, on_bytes
        self.table = table
        self.bytes_read = 0
        """Bytes of tensors read by this process."""

    def require(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Refuse weights unless they have exactly these tensors, in a supported dtype."""
        tensors, uri = self.table.tensors, self._objects.uri
        if missing := [name for name in shapes if name not in tensors]:
            raise PretrainedWeightsError(
                f"{uri} has no tensor {_some(missing)}, which the model needs; start from weights "
                "of a model of this kind, saved by transformers' save_pretrained"
            )
        if extra := sorted(tensors.keys() - shapes.keys()):
            raise PretrainedWeightsError(
                f"{uri} has {_some(extra)}, which the model would not use; start from weights of a "
                "model of this kind (merge adapters first: python -m jobs submit export --merge)"
            )
        for name, shape in shapes.items():
            tensor = tensors[name]
            if tensor.dtype not in _DTYPES:
                raise PretrainedWeightsError(
                    f"{uri}: {name} has dtype {tensor.dtype}, but only {', '.join(_DTYPES)} can be "
                    "trained; use the unquantized weights"
                )
            if tensor.shape != tuple(shape):
                raise PretrainedWeightsError(
                    f"{uri}: {name} has shape {list(tensor.shape)}, but the model needs "
                    f"{list(shape)}; config.json belongs to another model; upload the folder again"
                )

    def sha256(self) -> str:
        """Hash the names, dtypes, shapes and first bytes of all tensors.

        Hashing Llama-2-7B in full would take as long as loading it.
        """
        tensors = sorted(self.table.tensors.items())
        with ThreadPoolExecutor(_CONCURRENT_SAMPLES) as pool:
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

        A range of rows is read directly. Columns are sliced from whole rows, since one range per
        row would mean thousands of requests.
        """
        tensor = self.table.tensors[name]
        kind = _DTYPES[tensor.dtype]
        result = torch.empty(tuple(size), dtype=dtype)
        if not result.numel():
            return result
        row_bytes = kind.itemsize * math.prod(tensor.shape[1:])
        step = max(1, _READ_BYTES // row_bytes)
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
            raise _truncated_error(self._objects, tensor.file)
        self.bytes_read += length
        self._on_bytes(length)
        return data


def _weight_map(objects: Objects) -> Mapping[str, str]:
    try:
        files = read_json(objects.get(WEIGHTS_INDEX), _Index).weight_map
    except ValueError:
        files = {}
    if not files:
        raise PretrainedWeightsError(
            f"{objects.uri}/{WEIGHTS_INDEX} lists no weights; upload the folder again"
        )
    return files


def _header(objects: Objects, file: str, size: int) -> dict[str, _Tensor]:
    """Read the location of each tensor in a file."""
    try:
        head = objects.get_range(file, 0, min(size, _FIRST_READ_BYTES))
    except ObjectMissing:
        head = b""
    if len(head) < _LENGTH_BYTES:
        raise _truncated_error(objects, file)
    (length,) = struct.unpack("<Q", head[:_LENGTH_BYTES])
    if length > _MAX_HEADER_BYTES:
        raise _not_safetensors_error(objects, file)
    start = _LENGTH_BYTES + length
    if start > size:
        raise _truncated_error(objects, file)
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
        raise _not_safetensors_error(objects, file) from None
    for tensor in tensors.values():
        kind = _DTYPES.get(tensor.dtype)
        expected = tensor.num_bytes if kind is None else kind.itemsize * math.prod(tensor.shape)
        # Otherwise another tensor's values could be read; the library also refuses both cases.
        if tensor.begin < start or tensor.num_bytes != expected:
            raise _not_safetensors_error(objects, file)
    end = max((tensor.begin + tensor.num_bytes for tensor in tensors.values()), default=start)
    if size < end:
        raise PretrainedWeightsError(
            f"{objects.uri}/{file} has {size} bytes, but its header expects {end}; upload it again"
        )
    return tensors


def _truncated_error(objects: Objects, file: str) -> PretrainedWeightsError:
    return PretrainedWeightsError(f"{objects.uri}/{file} is truncated; upload it again")


def _not_safetensors_error(objects: Objects, file: str) -> PretrainedWeightsError:
    return PretrainedWeightsError(
        f"{objects.uri}/{file} is not a safetensors file; save the model with transformers' "
        "save_pretrained and upload that folder (for a Git LFS pointer, run git lfs pull first)"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
