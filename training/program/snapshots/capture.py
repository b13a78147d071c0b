"""Capture a folder's contents at one instant, while the program runs.

A file gets a hard link, which costs nothing and survives deletion or replacement by the program.
Only a file that the program modifies in place can still change: this is detected later, and from
then on the file is copied.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from training.program.snapshots.folder import FileState, FolderState, same_content
from training.program.snapshots.manifest import EntryKind, Root, SnapshotEntry

_BLOCK = 4 * 1024 * 1024
_SPARE_BYTES = 256 * 1024 * 1024
"""Disk space that copies must leave free."""
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})

log = logging.getLogger(__name__)

Place = tuple[Root, str]


class FileChanged(Exception):
    """The program has changed a captured file; the message is its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldEntry:
    """A captured entry of a folder, with the source of its content."""

    entry: SnapshotEntry
    """The entry; it has no checksum until that is known."""
    seen: FileState
    source: Path | None = None
    """None if there is no content, or the checksum is already known."""
    is_private: bool = False
    """True for a copy, which the program cannot change."""
    in_place: bool = False
    """True if the content is read from the program's own file, because there was no space for a
    copy."""

    @property
    def place(self) -> Place:
        """Root and path."""
        return self.entry.root, self.entry.path

    def check(self) -> None:
        """Raise ``FileChanged`` if the content may have changed."""
        if self.source is None or self.is_private:
            return
        try:
            same = same_content(self.seen, self.source.stat())
        except FileNotFoundError:
            same = False
        if not same:
            raise FileChanged(self.entry.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredEntries:
    """The restored entries of a folder, as long as the program does not change them."""

    seen: Mapping[Place, FileState]
    digests: Mapping[Place, str]
    foreign: frozenset[Place]
    """Entries that belong to other nodes and are excluded from this node's listings.

    Otherwise a file that its node replaces or deletes would survive in this node's listing and
    reappear in the next restore. On this node it would even take precedence over the new one.
    """


NOTHING = RestoredEntries(seen={}, digests={}, foreign=frozenset())


class Capture:
    """Captures folders, and caches the checksums of unchanged files."""

    def __init__(self, staging: Path, restored: RestoredEntries = NOTHING) -> None:
        self._staging = staging
        self._restored = restored
        self._known: dict[Place, tuple[FileState, str]] = {
            place: (restored.seen[place], digest) for place, digest in restored.digests.items()
        }
        self._rewritten: set[Place] = set()
        self._serial = 0
        self._warned = False

    def hold(
        self, root: Root, folder: Path, state: FolderState, logs: frozenset[str]
    ) -> list[HeldEntry]:
        """Capture every entry; raise ``FileChanged`` if any no longer matches ``state``.

        ``logs`` grow continuously, so they are captured up to their length in ``state``.
        """
        self._staging.mkdir(parents=True, exist_ok=True)
        held = [
            self._hold(root, folder, path, seen, path in logs)
            for path, seen in state.items()
            if not self._is_foreign(root, path, seen)
        ]
        used = {
            parent
            for item in held
            if item.entry.kind is not EntryKind.FOLDER
            for parent in _parents(item.entry.path)
        }
        return [
            item
            for item in held
            if item.entry.kind is not EntryKind.FOLDER
            or item.place not in self._restored.foreign
            or item.entry.path in used
        ]

    def is_as_restored(self, root: Root, state: FolderState) -> bool:
        """Return whether all entries of a folder are as restored."""
        return all(self._restored.seen.get((root, path)) == seen for path, seen in state.items())

    def _is_foreign(self, root: Root, path: str, seen: FileState) -> bool:
        place = root, path
        return (
            seen.kind is not EntryKind.FOLDER
            and place in self._restored.foreign
            and self._restored.seen[place] == seen
        )

    def _hold(
        self, root: Root, folder: Path, path: str, seen: FileState, is_log: bool
    ) -> HeldEntry:
        entry = SnapshotEntry(root=root, path=path, kind=seen.kind, mode=seen.mode)
        if seen.kind is EntryKind.LINK:
            target = _relative_target(folder, path, seen.target)
            return HeldEntry(entry=replace(entry, mode=0o777, target=target), seen=seen)
        if seen.kind is EntryKind.FOLDER:
            return HeldEntry(entry=entry, seen=seen)
        entry = replace(entry, bytes=seen.size, mtime_ns=seen.mtime_ns)
        known = self._known.get((root, path))
        if known is not None and known[0] == seen:
            return HeldEntry(entry=replace(entry, sha256=known[1]), seen=seen)
        self._serial += 1
        name = self._staging / f"{self._serial}"
        source = folder / path
        if is_log:
            return self._hold_copy(entry, seen, source, name, is_log=True)
        if (root, path) in self._rewritten:
            try:
                return self._hold_copy(entry, seen, source, name, is_log=False)
            except OSError as error:
                self._warn(error, path)
        else:
            try:
                os.link(source, name, follow_symlinks=False)
                item = HeldEntry(entry=entry, seen=seen, source=name)
                item.check()
                return item
            except FileNotFoundError:
                raise FileChanged(path) from None
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                try:
                    return self._hold_copy(entry, seen, source, name, is_log=False)
                except OSError as error:
                    self._warn(error, path)
        item = HeldEntry(entry=entry, seen=seen, source=source, in_place=True)
        item.check()
        return item

    def _hold_copy(
        self, entry: SnapshotEntry, seen: FileState, source: Path, name: Path, *, is_log: bool
    ) -> HeldEntry:
        if shutil.disk_usage(self._staging).free < seen.size + _SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            with source.open("rb") as reader, name.open("xb") as writer:
                _copy(reader.fileno(), writer.fileno(), seen.size)
                status = os.fstat(reader.fileno())
        except FileNotFoundError:
            raise FileChanged(entry.path) from None
        except OSError:
            name.unlink(missing_ok=True)
            raise
        grew = is_log and status.st_ino == seen.inode and status.st_size >= seen.size
        if not (grew or same_content(seen, status)) or name.stat().st_size != seen.size:
            raise FileChanged(entry.path)
        return HeldEntry(entry=entry, seen=seen, source=name, is_private=True)

    def _warn(self, error: OSError, path: str) -> None:
        """Log once that copies do not fit, so files are read in place; raise any other error."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise error
        if not self._warned:
            self._warned = True
            log.info(
                "snapshots: no space on the disk for a copy of %s; files are uploaded in place, "
                "and a snapshot is abandoned if the program writes to one during the upload; give "
                "the nodes a larger volume (context key root_volume_gib)",
                path,
            )

    def checksum(self, item: HeldEntry, check: Callable[[], None] = lambda: None) -> HeldEntry:
        """Compute an item's checksum; raise ``FileChanged`` if the program has written to it.

        ``check`` is called periodically, and may raise an exception to abort.
        """
        if item.source is None:
            return item
        try:
            digest = _sha256_of(item.source, item.entry.bytes, check)
        except FileNotFoundError:
            raise FileChanged(item.entry.path) from None
        item.check()
        return replace(item, entry=replace(item.entry, sha256=digest))

    def remember(self, items: list[HeldEntry]) -> None:
        """Cache the checksums of uploaded files, to avoid reading them again."""
        self._known = {
            item.place: (item.seen, item.entry.sha256) for item in items if item.entry.sha256
        } | {
            # Include other nodes' entries, which become this node's if their mode changes.
            place: known
            for place, known in self._known.items()
            if place in self._restored.foreign
        }

    def forget(self, digests: set[str]) -> None:
        """Drop checksums from the cache, because the bucket has lost their contents."""
        self._known = {
            place: known for place, known in self._known.items() if known[1] not in digests
        }

    def mark_rewritten(self, path: str) -> None:
        """Record that the program modifies a file in place; from now on it is copied."""
        for root in Root:
            self._rewritten.add((root, path))

    def release(self) -> None:
        """Release everything that was captured."""
        shutil.rmtree(self._staging, ignore_errors=True)


def _sha256_of(path: Path, count: int, check: Callable[[], None]) -> str:
    """Return the checksum of the first ``count`` bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while count and (block := file.read(min(_BLOCK, count))):
            check()
            digest.update(block)
            count -= len(block)
    return digest.hexdigest()


def _copy(source: int, target: int, count: int) -> None:
    """Copy within the kernel if possible, which shares blocks if the file system supports that."""
    done = 0
    while done < count:
        try:
            moved = os.copy_file_range(source, target, count - done, done, done)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            block = os.pread(source, min(_BLOCK, count - done), done)
            moved = os.pwrite(target, block, done) if block else 0
        if not moved:
            return  # the source was truncated
        done += moved


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _relative_target(folder: Path, path: str, target: str) -> str:
    """Make an absolute link into the folder relative, since the folder's path may change."""
    root = f"{folder}/"
    if not target.startswith(root):
        return target
    return os.path.relpath(target, folder / Path(path).parent)
