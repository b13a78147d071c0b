"""Turns one part of the input into shards: what each worker process does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from training.datasets.manifest import Shard
from training.datasets.places import Place
from training.datasets.text.batches import batches, read_ahead
from training.datasets.text.encoders import Encoder, ParityError, encoders
from training.datasets.text.held_out import split_documents
from training.datasets.text.packer import ShardWriter
from training.datasets.text.plan import Part
from training.datasets.text.readers import read_documents
from training.datasets.text.vocabulary import Vocabulary
from training.storage import ObjectMissing, Objects

Count = Callable[[int, int], None]
"""Told how many tokens were made and how many bytes were uploaded since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all parts have in common; it is sent to the worker processes."""

    input_uri: str
    dataset_uri: str
    place: Place
    text_field: str
    shard_tokens: int
    validation_fraction: float
    accelerate: bool
    vocabulary: Vocabulary
    fingerprint: str
    """Of the plan."""
    scratch: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """What a complete part consists of."""

    fingerprint: str
    documents: int
    empty_documents: int
    shards: tuple[Shard, ...]
    validation_documents: int = 0
    validation_shards: tuple[Shard, ...] = ()

    @property
    def files(self) -> tuple[Shard, ...]:
        """Every shard, of both splits."""
        return self.shards + self.validation_shards

    @property
    def tokens(self) -> int:
        """To train on."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def validation_tokens(self) -> int:
        """Held out."""
        return sum(shard.tokens for shard in self.validation_shards)

    def to_json(self) -> bytes:
        """As it stands in storage."""
        return f"{json.dumps(asdict(self), indent=1)}\n".encode()

    @staticmethod
    def read(objects: Objects, part: Part, *, fingerprint: str) -> PartRecord | None:
        """The record of a part that this plan has completed, else None."""
        try:
            document = json.loads(objects.get(part.marker))
        except ObjectMissing:
            return None
        if document["fingerprint"] != fingerprint:
            return None
        for name in {"shards", "validation_shards"} & document.keys():
            document[name] = tuple(Shard(**shard) for shard in document[name])
        return PartRecord(**document)


class PartMaker:
    """Makes parts, one after the other, with one set of encoders."""

    def __init__(self, task: Task, count: Count) -> None:
        self._task, self._count = task, count
        self._input = task.place.open(task.input_uri)
        self._output = task.place.open(task.dataset_uri)
        self._encoders = encoders(task.vocabulary, accelerate=task.accelerate)
        self._encoder = next(self._encoders)

    def make(self, part: Part) -> PartRecord:
        """Read, encode, pack and store a part; its record is written last."""
        while True:
            try:
                record = self._make(part)
                break
            except ParityError as error:
                # The plain tokenizer, which is last, cannot fail this way.
                self._encoder = next(self._encoders)
                name = self._encoder.name
                print(f"{error}; part {part.number} is made again by {name}", flush=True)
        self._output.put(part.marker, record.to_json())
        return record

    def _make(self, part: Part) -> PartRecord:
        train, validation = self._split("shard", part), self._split("validation", part)
        empty = 0
        try:
            for batch in read_ahead(batches(self._documents(part))):
                texts = [text for text in batch if text]
                empty += len(batch) - len(texts)
                seen, held_out = split_documents(texts, self._task.validation_fraction)
                train.add(seen)
                validation.add(held_out)
            return PartRecord(
                fingerprint=self._task.fingerprint,
                documents=train.documents,
                empty_documents=empty,
                shards=train.writer.close(),
                validation_documents=validation.documents,
                validation_shards=validation.writer.close(),
            )
        except BaseException:
            train.writer.abandon()
            validation.writer.abandon()
            raise

    def _split(self, name: str, part: Part) -> _Split:
        writer = ShardWriter(
            self._output,
            self._task.scratch,
            name=f"{name}-{part.number:05d}",
            shard_tokens=self._task.shard_tokens,
            on_upload=lambda count: self._count(0, count),
        )
        return _Split(self._encoder, writer, self._count)

    def _documents(self, part: Part) -> Iterator[str]:
        for piece in part.pieces:
            yield from read_documents(self._input, piece, self._task.text_field)


class _Split:
    """One of the two streams that a part is made into."""

    def __init__(self, encoder: Encoder, writer: ShardWriter, count: Count) -> None:
        self._encoder, self._count = encoder, count
        self.writer = writer
        self.documents = 0

    def add(self, texts: Sequence[str]) -> None:
        """Encode and write documents, if there are any."""
        if texts:
            ids = self._encoder.encode(texts)
            self.writer.add(ids)
            self._count(len(ids), 0)
            self.documents += len(texts)
