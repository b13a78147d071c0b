"""Objects in a bucket and in a folder behave alike."""

from __future__ import annotations

import fcntl
import io
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoint.conftest import PART, QUICK
from tests.training.s3_server import REGION
from training.storage import (
    LocalObjects,
    ObjectMissing,
    Objects,
    PreconditionFailed,
    StorageRefused,
    StorageUnavailable,
    local,
    open_objects,
)


def keys(objects: Objects, prefix: str = "") -> list[str]:
    return [info.key for info in objects.list(prefix)]


def test_a_frozen_holder_of_a_folder_lock_is_not_waited_for_indefinitely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LOCK_S", 0.1)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(StorageUnavailable, match=r"locked for 0\.1 s by a frozen process"):
            LocalObjects(tmp_path).put("a", b"")
    finally:
        os.close(handle)
    LocalObjects(tmp_path).put("a", b"")


@pytest.mark.parametrize("num_bytes", [10, PART + 10])
def test_a_stream_does_not_replace_an_existing_object_if_absent(
    objects: Objects, num_bytes: int, small_parts: None
) -> None:
    with objects.create("stream", if_absent=True) as stream:
        target: Any = stream
        target.write(b"a" * num_bytes)
    with (
        pytest.raises(PreconditionFailed, match="stream"),
        objects.create("stream", if_absent=True) as stream,
    ):
        target = stream
        target.write(b"b" * num_bytes)

    assert objects.get_range("stream", 0, 1) == b"a"


def test_a_missing_object_is_named(objects: Objects, tmp_path: Path) -> None:
    with pytest.raises(ObjectMissing, match=r"there is no .*/gone"):
        objects.get("gone")
    with pytest.raises(ObjectMissing, match=r"there is no .*/gone"):
        objects.get_range("gone", 0, 1)
    with pytest.raises(ObjectMissing, match=r"there is no .*/gone"):
        objects.get_file("gone", io.BytesIO())
    assert not (tmp_path / "file").exists()


def test_a_range_is_truncated_at_the_end_of_the_object(objects: Objects) -> None:
    objects.put("digits", b"0123456789")

    assert objects.get_range("digits", 3, 4) == b"3456"
    assert objects.get_range("digits", 8, 100) == b"89"
    assert objects.get_range("digits", 10, 1) == b""
    assert objects.get_range("digits", 0, 0) == b""


def test_if_match_writes_only_over_what_was_read(objects: Objects) -> None:
    first = objects.put("lock", b"first")
    objects.put("lock", b"second", if_match=first)

    with pytest.raises(PreconditionFailed):
        objects.put("lock", b"third", if_match=first)
    assert objects.get("lock") == b"second"


def test_if_match_does_not_write_what_was_deleted(objects: Objects) -> None:
    etag = objects.put("lock", b"first")
    objects.delete(["lock"])

    with pytest.raises(PreconditionFailed):
        objects.put("lock", b"second", if_match=etag)
    assert keys(objects) == []


def test_if_absent_admits_one_of_many_writers(objects: Objects) -> None:
    won = []

    def write(number: int) -> None:
        try:
            objects.put("lock", str(number).encode(), if_absent=True)
        except PreconditionFailed:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [objects.get("lock")] == [str(number).encode() for number in won]


@pytest.mark.parametrize("size", [0, PART, 2 * PART + 1])
def test_files_of_any_size_round_trip(
    objects: Objects, tmp_path: Path, size: int, small_parts: None
) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(size))
    sent: list[int] = []
    received: list[int] = []

    objects.put_file("deep/file", source, on_bytes=sent.append)
    with back.open("w+b") as file:
        objects.get_file("deep/file", file, on_bytes=received.append)

    assert back.read_bytes() == source.read_bytes()
    assert (sum(sent), sum(received)) == (size, size)
    assert [info.size for info in objects.list()] == [size]


