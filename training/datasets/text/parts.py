"""Convert parts of the input to shards on all cores: read, encode, split, pack, store."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from training.core.logs import set_up_logging
from training.core.processes import die_with_parent
from training.datasets.manifest import Shard
from training.datasets.text.encoders import ParityError, encoders
from training.datasets.text.examples import ExampleReader, Packer
from training.datasets.text.readers import batches, read_ahead, read_documents
from training.datasets.text.sources import Part, TokenizeRequest
from training.datasets.text.vocabulary import Vocabulary
from training.storage import ObjectMissing, Objects
from trainium_catalogue.typed_json import read_json

log = logging.getLogger(__name__)

_DIGEST_BYTES = 8
Count = Callable[[int, int], None]
"""Called with the tokens produced and the bytes uploaded since the last call."""
_POLL_S = 0.5
OnProgress = Callable[[int, int, int], None]
"""Called with completed parts, tokens and uploaded bytes whenever any of them increases."""
_maker: PartMaker | None = None
"""This worker process's instance."""


def split_documents(texts: Iterable[str], fraction: float) -> tuple[list[str], list[str]]:
    """Split documents into training and held-out ones, preserving order.

    Splits by a hash of the text, independent of processes and jobs, so duplicates are in the same
    split, and a document stays in its split when a corpus grows.
    """
    train: list[str] = []
    held_out: list[str] = []
    for text in texts:
        (held_out if _is_held_out(text, fraction) else train).append(text)
    return train, held_out


def _is_held_out(text: str, fraction: float) -> bool:
    if fraction == 0:
        return False
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "little") < fraction * float(2 ** (8 * _DIGEST_BYTES))


class ShardWriter:
    """Writes a part's ids to shards of ``shard_tokens`` ids; the last shard may be shorter."""

    def __init__(
        self,
        objects: Objects,
        scratch: Path,
        *,
        name: str,
        shard_tokens: int,
        on_upload: Callable[[int], None],
    ) -> None:
        """Use ``name`` as the prefix of shard names."""
        self._objects, self._name, self._shard_tokens = objects, name, shard_tokens
        self._path = scratch / f"{name}.bin"
        self._file = self._path.open("wb")
        self._on_upload = on_upload
        self._digest = hashlib.sha256()
        self._tokens = self._bytes = 0
        self.shards: list[Shard] = []

    def add(self, ids: NDArray[Any]) -> None:
        """Append ids, which already have the type of the shards."""
        while len(ids):
            piece = ids[: self._shard_tokens - self._tokens]
            data = piece.tobytes()
            self._file.write(data)
            self._digest.update(data)
            self._tokens += len(piece)
            self._bytes += len(data)
            ids = ids[len(piece) :]
            if self._tokens == self._shard_tokens:
                self._finish_shard()

    def close(self) -> tuple[Shard, ...]:
        """Store the last shard; return all shards of the part."""
        if self._tokens:
            self._finish_shard()
        self.abandon()
        return tuple(self.shards)

    def abandon(self) -> None:
        """Remove the local file."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _finish_shard(self) -> None:
        self._file.close()
        shard = Shard(
            name=f"{self._name}-{len(self.shards):03d}.bin",
            tokens=self._tokens,
            bytes=self._bytes,
            sha256=self._digest.hexdigest(),
        )
        self._objects.put_file(shard.name, self._path, on_bytes=self._on_upload)
        self.shards.append(shard)
        self._file = self._path.open("wb")
        self._digest = hashlib.sha256()
        self._tokens = self._bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSettings:
    """Settings of all parts, sent to the worker processes."""

    request: TokenizeRequest
    input_uri: str
    dataset_uri: str
    vocabulary: Vocabulary
    fingerprint: str
    """Fingerprint of the plan."""
    scratch: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """The shards and counts of a complete part."""

    fingerprint: str
    documents: int
    empty_documents: int
    shards: tuple[Shard, ...]
    validation_documents: int = 0
    validation_shards: tuple[Shard, ...] = ()
    response_tokens: int = 0
    """Training tokens that count in the loss; 0 for text documents."""

    @property
    def files(self) -> tuple[Shard, ...]:
        """Every shard, of both splits."""
        return self.shards + self.validation_shards

    @property
    def tokens(self) -> int:
        """Number of training tokens."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def validation_tokens(self) -> int:
        """Number of held-out tokens."""
        return sum(shard.tokens for shard in self.validation_shards)

    def to_json(self) -> bytes:
        """Encode the record for storage."""
        return f"{json.dumps(asdict(self), indent=1)}\n".encode()

    @staticmethod
    def read(objects: Objects, part: Part, *, fingerprint: str) -> PartRecord | None:
        """Read a part's record; return None if this plan has not completed the part."""
        try:
            record = read_json(objects.get(part.marker), PartRecord)
        except (ObjectMissing, ValueError):
            return None  # recreate the part
        return record if record.fingerprint == fingerprint else None


