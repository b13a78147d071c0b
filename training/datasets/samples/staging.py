"""Copy a dataset's files from storage to a folder on the node, and verify them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from training.core.files import sha256_of, write_whole
from training.datasets.manifest import (
    DataFile,
    DatasetError,
    DatasetManifest,
    PackedManifest,
    Shard,
)
from training.storage import ObjectMissing, Objects
from trainium_catalogue.contract import DATASET_MANIFEST
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName

_MIB = 1024 * 1024
_PARALLEL_CHECKS = 16
"""Number of parallel checks: a dataset may have a thousand shards, and a node a hundred cores."""


StagedFile = Shard | DataFile
M = TypeVar("M", PackedManifest, DatasetManifest)


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
    """Copy the dataset at ``objects`` to this node's folder ``cache``; return its manifest.

    One process per node, the leader, downloads missing files while the rest block in ``wait``, a
    barrier across at least the node's processes. ``parse`` parses the manifest from its bytes and
    name. Raises ``DatasetError`` for a shard that is missing or does not match the manifest;
    ``made_by`` is the workload that recreates it.
    """
    if is_leader:
        _stage(objects, cache, parse, made_by, report)
    wait()
    path = cache / DATASET_MANIFEST
    return parse(path.read_bytes(), str(path))


def _stage(
    objects: Objects,
    cache: Path,
    parse: Callable[[bytes, str], PackedManifest | DatasetManifest],
    made_by: str,
    report: Callable[[str], None],
) -> None:
    name = f"{objects.uri}/{DATASET_MANIFEST}"
    try:
        data = objects.get(DATASET_MANIFEST)
    except ObjectMissing:
        raise DatasetError(
            f"{objects.uri} is not a complete dataset: it has no {DATASET_MANIFEST}; "
            f"run {made_by}, or wait for it to finish"
        ) from None
    manifest = parse(data, name)
    cache.mkdir(parents=True, exist_ok=True)
    folder = SafeFolder(cache)
    try:
        missing = _find_missing(folder, manifest.files, report)
    except UnsafeName as error:
        raise DatasetError(f"{cache} cannot hold the dataset {objects.uri}: {error}") from None
    if missing:
        # No manifest until all shards are valid, so that a partial folder never looks complete.
        (cache / DATASET_MANIFEST).unlink(missing_ok=True)
    needed, free = sum(shard.bytes for shard in missing), shutil.disk_usage(cache).free
    if needed > free:
        raise DatasetError(
            f"{cache} has {free // _MIB:,} MiB free, but the missing shards need "
            f"{needed // _MIB:,} MiB; give the nodes a larger volume or put the cache on Lustre"
        )
    fetched = 0

    def on_bytes(count: int) -> None:
        nonlocal fetched
        fetched += count
        report(f"dataset: {fetched // _MIB} of {needed // _MIB} MiB")

    for shard in missing:
        _fetch(objects, folder, shard, made_by, on_bytes)
    # Atomic: nodes that share a folder, as on Lustre or a laptop, may do this concurrently.
    write_whole(cache / DATASET_MANIFEST, data)


def _find_missing(
    cache: SafeFolder, shards: Sequence[StagedFile], report: Callable[[str], None]
) -> list[StagedFile]:
    """Find missing or invalid shards, in parallel because accelerators are waiting."""
    with ThreadPoolExecutor(_PARALLEL_CHECKS, thread_name_prefix="check") as pool:
        checks = [pool.submit(_is_valid, cache.path(shard.name), shard) for shard in shards]
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
            f"shard {shard.name} of {objects.uri} is missing although its manifest lists it; "
            f"run {made_by} again, which recreates only missing shards"
        ) from None
    path = folder.path(shard.name)
    if not _is_valid(path, shard):
        num_bytes = path.stat().st_size
        path.unlink()
        raise DatasetError(
            f"shard {shard.name} of {objects.uri} is damaged: {num_bytes:,} bytes were read, but "
            f"{shard.bytes:,} with SHA-256 {shard.sha256[:12]} were expected; delete it and run "
            f"{made_by} again, which recreates only missing shards"
        )


def _is_valid(path: Path, shard: StagedFile) -> bool:
    return path.is_file() and path.stat().st_size == shard.bytes and sha256_of(path) == shard.sha256
