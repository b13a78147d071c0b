"""Takes hold of a folder's content at one instant, while the program goes on.

A file gets a second name (a hard link), which costs nothing and outlives deletion and replacement
by the program. Only a file that the program writes to in place can change under that name: this
is noticed afterwards, and such a file is copied from then on.
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
"""Disk that copies leave free."""
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})

log = logging.getLogger(__name__)

Place = tuple[Root, str]


class Changed(Exception):
    """The program has changed a file meanwhile; the message is its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldEntry:
    """An entry of a folder, and where its content can be read at leisure."""

    entry: SnapshotEntry
    """Without its checksum while that is unknown."""
    seen: FileState
    source: Path | None = None
    """None if there is no content, or if its checksum is known."""
    is_private: bool = False
    """True for a copy, which nobody else can change."""
    in_place: bool = False
    """True for the program's own file, which can also vanish."""

    @property
    def place(self) -> Place:
        """Root and path."""
        return self.entry.root, self.entry.path

    def check(self) -> None:
        """Raise ``Changed`` if the content may no longer be what it was."""
        if self.source is None or self.is_private:
            return
        try:
            same = same_content(self.seen, self.source.stat())
        except FileNotFoundError:
            same = False
        if not same:
            raise Changed(self.entry.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore has put into a folder, as long as the program leaves it alone."""

    seen: Mapping[Place, FileState]
    digests: Mapping[Place, str]
    lent: frozenset[Place]
    """Entries that belong to other nodes: they go into no listing of this node.

    Otherwise what another node replaces or deletes would live on in this node's copy, and come
    back with the next restore, here even in place of the new one.
    """


NOTHING = Restored(seen={}, digests={}, lent=frozenset())


class Capture:
    """Takes hold of folders, remembering checksums of files that have not changed."""

    def __init__(self, staging: Path, restored: Restored = NOTHING) -> None:
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
        """Take hold of every entry; ``Changed`` if one is no longer as ``state`` says.

        Of ``logs``, which grow all the time, the beginning that was there is taken.
        """
        self._staging.mkdir(parents=True, exist_ok=True)
        held = [
            self._hold(root, folder, path, seen, path in logs)
            for path, seen in state.items()
            if not self._is_lent(root, path, seen)
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
            or item.place not in self._restored.lent
            or item.entry.path in used
        ]

    def is_as_restored(self, root: Root, state: FolderState) -> bool:
        """Tell if a folder holds what was restored, and nothing else."""
        return all(self._restored.seen.get((root, path)) == seen for path, seen in state.items())

    def _is_lent(self, root: Root, path: str, seen: FileState) -> bool:
        place = root, path
        return (
            seen.kind is not EntryKind.FOLDER
            and place in self._restored.lent
            and self._restored.seen[place] == seen
        )

    def _hold(
        self, root: Root, folder: Path, path: str, seen: FileState, is_log: bool
    ) -> HeldEntry:
        entry = SnapshotEntry(root=root, path=path, kind=seen.kind, mode=seen.mode)
        if seen.kind is EntryKind.LINK:
            target = _inside(folder, path, seen.target)
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
            return self._copied(entry, seen, source, name, is_log=True)
        if (root, path) in self._rewritten:
            try:
                return self._copied(entry, seen, source, name, is_log=False)
            except OSError as error:
                self._warn(error, path)
        else:
            try:
                os.link(source, name, follow_symlinks=False)
                item = HeldEntry(entry=entry, seen=seen, source=name)
                item.check()
                return item
            except FileNotFoundError:
                raise Changed(path) from None
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                try:
                    return self._copied(entry, seen, source, name, is_log=False)
                except OSError as error:
                    self._warn(error, path)
        item = HeldEntry(entry=entry, seen=seen, source=source, in_place=True)
        item.check()
        return item

    def _copied(
        self, entry: SnapshotEntry, seen: FileState, source: Path, name: Path, *, is_log: bool
    ) -> HeldEntry:
        if shutil.disk_usage(self._staging).free < seen.size + _SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            with source.open("rb") as reader, name.open("xb") as writer:
                _copy(reader.fileno(), writer.fileno(), seen.size)
                status = os.fstat(reader.fileno())
        except FileNotFoundError:
            raise Changed(entry.path) from None
        except OSError:
            name.unlink(missing_ok=True)
            raise
        grew = is_log and status.st_ino == seen.inode and status.st_size >= seen.size
        if not (grew or same_content(seen, status)) or name.stat().st_size != seen.size:
            raise Changed(entry.path)
        return HeldEntry(entry=entry, seen=seen, source=name, is_private=True)

    def _warn(self, error: OSError, path: str) -> None:
        """Say once that there is no room for copies; without one, files are read where they are."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise error
        if not self._warned:
            self._warned = True
            log.info(
                "snapshots: no room on the disk for a copy of %s; files are sent from where they "
                "are, and a snapshot is given up if the program writes to one meanwhile; give "
                "the nodes a larger volume (context key root_volume_gib)",
                path,
            )

    def checksum(self, item: HeldEntry, check: Callable[[], None] = lambda: None) -> HeldEntry:
        """Compute an item's checksum; ``Changed`` if the program has written to it.

        ``check`` is called now and then, and may raise an exception to end it.
        """
        if item.source is None:
            return item
        try:
            digest = sha256_of(item.source, item.entry.bytes, check)
        except FileNotFoundError:
            raise Changed(item.entry.path) from None
        item.check()
        return replace(item, entry=replace(item.entry, sha256=digest))

    def remember(self, items: list[HeldEntry]) -> None:
        """Note checksums of what has arrived in the bucket, so that it is not read again."""
        self._known = {
            item.place: (item.seen, item.entry.sha256) for item in items if item.entry.sha256
        } | {
            # What is lent is in no listing, but may become this node's own by a change of mode.
            place: found
            for place, found in self._known.items()
            if place in self._restored.lent
        }

    def forget(self, digests: set[str]) -> None:
        """Read files with these checksums again: the bucket has lost their contents."""
        self._known = {
            place: found for place, found in self._known.items() if found[1] not in digests
        }

    def was_rewritten(self, path: str) -> None:
        """Note that the program writes to a file in place, so that it is copied from now on."""
        for root in Root:
            self._rewritten.add((root, path))

    def release(self) -> None:
        """Let go of everything that was held."""
        shutil.rmtree(self._staging, ignore_errors=True)


def sha256_of(path: Path, count: int, check: Callable[[], None] = lambda: None) -> str:
    """Checksum of the first ``count`` bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while count and (block := file.read(min(_BLOCK, count))):
            check()
            digest.update(block)
            count -= len(block)
    return digest.hexdigest()


def _copy(source: int, target: int, count: int) -> None:
    """Copy within the kernel, which shares blocks where the file system can."""
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
            return  # it has been truncated
        done += moved


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _inside(folder: Path, path: str, target: str) -> str:
    """Make an absolute link into the folder relative: the folder has another place next time."""
    root = f"{folder}/"
    if not target.startswith(root):
        return target
    return os.path.relpath(target, folder / Path(path).parent)
