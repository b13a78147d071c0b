"""Download a program's files, by hash, and its data, from any prefix."""

from __future__ import annotations

import gzip
import json
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from training.core.files import sha256_of, write_whole
from training.core.threads import in_threads
from training.program.settings import (
    NotPrepared,
    Workspace,
    full_disk_refused,
    refuse_if_full,
)
from training.storage import ObjectInfo, ObjectMissing, Objects
from trainium_catalogue.contract import DATASETS_PREFIX, bundle_key
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName, path_parts

_UNREADABLE = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, UnsafeName)
"""Errors of a damaged archive; ``BadGzipFile`` is an ``OSError``, as for a full disk."""
_REMEDY = "submit the program again, which uploads its files again"
_AT_ONCE = 8
"""Number of concurrent downloads; each large file itself uses several threads."""
_MIB = 1024 * 1024
_RECORD = ".trainium-staged.json"
"""Record of copied objects' ETags, to avoid copying files to Lustre again."""


def unpack_bundle(workspace: Workspace) -> None:
    """Download the program's files to ``code/``; raise ``NotPrepared`` if they are invalid."""
    settings, folders = workspace.settings, workspace.folders
    key = bundle_key(workspace.node.run, settings.code)
    shown = f"{workspace.bucket.uri}/{key}"
    archive = folders.scratch / "bundle.tar.gz"
    workspace.report(f"fetching the program's files, {key}")
    with full_disk_refused(folders.scratch, f"the bundle {key}"):
        try:
            with SafeFolder(folders.scratch).create(archive.name) as file:
                workspace.bucket.get_file(key, file)
        except ObjectMissing:
            raise _refusal(
                f"the program's files are missing: there is no {shown}; {_REMEDY}"
            ) from None
    digest = sha256_of(archive)
    if digest != settings.code:
        raise _refusal(
            f"the program's files differ from those that were submitted: {shown} has the SHA-256 "
            f"{digest}; {_REMEDY}"
        )
    workspace.report("unpacking the program's files")
    with full_disk_refused(folders.code, "the program's folder"):
        try:
            _extract(archive, folders.code)
        except _UNREADABLE as error:
            raise _refusal(f"{shown} cannot be unpacked: {error}; {_REMEDY}") from None
    archive.unlink()
    if settings.script and not (folders.code / settings.script).is_file():
        raise _refusal(
            f"--script {settings.script}: the bundle has no such file; submit the program again "
            "with the path of a file that is not excluded from the bundle"
        )


def _extract(archive: Path, target: Path) -> None:
    """Unpack regular files; ``submit`` packs nothing else, and resolves links."""
    target.mkdir(parents=True, exist_ok=True)
    folder = SafeFolder(target)
    with tarfile.open(archive, "r:gz") as tar:
        members = tar.getmembers()
        refuse_if_full(target, "the program's folder", sum(member.size for member in members))
        for member in members:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise tarfile.TarError(f"{member.name!r} is not a regular file")
            mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
            with content, folder.create(member.name, mode=mode) as file:
                shutil.copyfileobj(content, file)


def _refusal(reason: str) -> NotPrepared:
    return NotPrepared(ExitCode.CONFIGURATION, reason)


def stage_inputs(workspace: Workspace) -> None:
    """Copy the data of ``--dataset`` and ``--input``; raise ``NotPrepared`` if missing."""
    if workspace.node.lustre and not workspace.node.is_main:
        return  # all nodes wait for the main node and share its copy
    settings, folders = workspace.settings, workspace.folders
    if settings.dataset:
        prefix = f"{DATASETS_PREFIX}{settings.dataset}"
        _copy(
            workspace,
            workspace.bucket.at(prefix),
            folders.dataset,
            what=f"--dataset {settings.dataset}",
            remedy="use the name of a folder below datasets/ in the bucket",
        )
    if settings.input:
        _copy(
            workspace,
            workspace.open(settings.input),
            folders.input,
            what=f"--input {settings.input}",
            remedy="use the prefix of existing objects",
        )


def _copy(workspace: Workspace, objects: Objects, folder: Path, *, what: str, remedy: str) -> None:
    """Synchronize ``folder`` with ``objects``."""
    workspace.report(f"{what}: listing {objects.uri}")
    # Skip the empty objects that the S3 console creates for folders; their keys end in a slash.
    files = [info for info in objects.list() if not info.key.endswith("/") and info.key]
    if not files:
        raise _refusal(f"{what}: there are no objects at {objects.uri}; {remedy}")
    try:
        with full_disk_refused(folder, what):
            _copy_missing(workspace.report, objects, files, folder, what)
    except UnsafeName as error:
        raise _refusal(
            f"{what}: an object at {objects.uri} has a key that is not a valid file name: {error}; "
            "rename it"
        ) from None
    except ObjectMissing as error:
        raise NotPrepared(
            ExitCode.HOST, f"{what}: an object was deleted while it was being copied: {error}"
        ) from None


def _copy_missing(
    report: Callable[[str], None],
    objects: Objects,
    files: Sequence[ObjectInfo],
    folder: Path,
    what: str,
) -> None:
    """Copy the files that are not in ``folder`` yet."""
    staged = SafeFolder(folder)
    for info in files:
        if path_parts(info.key)[0] == _RECORD:
            raise UnsafeName(f"{info.key!r} is a reserved name")
    folder.mkdir(parents=True, exist_ok=True)
    recorded = _read_record(folder)
    missing = [info for info in files if not _is_staged(staged, info, recorded)]
    needed, moved = sum(info.size for info in missing), 0
    refuse_if_full(folder, what, needed)

    def count(size: int) -> None:
        nonlocal moved
        moved += size
        report(f"{what}: {moved // _MIB} of {needed // _MIB} MiB")

    def fetch(info: ObjectInfo) -> None:
        with staged.create(info.key) as file:
            objects.get_file(info.key, file, on_bytes=count)

    for _ in in_threads(fetch, missing, at_once=_AT_ONCE, name="inputs"):
        pass
    write_whole(folder / _RECORD, json.dumps({info.key: info.etag for info in files}).encode())


def _read_record(folder: Path) -> dict[str, str]:
    try:
        document = json.loads((folder / _RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _is_staged(folder: SafeFolder, info: ObjectInfo, recorded: dict[str, str]) -> bool:
    path = folder.path(info.key)
    return (
        recorded.get(info.key) == info.etag and path.is_file() and path.stat().st_size == info.size
    )