@pytest.mark.parametrize("size", [0, 17 << 20])
def test_a_stream_becomes_one_object(objects: Objects, size: int) -> None:
    """The larger one has two parts, of a size that S3 and its emulator allow."""
    data = os.urandom(size)

    with objects.create("stream") as stream:
        target: Any = stream
        for start in range(0, size, 3 << 20):
            target.write(data[start : start + (3 << 20)])
        assert target.tell() == size
        assert keys(objects) == []

    assert objects.get("stream") == data


@pytest.mark.parametrize("size", [5, PART + 10])
def test_a_failed_stream_leaves_no_object(objects: Objects, size: int, small_parts: None) -> None:
    with pytest.raises(RuntimeError, match="changed my mind"), objects.create("x") as stream:
        target: Any = stream
        target.write(bytes(size))
        raise RuntimeError("changed my mind")

    assert keys(objects) == []


def test_keys_are_listed_in_order_below_a_prefix(objects: Objects) -> None:
    for key in ("b/2", "a", "b/10", "bc/1"):
        objects.put(key, b"")

    assert keys(objects) == ["a", "b/10", "b/2", "bc/1"]
    assert keys(objects, "b/") == ["b/10", "b/2"]
    assert keys(objects, "b") == ["b/10", "b/2", "bc/1"]
    assert keys(objects, "none/") == []


def test_a_prefixed_view_has_relative_keys(objects: Objects) -> None:
    objects.at("b/c/").put("d", b"1")

    assert keys(objects) == ["b/c/d"]
    assert keys(objects.at("b")) == ["c/d"]
    assert objects.at("b/c").uri == f"{objects.uri}/b/c"


def test_deleting_a_missing_key_is_not_an_error(objects: Objects) -> None:
    objects.put("a/b", b"")

    objects.delete(["a/b", "a/c"])

    assert keys(objects) == []


def test_more_objects_than_one_request_takes_are_listed_and_deleted(
    bucket: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.storage.s3._MAX_KEYS", 3)
    names = [f"{number:02}" for number in range(10)]
    for name in names:
        bucket.put(name, b"")

    assert keys(bucket) == names
    bucket.delete(names[1:])
    assert keys(bucket) == names[:1]


def test_empty_folders_are_removed_with_their_last_file(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    objects.put("a/b/c", b"")

    objects.delete(["a/b/c"])

    assert list(tmp_path.iterdir()) == []


def test_a_missing_bucket_is_named(endpoint: str) -> None:
    objects = open_objects("s3://none/x", region=REGION, endpoint_url=endpoint, retry_policy=QUICK)

    with pytest.raises(StorageRefused, match="cannot write s3://none/x/a: there is no bucket none"):
        objects.put("a", b"")
    with pytest.raises(StorageRefused, match="there is no bucket none; deploy it first"):
        objects.put("a", b"", if_match="etag")


def test_missing_credentials_are_reported(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    objects = open_objects(
        "s3://bucket/x", region=REGION, endpoint_url=endpoint, retry_policy=QUICK
    )

    with pytest.raises(StorageRefused, match="no AWS credentials were found; sign in, or assign"):
        objects.get("a")


@pytest.mark.parametrize("uri", ["", "https://example.com/x", "s3://"])
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="is not a storage location; use s3://bucket/prefix"):
        open_objects(uri, region=None, endpoint_url=None)


@pytest.mark.parametrize("key", ["/etc/passwd", "a/../../x"])
def test_a_key_cannot_escape_a_local_folder(tmp_path: Path, key: str) -> None:
    objects = LocalObjects(tmp_path / "root")

    for action in (
        lambda: objects.put(key, b"x"),
        lambda: objects.get(key),
        lambda: objects.delete([key]),
        lambda: objects.at(key.lstrip("/")).put("x", b"x") if key[0] != "/" else objects.get(key),
    ):
        with pytest.raises(StorageRefused, match=r"no object in .* can have this key"):
            action()
    assert list(tmp_path.iterdir()) == []
