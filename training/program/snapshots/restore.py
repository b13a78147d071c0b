"""Restore the newest complete snapshot on a node before the program starts."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from training.core.files import sha256_of, write_whole
from training.core.threads import in_threads
from training.program.settings import NotPrepared, Workspace
from training.program.snapshots.capture import NOTHING, Place, RestoredEntries
from training.program.snapshots.folder import FileState, file_state
from training.program.snapshots.graphs import usable
from training.program.snapshots.manifest import (
    OBJECTS,
    EntryKind,
    JobSnapshot,
    Root,
    SnapshotEntry,
    clock_text,
    object_key,
    size_text,
    snapshot_key,
    snapshot_numbers,
)
from training.program.snapshots.process import SnapshotSettings, open_snapshots
from training.storage import ObjectMissing, Objects
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.safe_folder import SafeFolder, user_mode
from trainium_catalogue.wording import counted

RECORD = "restored.json"
_PART_BYTES = 16 * 1024 * 1024
_AT_ONCE = 16
_SMALL_BYTES = 64 * 1024 * 1024
_RESERVE = 0.1
"""Share of the free disk space that other nodes' files must leave free."""
_SHOWN_NAMES = 3
_ORDER = (EntryKind.FOLDER, EntryKind.FILE, EntryKind.LINK)

log = logging.getLogger(__name__)


class InsufficientSpace(OSError):
    """The snapshot does not fit on the disk."""


class NoRestorableSnapshot(Exception):
    """A run has snapshots, but none of them can be restored."""


class _Damaged(Exception):
    """A snapshot cannot be restored; the message names the file and the reason."""


def restore_for_program(workspace: Workspace) -> bool:
    """Restore the run's newest snapshot; return whether the checkpoint folder now has files."""
    settings = SnapshotSettings.of(workspace.node, workspace.settings, workspace.folders)
    workspace.report("restoring checkpoints")
    try:
        objects = open_snapshots(workspace.bucket, settings.run)
        snapshot = restore(objects, settings, report=workspace.report)
    except InsufficientSpace as error:
        raise NotPrepared(ExitCode.PREFLIGHT, f"no space left on the node: {error}") from None
    except NoRestorableSnapshot as error:
        raise NotPrepared(ExitCode.CONFIGURATION, str(error)) from None
    entries = snapshot.for_node(settings.node) if snapshot is not None else ()
    return any(e.root is Root.CHECKPOINTS and e.kind is EntryKind.FILE for e in entries)


def restore(
    objects: Objects, target: SnapshotSettings, *, report: Callable[[str], None] = lambda text: None
) -> JobSnapshot | None:
    """Restore the newest valid snapshot; return None if the run has none or should use none.

    ``objects`` is rooted at the run's ``snapshots/``. Snapshots with missing or damaged contents
    are logged and skipped. Raises ``NoRestorableSnapshot`` if none is left, since a program without
    a checkpoint would start over, and ``InsufficientSpace`` if the disk is too small.
    """
    began_s = time.monotonic()
    below = math.inf
    refused: list[int] = []
    for number in reversed(snapshot_numbers(objects)):
        if number >= below:
            continue  # a submission chose an earlier snapshot (--from-snapshot)
        try:
            snapshot = JobSnapshot.decode(objects.get(snapshot_key(number)))
            below = number if snapshot.chosen is None else snapshot.chosen
            wanted = _without_unusable_graphs(snapshot.for_node(target.node))
            entries = _fetch(objects, target, snapshot, wanted, report)
        except ObjectMissing:
            continue  # it has been deleted
        except (ValueError, _Damaged) as error:
            log.info("launch: snapshot %d cannot be restored: %s", number, error)
            refused.append(number)
            continue
        files = [entry for entry in entries if entry.kind is EntryKind.FILE]
        log.info(
            "launch: snapshot %d of %s, %s, %s, restored in %.1f s",
            *(number, clock_text(snapshot.at), counted(len(files), "file")),
            *(size_text(sum(entry.bytes for entry in files)), time.monotonic() - began_s),
        )
        return snapshot
    if refused and below > 0:
        raise NoRestorableSnapshot(
            f"no snapshot of the run can be restored: {', '.join(map(str, refused))} "
            f"{'is' if len(refused) == 1 else 'are'} damaged in {objects.uri} (see above); restore "
            "the objects' previous versions, or submit again with --from-snapshot none to "
            "start without a checkpoint"
        )
    for folder in target.folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return None


def _without_unusable_graphs(entries: Sequence[SnapshotEntry]) -> list[SnapshotEntry]:
    # Drop links, which the compiler never creates but would write through.
    graphs = [e for e in entries if e.root is Root.CACHE and e.kind is not EntryKind.LINK]
    wanted = usable(entry.path for entry in graphs)
    others = [entry for entry in entries if entry.root is not Root.CACHE]
    return [*others, *(entry for entry in graphs if entry.path in wanted)]


