"""How input is cut into parts: a function of the input alone, so that every process agrees."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from training.datasets.manifest import DatasetError
from training.datasets.text.readers import Piece
from training.datasets.text.sources import Corpus, InputFile, Kind
from training.datasets.text.vocabulary import Vocabulary
from training.storage import Objects, PreconditionFailed

PLAN_FILE = "plan.json"
PARTS_PREFIX = "parts/"
_BYTES_PER_TOKEN = 3
"""Of text, about: 4 in English prose, 2.6 in code with Llama's vocabulary."""
_COMPRESSION = 3
"""Bytes of text in a byte of gzip or Parquet, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is tokenised at once, and made again when a process died over it."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Of text, about."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def marker(self) -> str:
        """Key of the object that says the part is complete."""
        return f"{PARTS_PREFIX}{self.number:05d}.json"


def cut_into_parts(
    corpus: Corpus, *, shard_tokens: int, row_groups: Callable[[InputFile], int]
) -> tuple[Part, ...]:
    """Parts of about one shard each: small files together, large ones in several.

    Compressed files stay whole, because nobody can read the middle of one. ``row_groups`` looks
    into a large Parquet file.
    """
    wanted = shard_tokens * _BYTES_PER_TOKEN
    parts: list[tuple[Piece, ...]] = []
    pieces: list[Piece] = []
    size = 0
    for piece in _pieces(corpus, wanted, row_groups):
        if pieces and size + piece.bytes > wanted:
            parts.append(tuple(pieces))
            pieces, size = [], 0
        pieces.append(piece)
        size += piece.bytes
    parts.append(tuple(pieces))
    return tuple(Part(number=number, pieces=pieces) for number, pieces in enumerate(parts))


def _pieces(corpus: Corpus, wanted: int, row_groups: Callable[[InputFile], int]) -> Iterator[Piece]:
    for file in corpus.files:
        units = 1
        size = file.size
        if file.compressed or file.kind is Kind.PARQUET:
            size *= _COMPRESSION
        if file.kind is Kind.PARQUET:
            units = max(1, row_groups(file))
        elif file.kind is Kind.JSONL and not file.compressed:
            units = max(1, file.size)
        step = max(1, units * wanted // max(1, size))
        for start in range(0, units, step):
            stop = min(start + step, units)
            yield Piece(file=file, start=start, stop=stop, bytes=size * (stop - start) // units)


def share(parts: tuple[Part, ...], *, index: int, size: int) -> tuple[Part, ...]:
    """Parts of child ``index`` of an array job of ``size``."""
    return parts[index::size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a dataset is made from, and how it is cut.

    It is recorded before any shard, so that a restarted job and the children of an array go on
    with one dataset, and another dataset is not mixed with it.
    """

    entries: Mapping[str, str]
    parts: tuple[Part, ...]

    @staticmethod
    def make(
        corpus: Corpus,
        vocabulary: Vocabulary,
        *,
        text_field: str,
        shard_tokens: int,
        validation_fraction: float,
        row_groups: Callable[[InputFile], int],
    ) -> Plan:
        """Cut ``corpus``."""
        entries = {
            "tokenizer": f"{vocabulary.name}, sha256 {vocabulary.sha256}",
            "input": f"{corpus.uri}, {len(corpus.files)} files, {corpus.bytes} bytes",
            "text-field": text_field,
            "shard-tokens": str(shard_tokens),
            # Left out without one, so that datasets of earlier releases have the same plan.
            **({"validation-fraction": str(validation_fraction)} if validation_fraction else {}),
            "content": _fingerprint(corpus),
        }
        parts = cut_into_parts(corpus, shard_tokens=shard_tokens, row_groups=row_groups)
        return Plan(entries=entries, parts=parts)

    @property
    def data(self) -> bytes:
        """As recorded."""
        return f"{json.dumps(dict(self.entries), indent=1)}\n".encode()

    @property
    def fingerprint(self) -> str:
        """Marks parts that were made by this plan."""
        return hashlib.sha256(self.data).hexdigest()

    def record(self, objects: Objects, *, is_complete: bool) -> None:
        """Make this the dataset's plan; ``DatasetError`` if a complete one has another.

        What an unfinished job with another plan has left, for one because a file was wrong and
        has been repaired since, is taken over: its parts do not carry this fingerprint.
        """
        try:
            objects.put(PLAN_FILE, self.data, if_absent=True)
            return
        except PreconditionFailed:
            found = objects.get(PLAN_FILE)
        if found == self.data:
            return
        if is_complete:
            key, was = self._first_difference(json.loads(found))
            raise DatasetError(
                f"dataset {objects.uri} exists already, made with another {key} ({was}); "
                "give another --dataset name, or delete it first"
            )
        objects.put(PLAN_FILE, self.data)

    def require_recorded(self, objects: Objects) -> None:
        """Refuse to go on when another job has started anew meanwhile."""
        found = objects.get(PLAN_FILE)
        if found != self.data:
            key, was = self._first_difference(json.loads(found))
            raise DatasetError(
                f"dataset {objects.uri} was begun anew by another job meanwhile, with another "
                f"{key} ({was}); let one job at a time make a dataset, from input that rests"
            )

    def _first_difference(self, other: Mapping[str, str]) -> tuple[str, str]:
        keys = dict.fromkeys((*self.entries, *other))
        key = next(key for key in keys if other.get(key) != self.entries.get(key))
        return key, "other files" if key == "content" else str(other.get(key, "none"))


def _fingerprint(corpus: Corpus) -> str:
    """Changes when a file is added, removed or written anew."""
    digest = hashlib.sha256()
    for file in corpus.files:
        digest.update(f"{file.key}\0{file.size}\0{file.etag}\n".encode())
    return digest.hexdigest()
