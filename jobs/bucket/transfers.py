"""Moving files to and from the bucket: in parts, many at a time, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from jobs.bucket.checksums import is_same
from jobs.bucket.objects import Bucket
from jobs.errors import Refusal

_PART_BYTES = 16 * 2**20
CONCURRENCY = 16


class Direction(StrEnum):
    """Where files go."""

    UP = "upload"
    DOWN = "download"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One file and its object."""

    path: Path
    key: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done with each."""

    moved: tuple[Item, ...]
    skipped: tuple[Item, ...]
    """There already, with the same size and checksum."""


def move(
    bucket: Bucket,
    items: Sequence[Item],
    direction: Direction,
    *,
    prefix: str,
    note: Callable[[str], None],
) -> Outcome:
    """Move what is not there yet; every key begins with ``prefix``.

    Ctrl-C ends parts that are under way and leaves no half file.
    """
    from boto3.s3.transfer import TransferConfig, create_transfer_manager
    from rich.console import Console
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
    console = Console(stderr=True)
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]
    # Of what is not there at all, or with another size, S3 need not be asked for its checksum.
    sizes = {found.key: found.size for found in bucket.objects(prefix)}
    moved: list[Item] = []
    skipped: list[Item] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(direction.value, total=sum(item.size for item in items))

        def advance(num_bytes: int) -> None:
            progress.advance(bar, num_bytes)

        try:
            with create_transfer_manager(bucket.client, config) as manager:
                under_way: list[tuple[Item, Any]] = []
                for item in items:
                    progress.update(bar, description=f"{direction.value} {item.path.name}")
                    if sizes.get(item.key) == item.size and is_same(item.path, bucket, item.key):
                        skipped.append(item)
                        advance(item.size)
                    else:
                        future = _start(manager, bucket, item, direction, advance)
                        under_way.append((item, future))
                for item, future in under_way:
                    progress.update(bar, description=f"{direction.value} {item.path.name}")
                    future.result()
                    moved.append(item)
        except KeyboardInterrupt:
            done = len(moved) + len(skipped)
            note(
                f"interrupted: {done} of {len(items)} files are there; the same command goes on "
                "with the rest"
            )
            raise
        except RetriesExceededError as error:
            raise error.last_exception from None
        except OSError as error:
            raise Refusal(
                "file",
                f"{error.filename or 'a file'} cannot be read or written: "
                f"{error.strerror or error}; make room or set its permissions, the same command "
                "goes on where this ended",
            ) from None
    return Outcome(moved=tuple(moved), skipped=tuple(skipped))


def files(items: Sequence[Item]) -> str:
    """``1 file`` or ``2 files``."""
    return "1 file" if len(items) == 1 else f"{len(items)} files"


def _start(
    manager: Any,
    bucket: Bucket,
    item: Item,
    direction: Direction,
    advance: Callable[[int], None],
) -> Any:
    from boto3.s3.transfer import ProgressCallbackInvoker

    subscribers = [ProgressCallbackInvoker(advance)]
    if direction is Direction.UP:
        # A checksum of the whole, or of the parts, which tells later whether a file is the same.
        extra = {"ChecksumAlgorithm": "CRC32"}
        return manager.upload(
            str(item.path), bucket.name, item.key, extra_args=extra, subscribers=subscribers
        )
    item.path.parent.mkdir(parents=True, exist_ok=True)
    return manager.download(bucket.name, item.key, str(item.path), subscribers=subscribers)
