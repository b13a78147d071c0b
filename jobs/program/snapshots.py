"""Complete snapshots of a run, as the nodes left them in the bucket, and going back to one.

A job begins with the newest snapshot, and so do its later attempts. So to go back, the chosen one
is repeated under a new number: the next attempts, jobs and retention then need to know nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from jobs.job import counted
from jobs.output.console import human
from trainium_catalogue import contract
from trainium_catalogue.typed_json import typed

FORMAT = 1
CHECKPOINTS_ROOT = "checkpoints"
"""Files of the folder that the program writes; others are the compile cache."""
NONE = "none"
"""The choice of no snapshot."""
_NAME = re.compile(r"(\d{8})\.json")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_LISTED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """A file of a snapshot."""

    root: str
    path: str
    bytes: int
    sha256: str
    mode: int = 0o644
    nodes: tuple[int, ...] = ()
    """The nodes that have exactly this one."""

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.sha256) or self.bytes < 0:
            raise ValueError(f"{self.path!r} has no such digest or size")

    @property
    def node(self) -> int:
        """The first of its nodes."""
        return min(self.nodes, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """What is read of a snapshot's manifest."""

    files: tuple[SnapshotFile, ...] = ()
    at: str = ""
    nodes: int = 0
    bytes: int = 0
    chosen: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A complete snapshot."""

    number: int
    at: str
    nodes: int
    bytes: int
    files: tuple[SnapshotFile, ...]
    chosen: int | None = None
    """The one that it repeats because a submission chose that; 0: none at all."""

    @property
    def shown(self) -> str:
        """Its number, and that of the one it repeats."""
        return f"{self.number} (that is {self.chosen} again)" if self.chosen else str(self.number)

    @property
    def checkpoints(self) -> tuple[SnapshotFile, ...]:
        """Files that the program wrote."""
        return tuple(file for file in self.files if file.root == CHECKPOINTS_ROOT)


def newest_snapshot(bucket: Bucket, run: str) -> Snapshot | None:
    """Read the newest complete snapshot; None before there is one."""
    for number in reversed(snapshot_numbers(bucket, run)):
        found = read_snapshot(bucket, run, number)
        if found is not None:  # a node may remove old ones meanwhile
            return found
    return None


def snapshot_numbers(bucket: Bucket, run: str) -> list[int]:
    """List the numbers of the complete snapshots, oldest first."""
    names = bucket.names(contract.run_prefix(run, "snapshots"))
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def read_snapshot(bucket: Bucket, run: str, number: int) -> Snapshot | None:
    """Read one snapshot; None if there is none of that number, or nothing that can be read."""
    document = bucket.document(manifest_key(run, number))
    if document is None:
        return None
    try:
        found = typed(document, _Manifest)
    except ValueError:
        return None  # nodes leave such a manifest out too
    return Snapshot(
        number=number,
        at=found.at,
        nodes=found.nodes,
        bytes=found.bytes,
        files=found.files,
        chosen=found.chosen,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The snapshot that a submission goes back to."""

    number: int
    """0: none, so that the program begins anew."""
    newest: int
    snapshot: Snapshot | None
    passed: tuple[int, ...]
    """Newer snapshots, which the run does not continue from."""

    @property
    def passed_shown(self) -> str:
        """The numbers of the newer ones."""
        words = [str(number) for number in self.passed]
        return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def find_snapshot(bucket: Bucket, run: str, word: str, option: str) -> Snapshot:
    """Find the snapshot that an option names; refuse one that is not there."""
    number = int(word) if word.isdecimal() else 0
    found = read_snapshot(bucket, run, number)
    if found is None:
        raise Refusal(
            "no-such-snapshot",
            f"{option} {word}: run {run} has no such snapshot; {_listed(bucket, run)}",
        )
    return found


def chosen_snapshot(bucket: Bucket, run: str, word: str) -> Choice:
    """Find what ``--from-snapshot`` names."""
    found = None if word == NONE else find_snapshot(bucket, run, word, "--from-snapshot")
    number = 0 if found is None else found.number
    numbers = snapshot_numbers(bucket, run)
    return Choice(
        number=number,
        newest=max(numbers, default=0),
        snapshot=found,
        passed=tuple(other for other in numbers if other > number),
    )


def go_back(bucket: Bucket, run: str, choice: Choice) -> None:
    """Make the chosen snapshot the newest one; the newer ones stay until retention's turn."""
    if not choice.passed:
        return  # it is the newest, or there is none
    number = choice.newest + 1
    source = bucket.document(manifest_key(run, choice.number or choice.newest)) or {}
    document = {**source, "number": number, "chosen": choice.number}
    if not choice.number:
        # The graphs that were compiled are as good for a program that begins anew.
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
            f"--from-snapshot: somebody else has just written snapshot {number} of run {run}; look "
            f"at `python -m jobs status {run}`, and submit again",
        )


def _listed(bucket: Bucket, run: str) -> str:
    """Name the snapshots that can be chosen, newest first."""
    numbers = snapshot_numbers(bucket, run)[::-1]
    found = [read_snapshot(bucket, run, number) for number in numbers[:_MOST_LISTED]]
    shown = [
        f"{item.number} ({item.at}, {counted(len(item.checkpoints), 'file')}, {human(item.bytes)})"
        for item in found
        if item is not None
    ]
    if not shown:
        return f"it has none; leave the option out, or submit with --from-snapshot {NONE}"
    more = f" and {len(numbers) - len(shown)} older" if len(numbers) > len(shown) else ""
    return f"it has {', '.join(shown)}{more}; choose one of them"


def object_key(run: str, sha256: str) -> str:
    """Key of the contents of a snapshot's file."""
    return f"{contract.run_prefix(run, 'snapshots')}objects/{sha256}"


def manifest_key(run: str, number: int) -> str:
    """Key of a complete snapshot."""
    return f"{contract.run_prefix(run, 'snapshots')}{number:08d}.json"
