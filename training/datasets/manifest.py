"""Manifests of datasets (packed tokens, or files from ``prepare``), written last."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from training.core.failures import ExplainedError
from training.core.files import sha256_of
from training.storage import ObjectMissing, Objects
from trainium_catalogue.contract import DATASET_MANIFEST
from trainium_catalogue.safe_folder import PART_PREFIX, path_parts
from trainium_catalogue.typed_json import read_object, typed
from trainium_catalogue.wording import counted

log = logging.getLogger(__name__)

PACKED_SCHEMA = 2
_EXAMPLES_SCHEMA = 3
"""Schema of datasets of prompts and responses."""
COUNTED = 1 << 31
"""In datasets of prompts and responses, the bit set in ids of tokens that count in the loss."""
_UNSPLIT_SCHEMA = 1
"""Schema of datasets without a validation split, as in earlier releases."""
TOKENIZER_FILE = "tokenizer.json"
"""The dataset's tokenizer in Hugging Face's format, stored next to the manifest."""
FILES_SCHEMA = 1
_BYTES = {"uint16": 2, "uint32": 4}
"""Bytes per token id, by dtype."""


class DatasetError(ExplainedError, ValueError):
    """A dataset cannot be created or read as requested; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of token ids, little-endian, without a header."""

    name: str
    tokens: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        _check_file(self.name, self.bytes, self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The text that a dataset was made from."""

    uri: str
    files: int
    bytes: int
    text_field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The held-out documents: a separate stream, in separate shards."""

    fraction: float
    """Share of the documents, as requested."""
    num_tokens: int
    documents: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedManifest:
    """A packed dataset: one stream of ids, cut into shards, each document followed by ``eos_id``.

    Tokens, documents and shards are of the training split; ``validation`` is the held-out one.
    """

    dtype: str
    """``uint16``, or ``uint32`` if the vocabulary is larger than 65,535."""
    vocab_size: int
    eos_id: int
    bos: bool
    """True if documents start with a BOS id; always False so far."""
    tokenizer: str
    """Name of the uploaded file."""
    tokenizer_file_sha256: str
    """Checksum of that file."""
    tokenizer_sha256: str
    """Checksum of the ``tokenizer.json`` next to the manifest, which determines the ids."""
    num_tokens: int
    documents: int
    empty_documents: int
    """Number of empty documents that were skipped."""
    source: Source
    shards: tuple[Shard, ...]
    validation: Validation | None = None
    """None: nothing was held out."""
    seq_len: int = 0
    """For prompts and responses: length of the sequences they are packed into; otherwise 0."""
    response_tokens: int = 0
    """For prompts and responses: training tokens that count in the loss."""

    def __post_init__(self) -> None:
        if self.dtype not in _BYTES:
            raise ValueError(f"dtype is {self.dtype!r}, not one of {', '.join(_BYTES)}")
        for shard in self.files:
            if shard.bytes != shard.tokens * _BYTES[self.dtype]:
                raise ValueError(
                    f"{shard.name} has {shard.bytes:,} bytes, but {shard.tokens:,} tokens of "
                    f"{self.dtype} take {shard.tokens * _BYTES[self.dtype]:,} bytes"
                )
        if min(self.vocab_size, self.eos_id, self.seq_len) < 0:
            raise ValueError("vocab_size, eos_id and seq_len cannot be negative")

    @property
    def has_responses(self) -> bool:
        """Return whether only some tokens count in the loss."""
        return self.seq_len > 0

    @property
    def files(self) -> tuple[Shard, ...]:
        """Every shard, of both splits."""
        return self.shards + (self.validation.shards if self.validation is not None else ())

    def to_json(self) -> bytes:
        """Encode as JSON; equal manifests give equal bytes."""
        document = {"schema": PACKED_SCHEMA, **asdict(self)}
        if self.has_responses:
            return f"{json.dumps({**document, 'schema': _EXAMPLES_SCHEMA}, indent=1)}\n".encode()
        del document["seq_len"], document["response_tokens"]
        if self.validation is None:
            document["schema"] = _UNSPLIT_SCHEMA
            del document["validation"]
        return f"{json.dumps(document, indent=1)}\n".encode()

    @staticmethod
    def from_json(data: bytes, *, name: str) -> PackedManifest:
        """Parse the manifest called ``name``; raise ``DatasetError`` if it is invalid."""
        try:
            document = read_object(data)
            if "schema" not in document:
                raise ValueError("it has no schema")
            schema = document["schema"]
            if schema not in (_UNSPLIT_SCHEMA, PACKED_SCHEMA, _EXAMPLES_SCHEMA):
                raise DatasetError(
                    f"{name} has schema {schema}, but this release reads schemas up to "
                    f"{_EXAMPLES_SCHEMA}; tokenize it again"
                )
            return typed(document, PackedManifest)
        except DatasetError:
            raise
        except ValueError as error:
            raise DatasetError(
                f"{name} is not the manifest of a packed dataset: {error}; tokenize it again"
            ) from None


def _check_file(name: str, size: int, count: int) -> None:
    """Refuse invalid entries; the name becomes a path on every node."""
    first = path_parts(name)[0]
    if first == DATASET_MANIFEST or first.startswith(PART_PREFIX):
        raise ValueError(f"{name!r} is a reserved file name")
    if min(size, count) < 0:
        raise ValueError(f"{name!r} has {size} bytes and {count} tokens or samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of a dataset."""

    name: str
    samples: int
    """Sequences or images in it."""
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        _check_file(self.name, self.bytes, self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FilesDocument:
    """The JSON fields of a DatasetManifest that do not depend on its kind."""

    schema: int
    source: Mapping[str, str]
    shards: tuple[DataFile, ...]
    kind: str = "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """The manifest of a dataset made by ``prepare``."""

    kind: str
    """``bert`` or ``images``."""
    source: Mapping[str, str]
    """Origin of the dataset; the same source gives the same files."""
    facts: Mapping[str, Any]
    """Facts that a workload needs; their names depend on the kind."""
    shards: tuple[DataFile, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Every file that a node needs."""
        return self.shards

    @property
    def samples(self) -> int:
        """Number of samples in all files."""
        return sum(file.samples for file in self.shards)

    @property
    def fingerprint(self) -> str:
        """Hash of all files' names and contents."""
        sums = "\n".join(f"{file.name} {file.sha256}" for file in self.shards)
        return hashlib.sha256(sums.encode()).hexdigest()

    def fact(self, name: str) -> int:
        """Return one of ``facts``; raise ``DatasetError`` unless it is an integer."""
        value: int = self._fact(name, int)
        return value

    def bounds(self, name: str) -> tuple[float, float]:
        """Return the smallest and largest valid value from ``facts``."""
        values: tuple[float, ...] = self._fact(name, tuple[float, ...])
        if len(values) != 2:
            raise DatasetError(
                f"the dataset's {DATASET_MANIFEST} has {counted(len(values), 'value')} for {name}, "
                "not two; "
                "submit prepare again"
            )
        return values[0], values[1]

    def _fact(self, name: str, kind: Any) -> Any:
        if name not in self.facts:
            raise DatasetError(
                f"the dataset's {DATASET_MANIFEST} has no {name}, which every dataset of kind "
                f"{self.kind} has; submit prepare again"
            )
        try:
            return typed(self.facts[name], kind)
        except ValueError as error:
            raise DatasetError(
                f"{name} in the dataset's {DATASET_MANIFEST} is invalid: {error}; submit prepare "
                "again"
            ) from None

    def to_json(self) -> bytes:
        """Encode as JSON; equal manifests give equal bytes."""
        document = {
            "schema": FILES_SCHEMA,
            "kind": self.kind,
            **self.facts,
            "source": dict(self.source),
            "shards": [asdict(file) for file in self.shards],
        }
        return f"{json.dumps(document, indent=1)}\n".encode()

    @staticmethod
    def from_json(data: bytes, *, name: str, kind: str) -> DatasetManifest:
        """Parse the manifest ``name``; raise ``DatasetError`` unless it is one of ``kind``."""
        try:
            document = read_object(data)
            actual, schema = document.get("kind", "packed"), document.get("schema")
            if actual != kind or schema != FILES_SCHEMA:
                raise DatasetError(
                    f"{name} is a dataset of kind {actual}, schema {schema}, but this workload "
                    f"trains on kind {kind}, schema {FILES_SCHEMA}; submit with another --dataset"
                )
            common = typed(document, _FilesDocument)
        except DatasetError:
            raise
        except ValueError as error:
            raise DatasetError(
                f"{name} is not the manifest of a dataset: {error}; submit prepare again"
            ) from None
        known = {field.name for field in fields(_FilesDocument)}
        manifest = DatasetManifest(
            kind=kind,
            source=common.source,
            facts={fact: value for fact, value in document.items() if fact not in known},
            shards=common.shards,
        )
        if not manifest.samples:
            raise DatasetError(f"{name} is a dataset without samples; submit prepare again")
        return manifest


def refuse_other_kind(objects: Objects, *, kind: str) -> None:
    """Raise ``DatasetError`` if a dataset of another kind is stored at ``objects``."""
    try:
        existing = read_object(objects.get(DATASET_MANIFEST)).get("kind", "packed")
    except (ObjectMissing, ValueError):
        return
    if existing != kind:
        raise DatasetError(
            f"{objects.uri} holds a dataset of kind {existing}, and this job would overwrite it "
            f"with one of kind {kind}; delete it first, or give the new dataset another name"
        )


def find_complete(
    objects: Objects, source: Mapping[str, str], *, kind: str
) -> DatasetManifest | None:
    """Return the existing dataset if it is complete and made from ``source``.

    Otherwise delete its manifest, because its files will be replaced.
    """
    refuse_other_kind(objects, kind=kind)
    try:
        existing = DatasetManifest.from_json(
            objects.get(DATASET_MANIFEST), name=objects.uri, kind=kind
        )
    except ObjectMissing:
        return None
    except DatasetError:
        existing = None
    if existing is not None and dict(existing.source) == dict(source):
        sizes = {info.key: info.size for info in objects.list()}
        if all(sizes.get(file.name) == file.bytes for file in existing.shards):
            log.info(f"prepare: {objects.uri} is already complete: {existing.samples:,} samples")
            return existing
    objects.delete([DATASET_MANIFEST])
    return None


def store_file(
    objects: Objects, path: Path, *, samples: int, on_bytes: Callable[[int], None]
) -> DataFile:
    """Upload a file under its own name and delete the local copy."""
    file = DataFile(
        name=path.name, samples=samples, bytes=path.stat().st_size, sha256=sha256_of(path)
    )
    objects.put_file(file.name, path, on_bytes=on_bytes)
    path.unlink()
    return file


def finish_dataset(objects: Objects, dataset: DatasetManifest) -> None:
    """Mark the dataset complete, and delete the files of earlier datasets of this name."""
    known = {file.name for file in dataset.shards} | {DATASET_MANIFEST}
    objects.put(DATASET_MANIFEST, dataset.to_json())
    objects.delete(info.key for info in objects.list() if info.key not in known)
    log.info(
        f"prepare: {objects.uri} is complete: {dataset.samples:,} samples in "
        f"{counted(len(dataset.shards), 'file')}"
    )
