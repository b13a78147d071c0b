"""Reads documents from text, JSONL or Parquet, compressed or not, ahead and in batches."""

from __future__ import annotations

import gzip
import io
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import Queue
from typing import IO, TypeVar

from training.datasets.manifest import DatasetError
from training.datasets.text.sources import Piece, TextFormat
from training.storage import Objects
from training.storage.object_file import open_object

_PARQUET_ROWS = 1024
T = TypeVar("T")
_BATCH_CHARACTERS = 1_000_000
_BATCH_DOCUMENTS = 1_000
_WAITING = 2


def read_documents(objects: Objects, piece: Piece, text_field: str) -> Iterator[str]:
    """Yield every document of a piece, in order; ``DatasetError`` names file and line."""
    name = f"{objects.uri}/{piece.file.key}"
    with open_object(objects, piece.file.key, piece.file.size) as file:
        if piece.file.kind is TextFormat.PARQUET:
            yield from _parquet(file, piece, text_field, name)
            return
        try:
            if piece.file.kind is TextFormat.TEXT:
                yield _text(_opened(file, piece), name)
            else:
                parse = partial(_field, text_field=text_field)
                yield from _jsonl(_opened(file, piece), piece, parse, name)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            if not piece.file.compressed:
                raise
            raise _no_gzip(name, error) from None


def read_lines(objects: Objects, piece: Piece, parse: Callable[[bytes], T]) -> Iterator[T]:
    """Yield what ``parse`` makes of every line of a JSONL file's piece, in order.

    Its ``ValueError`` becomes a ``DatasetError`` that names file and line.
    """
    name = f"{objects.uri}/{piece.file.key}"
    with open_object(objects, piece.file.key, piece.file.size) as file:
        try:
            yield from _jsonl(_opened(file, piece), piece, parse, name)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            if not piece.file.compressed:
                raise
            raise _no_gzip(name, error) from None


def _no_gzip(name: str, error: Exception) -> DatasetError:
    return DatasetError(f"{name} is no whole gzip file ({error}); compress it again or drop .gz")


def _opened(file: io.BufferedReader, piece: Piece) -> IO[bytes]:
    if piece.file.compressed:
        return io.BufferedReader(gzip.GzipFile(fileobj=file), buffer_size=1024 * 1024)
    return file


def _text(file: IO[bytes], name: str) -> str:
    data = file.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{name} is no UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}; "
            "convert it (iconv -t UTF-8) or remove it"
        ) from None


def _jsonl(file: IO[bytes], piece: Piece, parse: Callable[[bytes], T], name: str) -> Iterator[T]:
    """Yield what is in the lines whose first byte is in the piece."""
    if piece.start:
        file.seek(piece.start - 1)
        file.readline()
    place = file.tell()
    number = 0
    while place < piece.stop or piece.file.compressed:
        line = file.readline()
        if not line:
            return
        number += 1
        if not line.isspace():
            try:
                found = parse(line)
            except ValueError as error:
                before = 0
                if piece.start:
                    file.seek(0)
                    before = _lines_until(file, place) - (number - 1)
                raise DatasetError(f"{name}, line {before + number}: {error}") from None
            yield found
        place += len(line)


def _lines_until(file: IO[bytes], place: int) -> int:
    count = 0
    while place > 0 and (block := file.read(min(place, 1024 * 1024))):
        count += block.count(b"\n")
        place -= len(block)
    return count


def _field(line: bytes, text_field: str) -> str:
    try:
        document = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("no UTF-8 text; convert the file (iconv -t UTF-8)") from None
    except ValueError as error:
        raise ValueError(f"no JSON ({error}); write one object a line") from None
    if not isinstance(document, dict):
        raise ValueError(
            f'a JSON {type(document).__name__}, not an object; write {{"{text_field}": "..."}}'
        )
    if text_field not in document:
        examples = "prompt" in document and "response" in document
        raise ValueError(
            f"no field {text_field!r}; there are {', '.join(map(repr, document)) or 'none'}; "
            + ("pack examples with --response-seq-len, or " if examples else "")
            + "choose one with --text-field"
        )
    text = document[text_field]
    if not isinstance(text, str):
        raise ValueError(
            f"field {text_field!r} is a {type(text).__name__}, not text; "
            "choose another with --text-field"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can contain half a character: "\\ud800"
            raise ValueError(
                f"field {text_field!r} has half a character, U+{ord(text[error.start]):X}; "
                "write the pair or U+FFFD"
            ) from None
    return text


def _parquet(file: io.BufferedReader, piece: Piece, text_field: str, name: str) -> Iterator[str]:
    import pyarrow

    parquet = open_parquet(file, name)
    schema = parquet.schema_arrow
    if text_field not in schema.names:
        raise DatasetError(
            f"{name} has no column {text_field!r}; there are {', '.join(schema.names)}; "
            "choose one with --text-field"
        )
    kind = schema.field(text_field).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise DatasetError(
            f"column {text_field!r} of {name} holds {kind}, not text; "
            "choose another with --text-field"
        )
    groups = list(range(piece.start, piece.stop))
    row = 0
    for batch in parquet.iter_batches(
        batch_size=_PARQUET_ROWS, row_groups=groups, columns=[text_field], use_threads=False
    ):
        for text in batch.column(0).to_pylist():
            row += 1
            if text is None:
                raise DatasetError(
                    f"row {row} of row groups {piece.start} to {piece.stop - 1} of {name} has no "
                    f"{text_field!r}; drop rows without text"
                )
            yield text


def open_parquet(file: io.BufferedReader, name: str):  # type: ignore[no-untyped-def]
    """Open a ``pyarrow.parquet.ParquetFile``; ``DatasetError`` if it is not Parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        # The image has it; the laptop setup omits it, being large and rarely needed.
        raise DatasetError(
            f"{name} is Parquet, and pyarrow is not installed here; pip install pyarrow, or write "
            "the documents as JSONL"
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise DatasetError(f"{name} is no Parquet file ({error}); remove or replace it") from None


def batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of documents, large enough to encode in parallel and small enough to hold."""
    batch: list[str] = []
    characters = 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, produced ahead by a thread whose exception is raised here."""
    queue: Queue[T | _End] = Queue(_WAITING)
    stopped = threading.Event()

    def fill() -> None:
        end = _End(None)
        try:
            for item in items:
                if stopped.is_set():
                    return
                queue.put(item)
        except BaseException as error:
            end = _End(error)
        queue.put(end)

    thread = threading.Thread(target=fill, name="read-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := queue.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        while thread.is_alive():
            # The thread may be waiting for room.
            while not queue.empty():
                queue.get_nowait()
            thread.join(0.01)


class _End:
    """Marks the end of the items, or the error that ended them."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