def _fetch(
    objects: Objects,
    target: SnapshotSettings,
    snapshot: JobSnapshot,
    entries: Sequence[SnapshotEntry],
    report: Callable[[str], None],
) -> Sequence[SnapshotEntry]:
    """Download to a temporary folder, then move into place; return the restored entries."""
    arriving = target.scratch / "arriving"
    shutil.rmtree(arriving, ignore_errors=True)
    arriving.mkdir(parents=True)
    try:
        free = shutil.disk_usage(arriving).free
        selection = select(
            snapshot, entries, node=target.node, num_nodes=target.num_nodes, free=free
        )
        if selection.needed > free:
            _check_sizes(objects, selection.entries)
            others = (
                f" for the files of all {counted(snapshot.nodes, 'node')}, because the number of "
                f"nodes is now {target.num_nodes}"
                if snapshot.nodes != target.num_nodes
                else ""
            )
            raise InsufficientSpace(
                f"snapshot {snapshot.number} needs {size_text(selection.needed)}{others}, but "
                f"only {size_text(free)} is free at {target.scratch}; give the nodes a larger "
                "volume (context key root_volume_gib)"
            )
        if selection.skipped:
            log.info("launch: snapshot %d: %s", snapshot.number, selection.explain(free))
        entries = selection.entries
        wanted = {entry.sha256: entry for entry in entries if entry.kind is EntryKind.FILE}
        _download(objects, arriving, list(wanted.values()), report)
        _place(arriving, target, snapshot, entries, report)
        return entries
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


