"""Copies a dataset's files from storage to a folder of the node, verifying each one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from training.core.files import sha256_of, write_whole
from training.datasets.manifest import DatasetError
from training.storage import ObjectMissing, Objects
from trainium_catalogue.contract import DATASET_MANIFEST
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName

_MIB = 1024 * 1024
_CHECKED_AT_ONCE = 16
"""Parallel checks: there may be a thousand shards, on nodes with a hundred cores."""


class StagedFile(Protocol):
    """A file of a dataset."""

    @property
    def name(self) -> str:
        """Key below the dataset."""

    @property
    def bytes(self) -> int:
        """Size of the file."""

    @property
    def sha256(self) -> str:
        """Checksum as hexadecimal digits."""


class FileList(Protocol):
    """A manifest that lists files."""

    @property
    def files(self) -> Sequence[StagedFile]:
        """Every file of the dataset except the manifest."""


M = TypeVar("M", bound=FileList)


def stage(
    objects: Objects,
    cache: Path,
    *,
    parse: Callable[[bytes, str], M],
    made_by: str,
    is_leader: bool,
    wait: Callable[[], None],
    report: Callable[[str], None],
) -> M:
    """Copy the dataset at ``objects`` to this node's folder ``cache``; returns its manifest.

    One process per node, the leader, downloads what the folder lacks; the others wait for it in
    ``wait``, a barrier of at least the node's processes. ``parse`` reads the manifest, given its
    bytes and name. ``DatasetError`` names a shard that is missing or does not match the manifest;
    ``made_by`` is the workload that would make it.
    """
    if is_leader:
        _stage(objects, cache, parse, made_by, report)
    wait()
    path = cache / DATASET_MANIFEST
    return parse(path.read_bytes(), str(path))


def _stage(
    objects: Objects,
    cache: Path,
    parse: Callable[[bytes, str], FileList],
    made_by: str,
    report: Callable[[str], None],
) -> None:
    name = f"{objects.uri}/{DATASET_MANIFEST}"
    try:
        data = objects.get(DATASET_MANIFEST)
    except ObjectMissing:
        raise DatasetError(
            f"{objects.uri} holds no complete dataset: it has no {DATASET_MANIFEST}; "
            f"run {made_by}, or wait until it has finished"
        ) from None
    manifest = parse(data, name)
    cache.mkdir(parents=True, exist_ok=True)
    folder = SafeFolder(cache)
    try:
        missing = _missing(folder, manifest.files, report)
    except UnsafeName as error:
        raise DatasetError(f"{cache} cannot hold the dataset {objects.uri}: {error}") from None
    if missing:
        # Removed until all shards are right, so that nobody takes a partial folder for a whole one.
        (cache / DATASET_MANIFEST).unlink(missing_ok=True)
    needed, free = sum(shard.bytes for shard in missing), shutil.disk_usage(cache).free
    if needed > free:
        raise DatasetError(
            f"{cache} has {free // _MIB} MiB free and the dataset needs {needed // _MIB} more; "
            "give the nodes a larger volume or put the cache on Lustre"
        )
    moved = 0

    def on_bytes(count: int) -> None:
        nonlocal moved
        moved += count
        report(f"dataset: {moved // _MIB} of {needed // _MIB} MiB")

    for shard in missing:
        _fetch(objects, folder, shard, made_by, on_bytes)
    # Nodes that share a folder, as on Lustre or a laptop, get here at the same time.
    write_whole(cache / DATASET_MANIFEST, data)


def _missing(
    cache: SafeFolder, shards: Sequence[StagedFile], report: Callable[[str], None]
) -> list[StagedFile]:
    """Find shards that the folder lacks; checks in parallel, because accelerators are waiting."""
    with ThreadPoolExecutor(_CHECKED_AT_ONCE, thread_name_prefix="check") as pool:
        checks = [pool.submit(_is_right, cache.path(shard.name), shard) for shard in shards]
        missing = []
        for shard, check in zip(shards, checks, strict=True):
            report(f"checking {shard.name}")
            if not check.result():
                missing.append(shard)
    return missing


def _fetch(
    objects: Objects,
    folder: SafeFolder,
    shard: StagedFile,
    made_by: str,
    on_bytes: Callable[[int], None],
) -> None:
    try:
        with folder.create(shard.name) as file:
            objects.get_file(shard.name, file, on_bytes=on_bytes)
    except UnsafeName as error:
        raise DatasetError(
            f"shard {shard.name!r} of {objects.uri} cannot be written to {folder.root}: {error}"
        ) from None
    except ObjectMissing:
        raise DatasetError(
            f"shard {shard.name} of {objects.uri} is missing though its manifest lists it; "
            f"run {made_by} again, which makes only what is missing"
        ) from None
    path = folder.path(shard.name)
    if not _is_right(path, shard):
        found = path.stat().st_size
        path.unlink()
        raise DatasetError(
            f"shard {shard.name} of {objects.uri} is damaged: {found} bytes were read and "
            f"{shard.bytes} with sha256 {shard.sha256[:12]} are expected; delete it and run "
            f"{made_by} again, which makes only what is missing"
        )


def _is_right(path: Path, shard: StagedFile) -> bool:
    return path.is_file() and path.stat().st_size == shard.bytes and sha256_of(path) == shard.sha256
