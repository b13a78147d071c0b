"""The contents of a snapshot, and its layout in the bucket.

Below ``runs/<run>/snapshots/``:

- ``objects/<sha256>``: contents, each uploaded once;
- ``<number>.json``: a complete snapshot, written after everything it references.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any

from training.storage import Objects
from trainium_catalogue.documents import (
    OPTIONAL,
    Keywords,
    Natural,
    Positive,
    Sha256,
    Timestamp,
    as_document,
    picked,
)
from trainium_catalogue.safe_folder import check_link_target, path_parts
from trainium_catalogue.typed_json import read_object, typed

FORMAT = 1
OBJECTS = "objects/"
_NUMBER = re.compile(r"(\d{8})\.json")
_MAX_TIME_NS = 2**62
"""More than a hundred years after 1970, within the range of file systems."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LOGS = re.compile(r".*\.(log|csv|jsonl)|.*\.tfevents\..*", re.IGNORECASE)


class Root(StrEnum):
    """A node's persisted folders."""

    CHECKPOINTS = "checkpoints"
    """The program's checkpoint folder."""
    CACHE = "cache"
    """Compiled graphs."""


class EntryKind(StrEnum):
    """Kinds of entries in a persisted folder; pipes and sockets are skipped."""

    FILE = "file"
    LINK = "link"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEntry:
    """A file, symbolic link or folder in a snapshot."""

    root: Root
    path: str
    """Relative to the root, separated by ``/``."""
    kind: EntryKind = EntryKind.FILE
    mode: int = 0o644
    bytes: int = 0
    sha256: str = ""
    """SHA-256 of a file's content, in hexadecimal."""
    mtime_ns: int = 0
    target: str = ""
    """Target of a symbolic link."""
    nodes: tuple[int, ...] = ()
    """Nodes that have exactly this entry at this path."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Key that is equal for entries with the same content, regardless of times and modes."""
        return self.kind, self.sha256, self.target

    @staticmethod
    def read(kind: EntryKind, document: Mapping[str, Any]) -> SnapshotEntry:
        """Parse ``document``; raise ``ValueError`` if it is unsafe to restore."""
        entry = typed({**document, "kind": kind}, SnapshotEntry)
        path_parts(entry.path)
        if kind is EntryKind.FILE and not _DIGEST.fullmatch(entry.sha256):
            raise ValueError(f"{entry.path!r} has no SHA-256")
        if kind is EntryKind.LINK:
            check_link_target(entry.target)
        if entry.bytes < 0 or abs(entry.mtime_ns) >= _MAX_TIME_NS:
            raise ValueError(
                f"{entry.path!r}: its size of {entry.bytes} bytes or time of {entry.mtime_ns} ns "
                "is out of range"
            )
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """A file in a manifest."""

    root: Root
    path: str
    bytes: Natural
    sha256: Sha256
    mode: int
    mtime_ns: int = field(default=0, metadata=OPTIONAL)
    nodes: tuple[Natural, ...] = field(default=(), metadata=OPTIONAL)
    """Nodes that have exactly this entry at this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLink:
    """A symbolic link in a manifest."""

    root: Root
    path: str
    target: str
    nodes: tuple[Natural, ...] = field(default=(), metadata=OPTIONAL)
    """Nodes that have exactly this entry at this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFolder:
    """A folder in a manifest."""

    root: Root
    path: str
    mode: int
    nodes: tuple[Natural, ...] = field(default=(), metadata=OPTIONAL)
    """Nodes that have exactly this entry at this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """A complete snapshot of a program's folder on all nodes, written after all its contents.

    The content of a file is objects/<its sha256>.
    """

    format: Annotated[int, Keywords(const=1)] = FORMAT
    number: Positive
    at: Timestamp
    nodes: Positive
    main: Natural
    """The main node."""
    bytes: Natural
    chosen: Natural | None = field(default=None, metadata=OPTIONAL)
    """The earlier snapshot that this one repeats, because a submission chose it with
    --from-snapshot; 0 if it chose none, so that this one has only compiled graphs."""
    files: tuple[ManifestFile, ...]
    links: tuple[ManifestLink, ...] = field(default=(), metadata=OPTIONAL)
    folders: tuple[ManifestFolder, ...] = field(default=(), metadata=OPTIONAL)


_KINDS: Mapping[EntryKind, type[Any]] = {
    EntryKind.FILE: ManifestFile,
    EntryKind.LINK: ManifestLink,
    EntryKind.FOLDER: ManifestFolder,
}
_LISTS = {EntryKind.FILE: "files", EntryKind.LINK: "links", EntryKind.FOLDER: "folders"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lists:
    """The lists of a document; a refusal names the one that is invalid."""

    files: tuple[Mapping[str, Any], ...] = ()
    links: tuple[Mapping[str, Any], ...] = ()
    folders: tuple[Mapping[str, Any], ...] = ()


def _by_kind(entries: Iterable[SnapshotEntry]) -> dict[str, Any]:
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS.values()}
    for entry in entries:
        lists[_LISTS[entry.kind]].append(picked(_KINDS[entry.kind], entry))
    return {name: tuple(items) for name, items in lists.items()}


def entries_document(entries: Iterable[SnapshotEntry]) -> dict[str, list[dict[str, Any]]]:
    """Convert entries to one list per kind, for JSON."""
    document: dict[str, list[dict[str, Any]]] = as_document(_by_kind(entries))
    return document


def read_entries(document: Mapping[str, Any]) -> tuple[SnapshotEntry, ...]:
    """Parse the lists of ``entries_document``; raise ``ValueError`` if they are invalid."""
    lists = typed(document, _Lists)
    return tuple(
        SnapshotEntry.read(kind, item)
        for kind, name in _LISTS.items()
        for item in getattr(lists, name)
    )


def is_log(path: str) -> bool:
    """Return whether a file's name marks it as append-only.

    Such files are written continuously, and any prefix of them is valid.
    """
    return _LOGS.fullmatch(path.rpartition("/")[2]) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSummary:
    """A snapshot as shown in a program's status."""

    number: int
    at: Timestamp
    files: int
    bytes: int
    chosen: int | None = field(default=None, metadata=OPTIONAL)
    """The earlier snapshot that this one repeats, if a submission chose it; 0 if it chose none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """A complete snapshot of the whole job at one instant."""

    number: int
    at: str
    """Time of the instant, ISO 8601."""
    nodes: int
    main: int
    """The main node."""
    entries: tuple[SnapshotEntry, ...]
    chosen: int | None = None
    """The earlier snapshot that this one repeats, because a submission chose it; 0 if it chose
    none. Snapshots between the two are not restored."""

    def __post_init__(self) -> None:
        if min(self.number, self.nodes, self.main, self.chosen or 0) < 0:
            raise ValueError("it contains a negative number")

    @property
    def key(self) -> str:
        """Key of the manifest."""
        return snapshot_key(self.number)

    @property
    def files(self) -> list[SnapshotEntry]:
        """The files of all nodes."""
        return [entry for entry in self.entries if entry.kind is EntryKind.FILE]

    @property
    def size(self) -> int:
        """Total size of all nodes' files in bytes."""
        return sum(entry.bytes for entry in self.files)

    @property
    def digests(self) -> set[str]:
        """Digests of the referenced contents."""
        return {entry.sha256 for entry in self.files}

    @property
    def substance(self) -> str:
        """Key that is equal for snapshots that differ only in logs and compiled graphs."""
        essential = [
            (*entry.identity, entry.path, entry.nodes)
            for entry in self.entries
            if entry.root is Root.CHECKPOINTS and not is_log(entry.path)
        ]
        return hashlib.sha256(repr(sorted(essential)).encode()).hexdigest()

    @property
    def summary(self) -> SnapshotSummary:
        """The snapshot's summary for the status."""
        return picked(SnapshotSummary, self, files=len(self.files), bytes=self.size)

    def encode(self) -> bytes:
        """Encode the manifest."""
        entries = _by_kind(self.entries)
        manifest = picked(SnapshotManifest, self, format=FORMAT, bytes=self.size, **entries)
        return json.dumps(as_document(manifest)).encode()

    @staticmethod
    def decode(data: bytes) -> JobSnapshot:
        """Parse a manifest; raise ``ValueError`` if it is invalid."""
        document = read_object(data)
        if document.get("format") != FORMAT:
            raise ValueError(f"it has format {document.get('format')}, not {FORMAT}")
        head = typed({**document, "entries": ()}, JobSnapshot)
        return replace(head, entries=read_entries(document))

    def for_node(self, node: int) -> list[SnapshotEntry]:
        """Choose the entries to restore on ``node``.

        For each path this is the node's own entry, else the main node's, else the lowest node's.
        """
        chosen: dict[tuple[Root, str], SnapshotEntry] = {}
        for entry in self.entries:
            place = entry.root, entry.path
            known = chosen.get(place)
            if known is None or self._sort_key(node, entry) < self._sort_key(node, known):
                chosen[place] = entry
        return [entry for entry in chosen.values() if not _is_below_file(entry, chosen)]

    def _sort_key(self, node: int, entry: SnapshotEntry) -> tuple[bool, bool, int]:
        """Return a sort key for the entries of one path; ``node`` gets the smallest."""
        return node not in entry.nodes, self.main not in entry.nodes, min(entry.nodes, default=0)


