"""Find the text to tokenize, and split it into parts.

Parts depend only on the input, so array children and later attempts agree on them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from training.datasets.manifest import DatasetError
from training.datasets.prepared.corpora import CORPUS_MANIFEST
from training.datasets.text.vocabulary import Vocabulary
from training.storage import ObjectInfo, Objects, PreconditionFailed, StorageAccess
from trainium_catalogue.contract import CORPORA_PREFIX
from trainium_catalogue.parameters.data import CORPORA
from trainium_catalogue.typed_json import read_object
from trainium_catalogue.wording import counted

PLAN_FILE = "plan.json"
PARTS_PREFIX = "parts/"
_BYTES_PER_TOKEN = 3
"""Approximate bytes of text per token: 4 in English prose, 2.6 in code, with Llama's vocabulary."""
_COMPRESSION = 3
"""Approximate bytes of text per byte of gzip or Parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """The parameters of a job, or of one child of an array job."""

    input: str
    tokenizer: str
    dataset: str
    text_field: str
    shard_tokens: int
    validation_fraction: float
    processes: int
    accelerate: bool
    storage: StorageAccess
    array_index: int
    array_size: int
    response_seq_len: int = 0
    """0 for text; otherwise prompts and responses are packed into sequences of this length."""


class TextFormat(StrEnum):
    """File formats of input documents."""

    TEXT = "text"
    """One document."""
    JSONL = "jsonl"
    """One document per line, as a field of a JSON object."""
    PARQUET = "parquet"
    """One document per row, in a column of strings."""


TEXT_FORMATS = {
    ".txt": TextFormat.TEXT,
    ".text": TextFormat.TEXT,
    ".md": TextFormat.TEXT,
    ".rst": TextFormat.TEXT,
    ".jsonl": TextFormat.JSONL,
    ".ndjson": TextFormat.JSONL,
    ".json": TextFormat.JSONL,
    ".parquet": TextFormat.PARQUET,
}
"""Formats by suffix; all but Parquet, which has its own compression, may be followed by ``.gz``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of text."""

    key: str
    size: int
    """Size in bytes, as stored."""
    etag: str
    kind: TextFormat
    compressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The files to tokenize, in key order."""

    uri: str
    """URI that the keys are relative to."""
    files: tuple[InputFile, ...]

    @property
    def bytes(self) -> int:
        """Total size of all files, as stored."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A file, or part of it."""

    file: InputFile
    start: int
    """A byte offset in uncompressed JSONL, a row group in Parquet, otherwise 0."""
    stop: int
    """End, exclusive, in the unit of ``start``."""
    bytes: int
    """Approximate size of the text in bytes."""


def find_corpus(value: str, storage: StorageAccess) -> Corpus:
    """Find the files of ``--input``: a corpus in the bucket, ``s3://bucket/prefix`` or a path.

    Raises ``DatasetError`` if there are none, or if any has an unsupported format.
    """
    is_name = not value.startswith(("s3://", "/"))
    uri = f"{storage.root}/{CORPORA_PREFIX}{value}" if is_name else value.rstrip("/")
    listed = list(storage.open(uri).list())
    if not listed and not is_name:
        # A single object instead of a prefix.
        uri, _, name = uri.rpartition("/")
        listed = [info for info in storage.open(uri or "/").list(name) if info.key == name]
    if not listed:
        remedy = (
            f"run jobs submit prepare --dataset {value}, or upload your own text with jobs upload"
            if is_name
            else "check the spelling, and that the job has permission to list it"
        )
        raise DatasetError(f"there is no input at {value}; {remedy}")
    keys = {info.key for info in listed}
    if is_name and value in CORPORA and CORPUS_MANIFEST not in keys:
        raise DatasetError(
            f"corpus {value} is not complete: it has no {CORPUS_MANIFEST}; wait for prepare, or "
            f"run it again: jobs submit prepare --dataset {value}"
        )
    files = tuple(input_files(listed, uri=uri))
    if sum(file.size for file in files) == 0:
        raise DatasetError(
            f"the input at {value} is empty: {counted(len(files), 'file')} with 0 bytes"
        )
    return Corpus(uri=uri, files=files)


