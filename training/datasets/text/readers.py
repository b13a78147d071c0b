"""Read documents from text, JSONL or Parquet, optionally compressed, in batches with read-ahead."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from training.datasets.manifest import DatasetError
from training.datasets.text.sources import Piece, TextFormat
from training.storage import Objects
from training.storage.object_file import open_object

_PARQUET_ROWS = 1024
T = TypeVar("T")
_BATCH_CHARACTERS = 1_000_000
_BATCH_DOCUMENTS = 1_000


def read_documents(objects: Objects, piece: Piece, text_field: str) -> Iterator[str]:
    """Yield every document of a piece, in order; raise ``DatasetError`` with file and line."""
    if piece.file.kind is TextFormat.JSONL:
        yield from read_lines(objects, piece, partial(_field, text_field=text_field))
        return
    name = f"{objects.uri}/{piece.file.key}"
    with _open(objects, piece, name) as file:
        if piece.file.kind is TextFormat.PARQUET:
            yield from _parquet(file, piece, text_field, name)
        else:
            yield _text(file, name)


def read_lines(objects: Objects, piece: Piece, parse: Callable[[bytes], T]) -> Iterator[T]:
    """Yield the parsed lines of a piece of a JSONL file, in order.

    A ``ValueError`` from ``parse`` becomes a ``DatasetError`` that names file and line.
    """
    name = f"{objects.uri}/{piece.file.key}"
    with _open(objects, piece, name) as file:
        yield from _jsonl(file, piece, parse, name)


@contextmanager
def _open(objects: Objects, piece: Piece, name: str) -> Iterator[io.BufferedReader]:
    """Open a file, decompressed; raise ``DatasetError`` if that fails while it is read."""
    with open_object(objects, piece.file.key, piece.file.size) as file:
        if not piece.file.compressed:
            yield file
            return
        try:
            yield io.BufferedReader(gzip.GzipFile(fileobj=file), buffer_size=1024 * 1024)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DatasetError(
                f"{name} is not a complete gzip file ({error}); compress it again, or remove the "
                "suffix .gz"
            ) from None


def _text(file: io.BufferedReader, name: str) -> str:
    data = file.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{name} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}; "
            "convert it (iconv -t UTF-8) or remove it"
        ) from None


def _jsonl(
    file: io.BufferedReader, piece: Piece, parse: Callable[[bytes], T], name: str
) -> Iterator[T]:
    """Yield the parsed lines whose first byte is in the piece."""
    if piece.start:
        file.seek(piece.start - 1)
        file.readline()
    offset = file.tell()
    number = 0
    while offset < piece.stop or piece.file.compressed:
        line = file.readline()
        if not line:
            return
        number += 1
        if not line.isspace():
            try:
                parsed = parse(line)
            except ValueError as error:
                before = 0
                if piece.start:
                    file.seek(0)
                    before = _count_lines(file, offset) - (number - 1)
                raise DatasetError(f"{name}, line {before + number}: {error}") from None
            yield parsed
        offset += len(line)


def _count_lines(file: io.BufferedReader, offset: int) -> int:
    count = 0
    while offset > 0 and (block := file.read(min(offset, 1024 * 1024))):
        count += block.count(b"\n")
        offset -= len(block)
    return count


def parse_json(line: bytes) -> Any:
    """Parse a line; raise ``ValueError`` for the user if it is not JSON."""
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text; convert the file (iconv -t UTF-8)") from None
    except ValueError as error:
        raise ValueError(f"not JSON ({error}); write one object per line") from None


def _field(line: bytes, text_field: str) -> str:
    document = parse_json(line)
    if not isinstance(document, dict):
        raise ValueError(
            f'a JSON {type(document).__name__}, not an object; write {{"{text_field}": "..."}}'
        )
    if text_field not in document:
        has_examples = "prompt" in document and "response" in document
        raise ValueError(
            f"no field {text_field!r}; fields: {', '.join(map(repr, document)) or 'none'}; "
            + ("pack examples with --response-seq-len, or " if has_examples else "")
            + "choose one with --text-field"
        )
    text = document[text_field]
    if not isinstance(text, str):
        raise ValueError(
            f"field {text_field!r} is of type {type(text).__name__}, not text; "
            "choose another with --text-field"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can contain an unpaired surrogate: "\\ud800"
            raise ValueError(
                f"field {text_field!r} has an unpaired surrogate, U+{ord(text[error.start]):X}; "
                "write the full pair or U+FFFD"
            ) from None
    return text


def _parquet(file: io.BufferedReader, piece: Piece, text_field: str, name: str) -> Iterator[str]:
    import pyarrow

    parquet = open_parquet(file, name)
    schema = parquet.schema_arrow
    if text_field not in schema.names:
        raise DatasetError(
            f"{name} has no column {text_field!r}; columns: {', '.join(schema.names)}; "
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
                    f"{name}: row {row}, counting from the start of row group {piece.start}, has "
                    f"no {text_field!r}; remove rows without text"
                )
            yield text


def open_parquet(file: io.BufferedReader, name: str):  # type: ignore[no-untyped-def]
    """Open a ``pyarrow.parquet.ParquetFile``; raise ``DatasetError`` if it is not Parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        # Part of the image, but not of the laptop set-up: it is large and rarely needed.
        raise DatasetError(
            f"{name} is a Parquet file, but pyarrow is not installed here; install it (pip "
            "install pyarrow), or write the documents as JSONL"
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise DatasetError(
            f"{name} is not a Parquet file ({error}); remove or replace it"
        ) from None


def batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Group documents into lists large enough to encode in parallel yet small enough for memory."""
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
    """Yield the items, none of which is None, while a thread reads the next one."""
    iterator = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        following = pool.submit(next, iterator, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, iterator, None)
            yield item
