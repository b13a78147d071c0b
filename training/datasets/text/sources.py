"""What text there is to tokenise: files below a prefix, each of a known kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from training.datasets.manifest import DatasetError
from training.datasets.places import Place
from training.datasets.prepared.corpus import CORPUS_MANIFEST
from training.storage import ObjectInfo
from trainium_catalogue.contract import CORPORA_PREFIX
from trainium_catalogue.parameters.data import CORPORA


class Kind(StrEnum):
    """How a file holds documents."""

    TEXT = "text"
    """One document."""
    JSONL = "jsonl"
    """One document a line, as a field of a JSON object."""
    PARQUET = "parquet"
    """One document a row, in a column of strings."""


KINDS = {
    ".txt": Kind.TEXT,
    ".text": Kind.TEXT,
    ".md": Kind.TEXT,
    ".rst": Kind.TEXT,
    ".jsonl": Kind.JSONL,
    ".ndjson": Kind.JSONL,
    ".json": Kind.JSONL,
    ".parquet": Kind.PARQUET,
}
"""By the end of the name; ``.gz`` may follow all but Parquet's, which compresses by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file of text."""

    key: str
    size: int
    """In bytes, as stored."""
    etag: str
    kind: Kind
    compressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The files to tokenise, in the order of their keys."""

    uri: str
    """The root of the keys."""
    files: tuple[InputFile, ...]

    @property
    def bytes(self) -> int:
        """Of all files, as stored."""
        return sum(file.size for file in self.files)


def find_corpus(value: str, place: Place) -> Corpus:
    """The files of ``--input``: a corpus of the bucket, ``s3://bucket/prefix`` or a path.

    ``DatasetError`` when there is nothing, or something that is no text.
    """
    is_name = not value.startswith(("s3://", "/"))
    uri = f"{place.root}/{CORPORA_PREFIX}{value}" if is_name else value.rstrip("/")
    listed = list(place.open(uri).list())
    if not listed and not is_name:
        # One object rather than a prefix.
        uri, _, name = uri.rpartition("/")
        listed = [info for info in place.open(uri or "/").list(name) if info.key == name]
    if not listed:
        remedy = (
            f"run jobs submit prepare --dataset {value}, or jobs upload your own text"
            if is_name
            else "check its spelling, and that the job may list it"
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
        raise DatasetError(f"the input at {value} is empty: {len(files)} files without a byte")
    return Corpus(uri=uri, files=files)


def input_files(listed: Iterable[ObjectInfo], *, uri: str) -> Iterable[InputFile]:
    """The files of text among the listed objects; ``DatasetError`` for one of another kind."""
    for info in listed:
        name = info.key.rpartition("/")[2]
        # Markers such as _SUCCESS, hidden files, and the empty objects that consoles make for
        # folders are no text and no mistake.
        if not name or name.startswith((".", "_")) or info.key == CORPUS_MANIFEST:
            continue
        lower = name.lower()
        compressed = lower.endswith(".gz")
        stem = lower.removesuffix(".gz")
        kind = next((kind for end, kind in KINDS.items() if stem.endswith(end)), None)
        if kind is None or (compressed and kind is Kind.PARQUET):
            raise DatasetError(
                f"{uri}/{info.key} is of no kind that can be read; files end in "
                f"{', '.join(KINDS)}, and .gz may follow where it is not Parquet; "
                "rename, convert or remove it"
            )
        yield InputFile(
            key=info.key, size=info.size, etag=info.etag, kind=kind, compressed=compressed
        )
