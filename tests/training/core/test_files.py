"""Files with concurrent writers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.datasets.test_packed_dataset import opened, write_dataset
from training.core.files import write_whole

ROUNDS = 100


def at_once(*writers: Callable[[int], None]) -> None:
    """Run each in its own thread, many times; raise the first exception."""
    together = threading.Barrier(len(writers))
    errors: list[BaseException] = []

    def write(writer: Callable[[int], None]) -> None:
        together.wait()
        try:
            for number in range(ROUNDS):
                writer(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_concurrent_writers_do_not_collide_and_readers_see_complete_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    known = {b"first", b"a" * 10000, b"b" * 20000}

    def read(number: int) -> None:
        assert path.read_bytes() in known

    at_once(
        lambda number: write_whole(path, b"a" * 10000),
        lambda number: write_whole(path, b"b" * 20000),
        read,
    )

    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", b"")

    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_leaders_of_two_nodes_may_share_a_folder(tmp_path: Path) -> None:
    source, cache = tmp_path / "source", tmp_path / "cache"
    write_dataset(source, list(range(9)), [])
    opened(source, cache)

    at_once(*[lambda number: assert_opened(source, cache)] * 2)

    assert sorted(path.name for path in cache.iterdir()) == [
        "manifest.json", "shard-00000-000.bin",
    ]  # fmt: skip


def assert_opened(source: Path, cache: Path) -> None:
    assert opened(source, cache).manifest.num_tokens == 9