def _check_sizes(objects: Objects, entries: Sequence[SnapshotEntry]) -> None:
    """Raise ``_Damaged`` if sizes in the manifest and the bucket differ."""
    sizes = {info.key: info.size for info in objects.list(OBJECTS)}
    for entry in entries:
        if entry.kind is EntryKind.FILE and sizes.get(object_key(entry.sha256)) != entry.bytes:
            raise _Damaged(f"{entry.path!r} does not have {entry.bytes} bytes in the bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSelection:
    """The entries to restore on a node."""

    entries: Sequence[SnapshotEntry]
    skipped: Sequence[SnapshotEntry] = ()
    """Large files of other nodes."""

    @property
    def needed(self) -> int:
        """Disk space needed in bytes."""
        return sum(entry.bytes for entry in self.entries)

    def explain(self, free: int) -> str:
        """Describe the skipped files, with reason and remedy."""
        names = ", ".join(entry.path for entry in self.skipped[:_SHOWN_NAMES])
        more = ", ..." if len(self.skipped) > _SHOWN_NAMES else ""
        return (
            f"skipping {counted(len(self.skipped), 'large file')} of other nodes, "
            f"{size_text(sum(entry.bytes for entry in self.skipped))} in total, because "
            f"only {size_text(free)} is free ({names}{more}); a program that reads the files of "
            "all nodes on each of them needs a larger volume (context key root_volume_gib)"
        )


def select(
    snapshot: JobSnapshot, entries: Sequence[SnapshotEntry], *, node: int, num_nodes: int, free: int
) -> RestoreSelection:
    """Choose among the entries for a node.

    If the number of nodes has not changed, a node needs its own files, the main node's, and small
    files such as metadata; of other nodes' large files it gets as many as fit, newest first. If it
    has changed, a node may need all files.
    """
    if snapshot.nodes != num_nodes:
        return RestoreSelection(entries=entries)
    large = [entry for entry in entries if _is_optional(snapshot, entry, node)]
    room = free * (1 - _RESERVE) - sum(entry.bytes for entry in set(entries).difference(large))
    skipped = []
    for entry in sorted(large, key=lambda entry: -entry.mtime_ns):
        if entry.bytes <= room:
            room -= entry.bytes
        else:
            skipped.append(entry)
    missing = set(skipped)
    selected = [entry for entry in entries if entry not in missing]
    return RestoreSelection(entries=selected, skipped=skipped)


def too_large(snapshot: JobSnapshot, node: int, room: int) -> str:
    """Explain the consequences if all nodes' files exceed ``room``; return "" if they fit."""
    needed = sum(entry.bytes for entry in snapshot.for_node(node))
    if needed <= room:
        return ""
    return (
        f"the files of all nodes need {size_text(needed)}, but a node has room for "
        f"{size_text(room)}: the next attempt on {counted(snapshot.nodes, 'node')} restores each "
        "node's own files, and as many of the others' large files as fit; on a different number of "
        "nodes it cannot start unless they have a larger volume (context key root_volume_gib)"
    )


def _is_optional(snapshot: JobSnapshot, entry: SnapshotEntry, node: int) -> bool:
    return (
        entry.root is Root.CHECKPOINTS
        and entry.kind is EntryKind.FILE
        and entry.bytes > _SMALL_BYTES
        and node not in entry.nodes
        and snapshot.main not in entry.nodes
    )


class _FileDownload:
    """A file downloaded in parts."""

    def __init__(self, folder: Path, entry: SnapshotEntry) -> None:
        self.entry = entry
        self.path = folder / entry.sha256
        self._remaining = max(1, -(-entry.bytes // _PART_BYTES))
        self._lock = threading.Lock()

    @property
    def starts(self) -> range:
        """Offsets of the parts."""
        return range(0, max(1, self.entry.bytes), _PART_BYTES)

    def fetch(self, objects: Objects, start: int) -> int:
        """Download one part, and verify the file after the last one; return the part's size."""
        length = min(_PART_BYTES, self.entry.bytes - start)
        # Request one byte beyond the end to detect an object that is too long.
        beyond = 1 if start + length == self.entry.bytes else 0
        try:
            data = objects.get_range(object_key(self.entry.sha256), start, length + beyond)
        except ObjectMissing:
            raise _Damaged(f"{self.entry.path} is missing from the bucket") from None
        if len(data) != length:
            raise _Damaged(
                f"{self.entry.path} does not have {self.entry.bytes} bytes in the bucket"
            )
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.seek(start)
            file.write(data)
        with self._lock:
            self._remaining -= 1
            if self._remaining:
                return length
        if sha256_of(self.path) != self.entry.sha256:
            raise _Damaged(f"{self.entry.path} is damaged in the bucket: its SHA-256 differs")
        return length


def _download(
    objects: Objects, folder: Path, entries: Sequence[SnapshotEntry], report: Callable[[str], None]
) -> None:
    total, done = sum(entry.bytes for entry in entries), 0
    # Largest first, so that no large file starts last.
    parts = [
        partial(file.fetch, objects, start)
        for file in (_FileDownload(folder, e) for e in sorted(entries, key=lambda e: -e.bytes))
        for start in file.starts
    ]
    for count in in_threads(lambda fetch: fetch(), parts, at_once=_AT_ONCE, name="restore"):
        done += count
        report(f"restoring: {size_text(done)} of {size_text(total)}")


def _place(
    arriving: Path,
    target: SnapshotSettings,
    snapshot: JobSnapshot,
    entries: Sequence[SnapshotEntry],
    report: Callable[[str], None],
) -> None:
    """Create folders, then files, then links.

    The program's own links or files that are in the way are removed, so that nothing is written
    through them.
    """
    folders = {root: SafeFolder(folder, replace=True) for root, folder in target.folders.items()}
    for root_folder in target.folders.values():
        root_folder.mkdir(parents=True, exist_ok=True)
    uses = Counter(entry.sha256 for entry in entries if entry.kind is EntryKind.FILE)
    for entry in sorted(entries, key=lambda entry: _ORDER.index(entry.kind)):
        folder, path = folders[entry.root], entry.path
        match entry.kind:
            case EntryKind.FOLDER:
                folder.make_folder(path)
            case EntryKind.FILE:
                uses[entry.sha256] -= 1
                transfer = folder.copy_in if uses[entry.sha256] else folder.move_in
                mode = user_mode(entry.mode)
                transfer(arriving / entry.sha256, path, mode=mode, mtime_ns=entry.mtime_ns)
            case EntryKind.LINK:
                folder.link(path, entry.target)
        report("restoring: moving files into place")
    # Folder modes last, because a folder may not be writable.
    for entry in sorted(entries, key=lambda entry: -entry.path.count("/")):
        if entry.kind is EntryKind.FOLDER:
            folders[entry.root].set_folder_mode(entry.path, user_mode(entry.mode))
    _write_record(target, snapshot, entries)


def _write_record(
    target: SnapshotSettings, snapshot: JobSnapshot, entries: Sequence[SnapshotEntry]
) -> None:
    present = set(range(target.num_nodes))
    documents = []
    for entry in entries:
        owners = present.intersection(entry.nodes)
        # Entries of nodes that this job lacks now belong to the main node.
        own = target.node in owners or (not owners and target.node == target.main)
        documents.append(
            {
                "root": entry.root,
                "path": entry.path,
                "sha256": entry.sha256,
                "seen": file_state(target.folders[entry.root] / entry.path),
                "own": own or entry.root is Root.CACHE,
            }
        )
    record = {"number": snapshot.number, "entries": documents}
    write_whole(target.scratch / RECORD, json.dumps(record).encode())


def read_record(scratch: Path) -> RestoredEntries:
    """Read the record of entries restored into this launch's folders."""
    try:
        record = json.loads((scratch / RECORD).read_text())
    except FileNotFoundError:
        return NOTHING
    seen: dict[Place, FileState] = {}
    digests: dict[Place, str] = {}
    foreign: set[Place] = set()
    for item in record["entries"]:
        place = Root(item["root"]), item["path"]
        kind, *rest = item["seen"]
        seen[place] = FileState(EntryKind(kind), *rest)
        if item["sha256"]:
            digests[place] = item["sha256"]
        if not item["own"]:
            foreign.add(place)
    return RestoredEntries(seen=seen, digests=digests, foreign=frozenset(foreign))
