"""Multipart, parallel transfers to and from the bucket, skipping unchanged files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from trainium_catalogue.documents import Natural
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

_PART_BYTES = 16 * 2**20
CONCURRENCY = 16
_BLOCK_BYTES = 4 * 2**20


class Direction(StrEnum):
    """Direction of a transfer."""

    UP = "upload"
    DOWN = "download"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferItem:
    """One file and its object."""

    path: Path
    key: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResult:
    """The files of a transfer, by outcome."""

    moved: tuple[TransferItem, ...]
    skipped: tuple[TransferItem, ...]
    """Files that already existed with the same size and checksum."""


def move(
    bucket: Bucket,
    items: Sequence[TransferItem],
    direction: Direction,
    *,
    up_to_date: Collection[TransferItem],
    note: Callable[[str], None],
    console: Console,
) -> TransferResult:
    """Transfer all items except those in ``up_to_date``, into existing folders.

    Ctrl-C cancels the parts in flight and leaves no partial file.
    """
    from boto3.s3.transfer import TransferConfig, create_transfer_manager
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from s3transfer.exceptions import RetriesExceededError

    config = TransferConfig(
        multipart_threshold=_PART_BYTES * 4,
        multipart_chunksize=_PART_BYTES,
        max_concurrency=CONCURRENCY,
        preferred_transfer_client="classic",
    )
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]
    moved: list[TransferItem] = []
    skipped: list[TransferItem] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(direction.value, total=sum(item.size for item in items))

        def advance(num_bytes: int) -> None:
            progress.advance(bar, num_bytes)

        try:
            with create_transfer_manager(bucket.client, config) as manager:
                in_flight: list[tuple[TransferItem, Any]] = []
                for item in items:
                    progress.update(bar, description=f"{direction.value} {item.path.name}")
                    if item in up_to_date:
                        skipped.append(item)
                        advance(item.size)
                    else:
                        future = _start(manager, bucket, item, direction, advance)
                        in_flight.append((item, future))
                for item, future in in_flight:
                    progress.update(bar, description=f"{direction.value} {item.path.name}")
                    future.result()
                    moved.append(item)
        except KeyboardInterrupt:
            done = len(moved) + len(skipped)
            note(
                f"interrupted: {done} of {counted(len(items), 'file')} transferred; run the "
                "command again to resume"
            )
            raise
        except RetriesExceededError as error:
            raise error.last_exception from None
        except OSError as error:
            raise Refusal(
                "file",
                f"{error.filename or 'a file'} cannot be read or written: "
                f"{error.strerror or error}; free some space or fix its permissions, and run the "
                "command again to resume",
            ) from None
    return TransferResult(moved=tuple(moved), skipped=tuple(skipped))


def same_files(
    bucket: Bucket, items: Sequence[TransferItem], *, prefix: str
) -> frozenset[TransferItem]:
    """Return the items whose file and object are equal; every key begins with ``prefix``."""
    # No need to request the checksums of objects that are missing or differ in size.
    sizes = {found.key: found.size for found in bucket.objects(prefix)}
    return frozenset(
        item
        for item in items
        if sizes.get(item.key) == item.size and is_same(item.path, bucket, item.key)
    )


def files(items: Sequence[TransferItem]) -> str:
    """Format a number of files: ``1 file`` or ``2 files``."""
    return counted(len(items), "file")


def _start(
    manager: Any,
    bucket: Bucket,
    item: TransferItem,
    direction: Direction,
    advance: Callable[[int], None],
) -> Any:
    from boto3.s3.transfer import ProgressCallbackInvoker

    subscribers = [ProgressCallbackInvoker(advance)]
    if direction is Direction.UP:
        # A checksum of the whole file or of its parts, for later comparison.
        extra = {"ChecksumAlgorithm": "CRC32"}
        return manager.upload(
            str(item.path), bucket.name, item.key, extra_args=extra, subscribers=subscribers
        )
    return manager.download(bucket.name, item.key, str(item.path), subscribers=subscribers)


@dataclass(frozen=True, kw_only=True)
class TransferredFile:
    """A local file and its object."""

    path: str
    key: str
    bytes: Natural
    action: Literal["moved", "skipped", "dry-run"]
    """Skipped: it already existed with the same size and checksum."""


def transferred(
    items: Iterable[TransferItem], outcome: TransferResult | None
) -> tuple[TransferredFile, ...]:
    """List the outcome of each file; without a result, it was a dry run."""
    skipped = {item.key for item in outcome.skipped} if outcome else set()

    def action(item: TransferItem) -> Literal["moved", "skipped", "dry-run"]:
        if outcome is None:
            return "dry-run"
        return "skipped" if item.key in skipped else "moved"

    return tuple(
        TransferredFile(path=str(item.path), key=item.key, bytes=item.size, action=action(item))
        for item in items
    )


def is_same(path: Path, bucket: Bucket, key: str) -> bool:
    """Return whether ``path`` holds the object's bytes; False if unknown."""
    head = bucket.head(key, ChecksumMode="ENABLED")
    if head is None or not path.is_file() or path.stat().st_size != int(head["ContentLength"]):
        return False
    return checksum_agrees(path, bucket, key, head) is True


def checksum_agrees(path: Path, bucket: Bucket, key: str, head: Mapping[str, Any]) -> bool | None:
    """Compare checksums; None if S3 has none that can be recomputed locally."""
    # No public class of botocore computes it; the version is pinned.
    from botocore.httpchecksum import Crc32Checksum

    crc32 = head.get("ChecksumCRC32")
    if not crc32 and head.get("ServerSideEncryption") not in (None, "AES256"):
        return None  # the ETag is not an MD5
    stored = str(crc32 or head.get("ETag", "")).strip('"')
    whole = "-" not in stored
    part_bytes = 0 if whole else _part_bytes(bucket, key)
    if part_bytes is None:
        return None
    digest, count = _digest(path, Crc32Checksum if crc32 else _md5, part_bytes)
    text = base64.b64encode(digest).decode() if crc32 else digest.hex()
    return stored == (text if whole else f"{text}-{count}")


def _part_bytes(bucket: Bucket, key: str) -> int | None:
    first = bucket.head(key, PartNumber=1)
    return int(first["ContentLength"]) if first else None


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _digest(path: Path, make: Any, part_bytes: int) -> tuple[bytes, int]:
    """Return the file's checksum, or the checksum of its parts' checksums, and the part count."""
    outer, count = make(), 0
    with path.open("rb") as file:
        if not part_bytes:
            while block := file.read(_BLOCK_BYTES):
                outer.update(block)
            return outer.digest(), 1
        while True:
            inner, left = make(), part_bytes
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                inner.update(block)
                left -= len(block)
            if left == part_bytes:
                return outer.digest(), count
            outer.update(inner.digest())
            count += 1
