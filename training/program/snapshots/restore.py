"""Gives a node the newest complete snapshot back, before the program starts."""

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

from training.core.files import write_whole
from training.core.threads import in_threads
from training.program.settings import NotPrepared, Workspace
from training.program.snapshots.capture import NOTHING, Place, Restored, sha256_of
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

RECORD = "restored.json"
_PART_BYTES = 16 * 1024 * 1024
_AT_ONCE = 16
_SMALL_BYTES = 64 * 1024 * 1024
_RESERVE = 0.1
"""Part of the free disk that files of other nodes do not fill."""
_SHOWN_NAMES = 3
_ORDER = (EntryKind.FOLDER, EntryKind.FILE, EntryKind.LINK)

log = logging.getLogger(__name__)


class NoRoom(OSError):
    """The snapshot does not fit on the disk."""


class NothingWhole(Exception):
    """A run has snapshots, and none of them can be restored."""


class _Damaged(Exception):
    """A snapshot cannot be restored; the message says which file, and why."""


def give_back(workspace: Workspace) -> bool:
    """Restore the run's newest snapshot for a program; tell if its kept folder has files now."""
    settings = SnapshotSettings.of(workspace.node, workspace.settings, workspace.folders)
    workspace.report("restoring checkpoints")
    try:
        objects = open_snapshots(workspace.bucket, settings.run)
        snapshot = restore(objects, settings, report=workspace.report)
    except NoRoom as error:
        raise NotPrepared(ExitCode.PREFLIGHT, f"no space left on the node: {error}") from None
    except NothingWhole as error:
        raise NotPrepared(ExitCode.CONFIGURATION, str(error)) from None
    entries = snapshot.for_node(settings.node) if snapshot is not None else ()
    return any(e.root is Root.CHECKPOINTS and e.kind is EntryKind.FILE for e in entries)


def restore(
    objects: Objects, target: SnapshotSettings, *, report: Callable[[str], None] = lambda text: None
) -> JobSnapshot | None:
    """Restore the newest snapshot that is whole; None if the run has none, or is to have none.

    ``objects`` has its root at the run's ``snapshots/``. A snapshot of which a content is missing
    or damaged is left out, with a line in the log; ``NothingWhole`` if that leaves none, since a
    program that finds no checkpoint starts again. ``NoRoom`` if the disk is too small.
    """
    began_s = time.monotonic()
    below = math.inf
    refused: list[int] = []
    for number in reversed(snapshot_numbers(objects)):
        if number >= below:
            continue  # a submission went back behind it
        try:
            snapshot = JobSnapshot.decode(objects.get(snapshot_key(number)))
            below = number if snapshot.chosen is None else snapshot.chosen
            wanted = _without_unusable_graphs(snapshot.for_node(target.node))
            entries = _fetch(objects, target, snapshot, wanted, report)
        except ObjectMissing:
            continue  # cleared away meanwhile
        except (ValueError, _Damaged) as error:
            log.info("launch: snapshot %d cannot be restored: %s", number, error)
            refused.append(number)
            continue
        files = [entry for entry in entries if entry.kind is EntryKind.FILE]
        log.info(
            "launch: snapshot %d of %s, %d files, %s, restored in %.1f s",
            *(number, clock_text(snapshot.at), len(files)),
            *(size_text(sum(entry.bytes for entry in files)), time.monotonic() - began_s),
        )
        return snapshot
    if refused and below > 0:
        raise NothingWhole(
            f"no snapshot of the run can be restored: {', '.join(map(str, refused))} "
            f"{'is' if len(refused) == 1 else 'are'} damaged in {objects.uri} (see above); put the "
            "objects back from their older versions, or submit again with --from-snapshot none to "
            "start without a checkpoint"
        )
    for folder in target.folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return None


