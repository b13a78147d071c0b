"""Checksums by chunk: content written in pieces is verified in pieces."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.checkpoint.dcp import SummingStream, VerifiedStream
from training.checkpoint.marker import CheckpointDamaged, MarkedFile
from training.storage import LocalObjects, Objects

CHUNK = 16


def summed(pieces: list[bytes]) -> tuple[bytes, MarkedFile]:
    target = io.BytesIO()
    stream = SummingStream(target, chunk_bytes=CHUNK)
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    return target.getvalue(), stream.sum()


def expected(data: bytes) -> MarkedFile:
    starts = range(0, len(data), CHUNK)
    return MarkedFile(
        bytes=len(data),
        chunk_bytes=CHUNK,
        crc32=tuple(zlib.crc32(data[start : start + CHUNK]) for start in starts),
    )


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=50)))
def test_sums_do_not_depend_on_how_it_is_written(pieces: list[bytes]) -> None:
    data = b"".join(pieces)

    assert summed(pieces) == (data, expected(data))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return LocalObjects(tmp_path_factory.mktemp("objects"))


@settings(max_examples=40)
@given(
    st.binary(max_size=200),
    st.lists(st.tuples(st.integers(0, 250), st.integers(0, 100)), max_size=5),
)
def test_every_part_is_read_back_unchanged(
    root: Objects, data: bytes, reads: list[tuple[int, int]]
) -> None:
    root.put("file", data)
    stream = VerifiedStream(root, "file", expected(data))

    for start, length in reads:
        stream.seek(start)
        assert stream.read(length) == data[start : start + length]
    stream.seek(0)
    assert stream.read() == data


@settings(max_examples=40)
@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_flipped_bit_is_found_when_its_chunk_is_read(
    root: Objects, data: bytes, draw: st.DataObject
) -> None:
    place = draw.draw(st.integers(0, 8 * len(data) - 1))
    wrong = bytearray(data)
    wrong[place // 8] ^= 1 << place % 8
    root.put("file", bytes(wrong))
    stream = VerifiedStream(root, "file", expected(data))

    with pytest.raises(CheckpointDamaged, match="the checksum differs"):
        stream.read()


@settings(max_examples=40)
@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_short_file_is_detected(root: Objects, data: bytes, draw: st.DataObject) -> None:
    root.put("file", data[: draw.draw(st.integers(0, len(data) - 1))])
    stream = VerifiedStream(root, "file", expected(data))

    with pytest.raises(CheckpointDamaged, match=rf"file ends after \d+ of {len(data)} bytes"):
        stream.read()


def test_a_missing_file_is_damage_to_the_checkpoint(tmp_path: Path) -> None:
    stream = VerifiedStream(LocalObjects(tmp_path), "gone", expected(b"data"))

    with pytest.raises(CheckpointDamaged, match="gone is missing"):
        stream.read()


def test_each_chunk_is_fetched_once_while_reading_on(root: Objects) -> None:
    data = bytes(range(100))
    root.put("file", data)
    fetched: list[int] = []
    stream = VerifiedStream(root, "file", expected(data), on_bytes=fetched.append)

    assert b"".join(stream.read(3) for _ in range(34)) == data
    assert sum(fetched) == len(data)