class PartMaker:
    """Makes parts, one after another, with the fastest encoder that has not failed."""

    def __init__(self, task: PartSettings, count: Count) -> None:
        self._task, self._request, self._count = task, task.request, count
        self._input = task.request.storage.open(task.input_uri)
        self._output = task.request.storage.open(task.dataset_uri)
        if not task.request.response_seq_len:
            self._encoders = encoders(task.vocabulary, accelerate=task.request.accelerate)
            self._encoder = next(self._encoders)

    def make(self, part: Part) -> PartRecord:
        """Read, encode, pack and store a part; write its record last."""
        while True:
            try:
                record = self._make(part)
                break
            except ParityError as error:
                # The plain tokenizer, which is last, never raises this.
                self._encoder = next(self._encoders)
                name = self._encoder.name
                log.info("%s; retrying part %d with %s", error, part.number, name)
        self._output.put(part.marker, record.to_json())
        return record

    def _make(self, part: Part) -> PartRecord:
        empty = 0
        train, held_out = (self._split(name, part) for name in ("shard", "validation"))
        try:
            if self._request.response_seq_len:
                self._add_examples(part, train, held_out)
            else:
                empty = self._add_documents(part, train, held_out)
            return PartRecord(
                fingerprint=self._task.fingerprint,
                documents=train.documents,
                empty_documents=empty,
                shards=train.close(),
                validation_documents=held_out.documents,
                validation_shards=held_out.close(),
                response_tokens=train.packer.counted,
            )
        except BaseException:
            train.writer.abandon()
            held_out.writer.abandon()
            raise

    def _add_documents(self, part: Part, train: _Split, held_out: _Split) -> int:
        """Add the documents of a part; return the number of empty ones, which are skipped."""
        empty = 0
        for batch in read_ahead(batches(self._documents(part))):
            texts = [text for text in batch if text]
            empty += len(batch) - len(texts)
            splits = split_documents(texts, self._request.validation_fraction)
            for split, chosen in zip((train, held_out), splits, strict=True):
                if chosen:
                    split.add(self._encoder.encode(chosen), len(chosen))
        return empty

    def _add_examples(self, part: Part, train: _Split, held_out: _Split) -> None:
        request = self._request
        reader = ExampleReader(self._task.vocabulary, seq_len=request.response_seq_len)
        for piece in part.pieces:
            for example in reader.read(self._input, piece):
                is_held_out = _is_held_out(example.text, request.validation_fraction)
                split = held_out if is_held_out else train
                split.add(split.packer.add(example.ids), 1)

    def _split(self, name: str, part: Part) -> _Split:
        writer = ShardWriter(
            self._output,
            self._task.scratch,
            name=f"{name}-{part.number:05d}",
            shard_tokens=self._request.shard_tokens,
            on_upload=lambda count: self._count(0, count),
        )
        packer = Packer(seq_len=self._request.response_seq_len, eos_id=self._task.vocabulary.eos_id)
        return _Split(writer, packer, self._count)

    def _documents(self, part: Part) -> Iterator[str]:
        for piece in part.pieces:
            yield from read_documents(self._input, piece, self._request.text_field)


class _Split:
    """The training or held-out stream of a part."""

    def __init__(self, writer: ShardWriter, packer: Packer, count: Count) -> None:
        self.writer, self._count = writer, count
        self.packer = packer
        """Used only for examples."""
        self.documents = 0

    def add(self, ids: NDArray[Any], documents: int) -> None:
        """Write the ids of documents or of an example."""
        self.writer.add(ids)
        self._count(len(ids), 0)
        self.documents += documents

    def close(self) -> tuple[Shard, ...]:
        """Pad the last sequence of examples; return all shards."""
        self.writer.add(self.packer.close())
        return self.writer.close()


def make_parts(
    task: PartSettings, parts: Sequence[Part], *, processes: int, on_progress: OnProgress
) -> list[PartRecord]:
    """Make every part, in parallel; return records in part order, or raise the first failure."""
    if min(processes, len(parts)) <= 1:
        return _make_in_this_process(task, parts, on_progress)
    # fork would copy the locks of tokenizer and boto3 threads in an arbitrary state.
    context = multiprocessing.get_context("spawn")
    counters = context.Array("q", 2)
    pool = ProcessPoolExecutor(
        max_workers=min(processes, len(parts)),
        mp_context=context,
        initializer=_start_worker,
        initargs=(task, counters, os.getpid()),
    )
    seen = (0, 0, 0)
    try:
        futures = [pool.submit(_make_in_worker, part) for part in parts]
        rest: set[Future[PartRecord]] = set(futures)
        while rest:
            done, rest = wait(rest, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            with counters.get_lock():
                now = (len(parts) - len(rest), counters[0], counters[1])
            if now != seen:
                seen = now
                on_progress(*now)
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a tokenizing process was killed, most likely because it ran out of memory; use "
            "fewer --processes or a larger instance type"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _make_in_this_process(
    task: PartSettings, parts: Sequence[Part], on_progress: OnProgress
) -> list[PartRecord]:
    finished = tokens = uploaded = 0

    def count(more_tokens: int, more_bytes: int) -> None:
        nonlocal tokens, uploaded
        tokens += more_tokens
        uploaded += more_bytes
        on_progress(finished, tokens, uploaded)

    maker = PartMaker(task, count)
    records = []
    for part in parts:
        records.append(maker.make(part))
        finished += 1
        count(0, 0)
    return records


def _start_worker(task: PartSettings, counters: Any, parent: int) -> None:
    global _maker
    set_up_logging()
    die_with_parent(parent)
    # The worker processes already use all cores. The libraries read these variables when they
    # first encode.
    for name in ("RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS"):
        os.putenv(name, "1")

    def count(more_tokens: int, more_bytes: int) -> None:
        with counters.get_lock():
            counters[0] += more_tokens
            counters[1] += more_bytes

    _maker = PartMaker(task, count)


def _make_in_worker(part: Part) -> PartRecord:
    assert _maker is not None
    return _maker.make(part)
