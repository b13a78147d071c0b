"""Turns one part of the input into shards: what each worker process does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from training.data.batches import batches, read_ahead
from training.data.encoders import ParityError, encoders
from training.data.manifest import Shard
from training.data.packer import ShardWriter
from training.data.places import Place
from training.data.plan import Part
from training.data.readers import read_documents
from training.data.vocabulary import Vocabulary
from training.objects import ObjectMissing, Objects

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

    @property
    def tokens(self) -> int:
        """Of all its shards."""
        return sum(shard.tokens for shard in self.shards)

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
        shards = tuple(Shard(**shard) for shard in document.pop("shards"))
        return PartRecord(**document, shards=shards)


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
        documents = empty = 0
        writer = ShardWriter(
            self._output,
            self._task.scratch,
            part=part.number,
            shard_tokens=self._task.shard_tokens,
            on_upload=lambda count: self._count(0, count),
        )
        try:
            for batch in read_ahead(batches(self._documents(part))):
                texts = [text for text in batch if text]
                documents += len(texts)
                empty += len(batch) - len(texts)
                if texts:
                    ids = self._encoder.encode(texts)
                    writer.add(ids)
                    self._count(len(ids), 0)
            shards = writer.close()
        except BaseException:
            writer.abandon()
            raise
        return PartRecord(
            fingerprint=self._task.fingerprint,
            documents=documents,
            empty_documents=empty,
            shards=shards,
        )

    def _documents(self, part: Part) -> Iterator[str]:
        for piece in part.pieces:
            yield from read_documents(self._input, piece, self._task.text_field)
