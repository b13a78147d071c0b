"""Chooses what of a snapshot a node is given when it has no room for the files of all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from training.program.snapshots.manifest import (
    EntryKind,
    JobSnapshot,
    Root,
    SnapshotEntry,
    size_text,
)

_SMALL_BYTES = 64 * 1024 * 1024
_RESERVE = 0.1
"""Part of the free disk that files of other nodes do not fill."""
_NAMES = 3


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
        names = ", ".join(entry.path for entry in self.left_out[:_NAMES])
        more = ", ..." if len(self.left_out) > _NAMES else ""
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
