"""Complete snapshots of a run in the bucket, and rollback to one of them.

A job and its retries resume from the newest snapshot. So to roll back, the chosen snapshot is
copied under a new number: later attempts, jobs and retention need no special handling.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from jobs.output.console import human
from trainium_catalogue import contract
from trainium_catalogue.typed_json import typed
from trainium_catalogue.wording import counted

FORMAT = 1
CHECKPOINTS_ROOT = "checkpoints"
"""Root of the program's files; the other one is the compile cache."""
NONE = "none"
"""Value for no snapshot."""
_NAME = re.compile(r"(\d{8})\.json")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_LISTED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """A file of a snapshot."""

    root: str
    path: str
    bytes: int
    sha256: str
    mode: int = 0o644
    nodes: tuple[int, ...] = ()
    """The nodes that have exactly this file."""

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.sha256) or self.bytes < 0:
            raise ValueError(f"{self.path!r} has an invalid digest or size")

    @property
    def node(self) -> int:
        """The first of its nodes."""
        return min(self.nodes, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A complete snapshot, read from its manifest."""

    number: int
    at: str = ""
    nodes: int = 0
    bytes: int = 0
    files: tuple[SnapshotFile, ...] = ()
    chosen: int | None = None
    """Number of the snapshot that a submission chose and this one copies; 0 to start over; None if
    nodes wrote it."""

    @property
    def shown(self) -> str:
        """Its number, and the number of the snapshot that it copies."""
        return f"{self.number} (a copy of {self.chosen})" if self.chosen else str(self.number)

    @property
    def checkpoints(self) -> tuple[SnapshotFile, ...]:
        """Files written by the program."""
        return tuple(file for file in self.files if file.root == CHECKPOINTS_ROOT)


def newest_snapshot(bucket: Bucket, run: str) -> Snapshot | None:
    """Read the newest complete snapshot; None before there is one."""
    for number in reversed(snapshot_numbers(bucket, run)):
        snapshot = read_snapshot(bucket, run, number)
        if snapshot is not None:  # nodes may remove old ones concurrently
            return snapshot
    return None


def snapshot_numbers(bucket: Bucket, run: str) -> list[int]:
    """List the numbers of the complete snapshots, oldest first."""
    names = bucket.names(contract.run_prefix(run, "snapshots"))
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def read_snapshot(bucket: Bucket, run: str, number: int) -> Snapshot | None:
    """Read one snapshot; None if it does not exist or cannot be read."""
    document = bucket.document(manifest_key(run, number))
    if document is None:
        return None
    try:
        return typed({**document, "number": number}, Snapshot)
    except ValueError:
        return None  # nodes skip such a manifest too


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChoice:
    """The snapshot that a submission rolls back to."""

    number: int
    """Number; 0 for none, to start over."""
    newest: int
    snapshot: Snapshot | None
    skipped: tuple[int, ...]
    """Newer snapshots, which are skipped."""

    @property
    def skipped_text(self) -> str:
        """Numbers of the skipped snapshots."""
        words = [str(number) for number in self.skipped]
        return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def find_snapshot(bucket: Bucket, run: str, word: str, option: str) -> Snapshot:
    """Find the snapshot named by an option; refuse one that does not exist."""
    number = int(word) if word.isdecimal() else 0
    snapshot = read_snapshot(bucket, run, number)
    if snapshot is None:
        raise Refusal(
            "no-such-snapshot",
            f"{option} {word}: run {run} has no such snapshot; {_listed(bucket, run)}",
        )
    return snapshot


def choose_snapshot(bucket: Bucket, run: str, word: str) -> SnapshotChoice:
    """Find the snapshot for ``--from-snapshot``."""
    snapshot = None if word == NONE else find_snapshot(bucket, run, word, "--from-snapshot")
    number = 0 if snapshot is None else snapshot.number
    numbers = snapshot_numbers(bucket, run)
    return SnapshotChoice(
        number=number,
        newest=max(numbers, default=0),
        snapshot=snapshot,
        skipped=tuple(other for other in numbers if other > number),
    )


def roll_back(bucket: Bucket, run: str, choice: SnapshotChoice) -> None:
    """Copy the chosen snapshot under the next number; retention removes the skipped ones later."""
    if not choice.skipped:
        return  # it is already the newest, or there is none
    number = choice.newest + 1
    source = bucket.document(manifest_key(run, choice.number or choice.newest)) or {}
    document = {**source, "number": number, "chosen": choice.number}
    if not choice.number:
        # Compiled graphs remain valid when a program starts over.
        if read_snapshot(bucket, run, choice.newest) is None:
            document |= {"format": FORMAT, "nodes": 1, "main": 0}
            source = {}
        for kind in ("files", "links", "folders"):
            items = source.get(kind, [])
            document[kind] = [item for item in items if item["root"] != CHECKPOINTS_ROOT]
        document["bytes"] = sum(int(item["bytes"]) for item in document["files"])
        document["at"] = datetime.now(UTC).isoformat()
    data = json.dumps(document).encode()
    if bucket.replace(manifest_key(run, number), data, etag=None) is None:
        raise Refusal(
            "snapshot-made-meanwhile",
            f"--from-snapshot: snapshot {number} of run {run} was just written; check `python -m "
            f"jobs status {run}`, and submit again",
        )


def _listed(bucket: Bucket, run: str) -> str:
    """List the snapshots to choose from, newest first."""
    numbers = snapshot_numbers(bucket, run)[::-1]
    snapshots = [read_snapshot(bucket, run, number) for number in numbers[:_MAX_LISTED]]
    shown = [
        f"{item.number} ({item.at}, {counted(len(item.checkpoints), 'file')}, {human(item.bytes)})"
        for item in snapshots
        if item is not None
    ]
    if not shown:
        return "it has none; omit the option"
    more = f" and {len(numbers) - len(shown)} older" if len(numbers) > len(shown) else ""
    return f"it has {', '.join(shown)}{more}; choose one of them"


def object_key(run: str, sha256: str) -> str:
    """Return the key of the contents of a snapshot's file."""
    return f"{contract.run_prefix(run, 'snapshots')}objects/{sha256}"


def manifest_key(run: str, number: int) -> str:
    """Return the key of a complete snapshot's manifest."""
    return f"{contract.run_prefix(run, 'snapshots')}{number:08d}.json"