def _without_unusable_graphs(entries: Sequence[SnapshotEntry]) -> list[SnapshotEntry]:
    # The compiler makes no links, and would write through one.
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
    """Download into a folder beside, then put everything into its place; returns what was
    restored."""
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
                f", of {snapshot.nodes} nodes, all of which are needed on {target.num_nodes}"
                if snapshot.nodes != target.num_nodes
                else ""
            )
            raise NoRoom(
                f"snapshot {snapshot.number} has {size_text(selection.needed)}{others}, and "
                f"{size_text(free)} are free at {target.scratch}; give the nodes a larger volume "
                "(context key root_volume_gib)"
            )
        if selection.left_out:
            log.info("launch: snapshot %d: %s", snapshot.number, selection.explain(free))
        entries = selection.entries
        wanted = {entry.sha256: entry for entry in entries if entry.kind is EntryKind.FILE}
        _download(objects, arriving, list(wanted.values()), report)
        _place(arriving, target, snapshot, entries, report)
        return entries
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


def _check_sizes(objects: Objects, entries: Sequence[SnapshotEntry]) -> None:
    """Raise ``_Damaged`` if the manifest claims other sizes than the bucket has."""
    sizes = {info.key: info.size for info in objects.list(OBJECTS)}
    for entry in entries:
        if entry.kind is EntryKind.FILE and sizes.get(object_key(entry.sha256)) != entry.bytes:
            raise _Damaged(f"{entry.path!r} has not {entry.bytes} bytes in the bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSelection:
    """What a node is given."""

    entries: Sequence[SnapshotEntry]
    left_out: Sequence[SnapshotEntry] = ()
    """Large files of other nodes."""

    @property
    def needed(self) -> int:
        """Bytes that it needs on the disk."""
        return sum(entry.bytes for entry in self.entries)

    def explain(self, free: int) -> str:
        """Say what is left out, why, and what to do if the program needs it."""
        names = ", ".join(entry.path for entry in self.left_out[:_SHOWN_NAMES])
        more = ", ..." if len(self.left_out) > _SHOWN_NAMES else ""
        return (
            f"{len(self.left_out)} large files of other nodes, "
            f"{size_text(sum(entry.bytes for entry in self.left_out))}, are left out, as "
            f"{size_text(free)} are free ({names}{more}); a program that reads the files of all "
            "nodes on each of them needs a larger volume (context key root_volume_gib)"
        )


def select(
    snapshot: JobSnapshot, entries: Sequence[SnapshotEntry], *, node: int, num_nodes: int, free: int
) -> RestoreSelection:
    """Choose among the entries for a node.

    On the same number of nodes it needs its own files, the main node's, and small ones, such as
    metadata; of the large files of other nodes it gets as many as fit, the newest first. On
    another number of nodes it may need all.
    """
    if snapshot.nodes != num_nodes:
        return RestoreSelection(entries=entries)
    large = [entry for entry in entries if _is_optional(snapshot, entry, node)]
    places = {(entry.root, entry.path) for entry in large}
    room = free * (1 - _RESERVE) - sum(
        entry.bytes for entry in entries if (entry.root, entry.path) not in places
    )
    left_out = []
    for entry in sorted(large, key=lambda entry: -entry.mtime_ns):
        if entry.bytes <= room:
            room -= entry.bytes
        else:
            left_out.append(entry)
    missing = {(entry.root, entry.path) for entry in left_out}
    given = [entry for entry in entries if (entry.root, entry.path) not in missing]
    return RestoreSelection(entries=given, left_out=left_out)


def too_large(snapshot: JobSnapshot, node: int, room: int) -> str:
    """Explain what it means that the files of all nodes do not fit into ``room``; empty if they
    do."""
    needed = sum(entry.bytes for entry in snapshot.for_node(node))
    if needed <= room:
        return ""
    return (
        f"the files of all nodes have {size_text(needed)}, and a node has room for "
        f"{size_text(room)}: the next attempt on {snapshot.nodes} nodes gives each its own files, "
        "and of the large ones of others what fits; on another number of nodes it cannot begin; "
        "for that, give the nodes a larger volume (context key root_volume_gib)"
    )


def _is_optional(snapshot: JobSnapshot, entry: SnapshotEntry, node: int) -> bool:
    return (
        entry.root is Root.CHECKPOINTS
        and entry.kind is EntryKind.FILE
        and entry.bytes > _SMALL_BYTES
        and node not in entry.nodes
        and snapshot.main not in entry.nodes
    )


class _Arrival:
    """A file that arrives in parts."""

    def __init__(self, folder: Path, entry: SnapshotEntry) -> None:
        self.entry = entry
        self.path = folder / entry.sha256
        self._left = max(1, -(-entry.bytes // _PART_BYTES))
        self._lock = threading.Lock()

    @property
    def starts(self) -> range:
        """Offsets of the parts."""
        return range(0, max(1, self.entry.bytes), _PART_BYTES)

    def fetch(self, objects: Objects, start: int) -> int:
        """Download one part; the last one to arrive checks the whole. Returns the bytes."""
        length = min(_PART_BYTES, self.entry.bytes - start)
        # One byte beyond the end shows an object that is too long.
        beyond = 1 if start + length == self.entry.bytes else 0
        try:
            data = objects.get_range(object_key(self.entry.sha256), start, length + beyond)
        except ObjectMissing:
            raise _Damaged(f"{self.entry.path} is missing in the bucket") from None
        if len(data) != length:
            raise _Damaged(f"{self.entry.path} has not {self.entry.bytes} bytes in the bucket")
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.seek(start)
            file.write(data)
        with self._lock:
            self._left -= 1
            if self._left:
                return length
        if sha256_of(self.path, self.entry.bytes) != self.entry.sha256:
            raise _Damaged(f"{self.entry.path} is damaged in the bucket: its SHA-256 is another")
        return length


def _download(
    objects: Objects, folder: Path, entries: Sequence[SnapshotEntry], report: Callable[[str], None]
) -> None:
    total, done = sum(entry.bytes for entry in entries), 0
    # The largest first, so that the last threads do not wait for one that began late.
    parts = [
        partial(arrival.fetch, objects, start)
        for arrival in (_Arrival(folder, e) for e in sorted(entries, key=lambda e: -e.bytes))
        for start in arrival.starts
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
    """Make folders, then files, then links.

    A link or file of the program's own in the way of an entry is removed, so nothing is written
    through it.
    """
    folders = {root: SafeFolder(folder, replace=True) for root, folder in target.folders.items()}
    for kept in target.folders.values():
        kept.mkdir(parents=True, exist_ok=True)
    uses = Counter(entry.sha256 for entry in entries if entry.kind is EntryKind.FILE)
    for entry in sorted(entries, key=lambda entry: _ORDER.index(entry.kind)):
        folder, path = folders[entry.root], entry.path
        match entry.kind:
            case EntryKind.FOLDER:
                folder.make_folder(path)
            case EntryKind.FILE:
                uses[entry.sha256] -= 1
                bring = folder.copy_in if uses[entry.sha256] else folder.move_in
                mode = user_mode(entry.mode)
                bring(arriving / entry.sha256, path, mode=mode, mtime_ns=entry.mtime_ns)
            case EntryKind.LINK:
                folder.link(path, entry.target)
        report("restoring: putting files into their places")
    # Last, because a folder may not be writable.
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
        # What belonged to nodes that this job does not have is the main node's from now on.
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


def read_record(scratch: Path) -> Restored:
    """Read what was restored into this launch's folders."""
    try:
        record = json.loads((scratch / RECORD).read_text())
    except FileNotFoundError:
        return NOTHING
    found: dict[Place, FileState] = {}
    digests: dict[Place, str] = {}
    lent: set[Place] = set()
    for item in record["entries"]:
        place = Root(item["root"]), item["path"]
        kind, *rest = item["seen"]
        found[place] = FileState(EntryKind(kind), *rest)
        if item["sha256"]:
            digests[place] = item["sha256"]
        if not item["own"]:
            lent.add(place)
    return Restored(seen=found, digests=digests, lent=frozenset(lent))