def input_files(listed: Iterable[ObjectInfo], *, uri: str) -> Iterable[InputFile]:
    """Select text files among the listed objects; raise ``DatasetError`` for any other format."""
    for info in listed:
        name = info.key.rpartition("/")[2]
        # Skip markers such as _SUCCESS, hidden files, and the console's empty folder objects.
        if not name or name.startswith((".", "_")) or info.key == CORPUS_MANIFEST:
            continue
        lower = name.lower()
        compressed = lower.endswith(".gz")
        stem = lower.removesuffix(".gz")
        kind = next((kind for end, kind in TEXT_FORMATS.items() if stem.endswith(end)), None)
        if kind is None or (compressed and kind is TextFormat.PARQUET):
            raise DatasetError(
                f"{uri}/{info.key} is not in a supported format; supported suffixes are "
                f"{', '.join(TEXT_FORMATS)}, followed by .gz if compressed (except Parquet); "
                "rename, convert or remove it"
            )
        yield InputFile(
            key=info.key, size=info.size, etag=info.etag, kind=kind, compressed=compressed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A unit of work; later attempts repeat only incomplete parts."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Approximate size of the text in bytes."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def marker(self) -> str:
        """Key of the object that marks the part complete."""
        return f"{PARTS_PREFIX}{self.number:05d}.json"


def cut_into_parts(
    corpus: Corpus, *, shard_tokens: int, row_groups: Callable[[InputFile], int]
) -> tuple[Part, ...]:
    """Split the corpus into parts of about one shard each, combining small files.

    Compressed files cannot be read from the middle and are not split. ``row_groups`` counts the row
    groups of a large Parquet file.
    """
    part_bytes = shard_tokens * _BYTES_PER_TOKEN
    parts: list[tuple[Piece, ...]] = []
    pieces: list[Piece] = []
    size = 0
    for piece in _pieces(corpus, part_bytes, row_groups):
        if pieces and size + piece.bytes > part_bytes:
            parts.append(tuple(pieces))
            pieces, size = [], 0
        pieces.append(piece)
        size += piece.bytes
    parts.append(tuple(pieces))
    return tuple(Part(number=number, pieces=pieces) for number, pieces in enumerate(parts))


def _pieces(
    corpus: Corpus, part_bytes: int, row_groups: Callable[[InputFile], int]
) -> Iterator[Piece]:
    for file in corpus.files:
        units = 1
        size = file.size
        if file.compressed or file.kind is TextFormat.PARQUET:
            size *= _COMPRESSION
        if file.kind is TextFormat.PARQUET:
            units = max(1, row_groups(file))
        elif file.kind is TextFormat.JSONL and not file.compressed:
            units = max(1, file.size)
        step = max(1, units * part_bytes // max(1, size))
        for start in range(0, units, step):
            stop = min(start + step, units)
            yield Piece(file=file, start=start, stop=stop, bytes=size * (stop - start) // units)


def share(parts: tuple[Part, ...], *, index: int, size: int) -> tuple[Part, ...]:
    """Return the parts of child ``index`` in an array job of ``size``."""
    return parts[index::size]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """A dataset's source and its split into parts.

    Recorded before any shard is written, so that restarted jobs and array children continue the
    same dataset instead of mixing two.
    """

    entries: Mapping[str, str]
    parts: tuple[Part, ...]

    @staticmethod
    def make(
        corpus: Corpus,
        vocabulary: Vocabulary,
        request: TokenizeRequest,
        *,
        row_groups: Callable[[InputFile], int],
    ) -> PartPlan:
        """Plan the parts of ``corpus``."""
        fraction, seq_len = request.validation_fraction, request.response_seq_len
        entries = {
            "tokenizer": f"{vocabulary.name}, sha256 {vocabulary.sha256}",
            "input": f"{corpus.uri}, {counted(len(corpus.files), 'file')}, {corpus.bytes} bytes",
            "text-field": request.text_field,
            "shard-tokens": str(request.shard_tokens),
            # Omitted if 0, so that the plan equals that of earlier releases.
            **({"validation-fraction": str(fraction)} if fraction else {}),
            **({"response-seq-len": str(seq_len)} if seq_len else {}),
            "content": _fingerprint(corpus),
        }
        parts = cut_into_parts(corpus, shard_tokens=request.shard_tokens, row_groups=row_groups)
        return PartPlan(entries=entries, parts=parts)

    @property
    def data(self) -> bytes:
        """Contents of the recorded plan."""
        return f"{json.dumps(dict(self.entries), indent=1)}\n".encode()

    @property
    def fingerprint(self) -> str:
        """Hash recorded in the ``PartRecord`` of each part of this plan."""
        return hashlib.sha256(self.data).hexdigest()

    def record(self, objects: Objects, *, is_complete: bool) -> None:
        """Record this plan; raise ``DatasetError`` if a complete dataset has a different one.

        Replaces the plan of an incomplete dataset, for example after a bad file is fixed; the
        old parts are recreated, since they have a different fingerprint.
        """
        try:
            objects.put(PLAN_FILE, self.data, if_absent=True)
            return
        except PreconditionFailed:
            recorded = objects.get(PLAN_FILE)
        if recorded == self.data:
            return
        if is_complete:
            key, value = self._first_difference(recorded)
            raise DatasetError(
                f"dataset {objects.uri} already exists and was made with another {key} ({value}); "
                "use another --dataset name, or delete it first"
            )
        objects.put(PLAN_FILE, self.data)

    def require_recorded(self, objects: Objects) -> None:
        """Raise ``DatasetError`` if another job has since recorded a different plan."""
        recorded = objects.get(PLAN_FILE)
        if recorded != self.data:
            key, value = self._first_difference(recorded)
            raise DatasetError(
                f"dataset {objects.uri} has been restarted by another job, with another {key} "
                f"({value}); run only one job per dataset at a time, on input that does not change"
            )

    def _first_difference(self, data: bytes) -> tuple[str, str]:
        try:
            other = read_object(data)
        except ValueError:
            return "plan", "unreadable"
        keys = dict.fromkeys((*self.entries, *other))
        differing = (key for key in keys if other.get(key) != self.entries.get(key))
        key = next(differing, "plan")
        return key, "other files" if key == "content" else str(other.get(key, "none"))


def _fingerprint(corpus: Corpus) -> str:
    """Compute a hash that changes when a file is added, removed or rewritten."""
    digest = hashlib.sha256()
    for file in corpus.files:
        digest.update(f"{file.key}\0{file.size}\0{file.etag}\n".encode())
    return digest.hexdigest()