def _is_below_file(entry: SnapshotEntry, chosen: Mapping[tuple[Root, str], SnapshotEntry]) -> bool:
    """Return whether one node has a file or link where another has a folder with this entry."""
    for parent in PurePosixPath(entry.path).parents:
        above = chosen.get((entry.root, str(parent)))
        if above is not None and above.kind is not EntryKind.FOLDER:
            return True
    return False


def union(listings: Mapping[int, Iterable[SnapshotEntry]], main: int) -> tuple[SnapshotEntry, ...]:
    """Merge the listings of all nodes.

    A path with the same content on several nodes becomes one entry. If contents differ, each
    becomes an entry with its nodes; for a compiled graph, one of them is enough.
    """
    order = sorted(listings, key=lambda node: (node != main, node))
    by_path: dict[tuple[Root, str], list[SnapshotEntry]] = {}
    for node in order:
        for entry in listings[node]:
            variants = by_path.setdefault((entry.root, entry.path), [])
            for at, variant in enumerate(variants):
                if variant.identity == entry.identity:
                    variants[at] = replace(variant, nodes=tuple(sorted((*variant.nodes, node))))
                    break
            else:
                if entry.root is not Root.CACHE or not variants:
                    variants.append(replace(entry, nodes=(node,)))
    entries = [entry for variants in by_path.values() for entry in variants]
    kinds = list(EntryKind)
    entries.sort(key=lambda item: (kinds.index(item.kind), item.root, item.path, item.nodes))
    return tuple(entries)


def snapshot_key(number: int) -> str:
    """Return the key of a manifest; keys sort by number."""
    return f"{number:08d}.json"


def object_key(digest: str) -> str:
    """Return the key of the object that contains the file content with this SHA-256."""
    return f"{OBJECTS}{digest}"


def snapshot_numbers(objects: Objects) -> list[int]:
    """Return the numbers of the complete snapshots, oldest first."""
    matches = (_NUMBER.fullmatch(info.key) for info in objects.list("0"))
    return [int(match[1]) for match in matches if match]


def at_text(seconds: float) -> str:
    """Format a time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def clock_text(at: str) -> str:
    """Return the time of day of an ISO 8601 time, for messages."""
    return at[11:19] or at


def size_text(count: float) -> str:
    """Format a number of bytes for humans."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
