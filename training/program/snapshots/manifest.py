"""What a snapshot consists of, and its place in the bucket.

Below ``runs/<run>/snapshots/``:

- ``objects/<sha256>``: contents, each uploaded once;
- ``attempt-<n>/<job>/``: what the nodes of one attempt tell each other;
- ``<number>.json``: a complete snapshot, written after everything it names.
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
"""More than a hundred years from 1970, which file systems take."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LOGS = re.compile(r".*\.(log|csv|jsonl)|.*\.tfevents\..*", re.IGNORECASE)


class Root(StrEnum):
    """The folders of a node that are kept."""

    CHECKPOINTS = "checkpoints"
    """The folder that the program writes."""
    CACHE = "cache"
    """Compiled graphs."""


class EntryKind(StrEnum):
    """What may be in a folder that is kept; pipes and sockets hold nothing and are left out."""

    FILE = "file"
    LINK = "link"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEntry:
    """One file, symbolic link or folder of a snapshot."""

    root: Root
    path: str
    """Relative to the root, separated by ``/``."""
    kind: EntryKind = EntryKind.FILE
    mode: int = 0o644
    bytes: int = 0
    sha256: str = ""
    """Of a file's content, in hexadecimal."""
    mtime_ns: int = 0
    target: str = ""
    """Of a symbolic link."""
    nodes: tuple[int, ...] = ()
    """Nodes that have exactly this one at this path."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal for entries that hold the same, whatever their times and modes."""
        return self.kind, self.sha256, self.target

    @staticmethod
    def read(kind: EntryKind, document: Mapping[str, Any]) -> SnapshotEntry:
        """Read ``document``; ``ValueError`` for what must not be written to a disk."""
        entry = typed({**document, "kind": kind}, SnapshotEntry)
        path_parts(entry.path)
        if kind is EntryKind.FILE and not _DIGEST.fullmatch(entry.sha256):
            raise ValueError(f"{entry.path!r} has no SHA-256")
        if kind is EntryKind.LINK:
            check_link_target(entry.target)
        if entry.bytes < 0 or abs(entry.mtime_ns) >= _MAX_TIME_NS:
            raise ValueError(f"{entry.path!r} has {entry.bytes} bytes of {entry.mtime_ns} ns")
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
    """Nodes that have exactly this one at this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLink:
    """A symbolic link in a manifest."""

    root: Root
    path: str
    target: str
    nodes: tuple[Natural, ...] = field(default=(), metadata=OPTIONAL)
    """Nodes that have exactly this one at this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFolder:
    """A folder in a manifest."""

    root: Root
    path: str
    mode: int
    nodes: tuple[Natural, ...] = field(default=(), metadata=OPTIONAL)
    """Nodes that have exactly this one at this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """A complete snapshot of a program's folder on all nodes, written after all that it names.

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
    """The snapshot that it repeats, because a submission went back to it with --from-snapshot; 0:
    none, so that it holds compiled graphs only."""
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
    files: tuple[Mapping[str, Any], ...] = ()
    links: tuple[Mapping[str, Any], ...] = ()
    folders: tuple[Mapping[str, Any], ...] = ()


def _by_kind(entries: Iterable[SnapshotEntry]) -> dict[str, Any]:
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS.values()}
    for entry in entries:
        lists[_LISTS[entry.kind]].append(picked(_KINDS[entry.kind], entry))
    return {name: tuple(items) for name, items in lists.items()}


def entries_document(entries: Iterable[SnapshotEntry]) -> dict[str, list[dict[str, Any]]]:
    """One list for each kind, for JSON."""
    found: dict[str, list[dict[str, Any]]] = as_document(_by_kind(entries))
    return found


def read_entries(document: Mapping[str, Any]) -> tuple[SnapshotEntry, ...]:
    """Read the lists of ``entries_document``; ``ValueError`` says what is wrong with them."""
    lists = typed(document, _Lists)
    return tuple(
        SnapshotEntry.read(kind, item)
        for kind, name in _LISTS.items()
        for item in getattr(lists, name)
    )


def is_log(path: str) -> bool:
    """Tell by its name whether a file is only ever appended to.

    Such files are written to all the time, and a beginning of one is as good as the whole.
    """
    return _LOGS.fullmatch(path.rpartition("/")[2]) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSummary:
    """What a program's status shows of a snapshot."""

    number: int
    at: Timestamp
    files: int
    bytes: int
    chosen: int | None = field(default=None, metadata=OPTIONAL)
    """The one that it repeats, where a submission went back to it; 0: none."""


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
    """The one that it repeats, because a submission went back to that (0: to none); those between
    the two are not restored."""

    def __post_init__(self) -> None:
        if min(self.number, self.nodes, self.main, self.chosen or 0) < 0:
            raise ValueError("a number of it is negative")

    @property
    def key(self) -> str:
        """Key of the manifest."""
        return snapshot_key(self.number)

    @property
    def files(self) -> list[SnapshotEntry]:
        """The files, of every node."""
        return [entry for entry in self.entries if entry.kind is EntryKind.FILE]

    @property
    def size(self) -> int:
        """Bytes of all files, of every node."""
        return sum(entry.bytes for entry in self.files)

    @property
    def digests(self) -> set[str]:
        """Names of the objects that it needs."""
        return {entry.sha256 for entry in self.files}

    @property
    def substance(self) -> str:
        """Equal for snapshots that differ only in logs and compiled graphs."""
        essential = [
            (*entry.identity, entry.path, entry.nodes)
            for entry in self.entries
            if entry.root is Root.CHECKPOINTS and not is_log(entry.path)
        ]
        return hashlib.sha256(repr(sorted(essential)).encode()).hexdigest()

    @property
    def summary(self) -> SnapshotSummary:
        """What status shows of it."""
        return picked(SnapshotSummary, self, files=len(self.files), bytes=self.size)

    def encode(self) -> bytes:
        """The manifest."""
        entries = _by_kind(self.entries)
        manifest = picked(SnapshotManifest, self, format=FORMAT, bytes=self.size, **entries)
        return json.dumps(as_document(manifest)).encode()

    @staticmethod
    def decode(data: bytes) -> JobSnapshot:
        """Read a manifest; ``ValueError`` says what is wrong with it."""
        document = read_object(data)
        if document.get("format") != FORMAT:
            raise ValueError(f"it has format {document.get('format')}, not {FORMAT}")
        head = typed({**document, "entries": ()}, JobSnapshot)
        return replace(head, entries=read_entries(document))

    def for_node(self, node: int) -> list[SnapshotEntry]:
        """Choose what ``node`` is given: of each path its own, or else the main node's, or else
        the one of the lowest node."""
        chosen: dict[tuple[Root, str], SnapshotEntry] = {}
        for entry in self.entries:
            place = entry.root, entry.path
            known = chosen.get(place)
            if known is None or self._claim(node, entry) < self._claim(node, known):
                chosen[place] = entry
        return [entry for entry in chosen.values() if not _below_a_file(entry, chosen)]

    def _claim(self, node: int, entry: SnapshotEntry) -> tuple[bool, bool, int]:
        """Order the entries of one path; the smallest is what ``node`` is given."""
        return node not in entry.nodes, self.main not in entry.nodes, min(entry.nodes, default=0)


def _below_a_file(entry: SnapshotEntry, chosen: Mapping[tuple[Root, str], SnapshotEntry]) -> bool:
    """Tell if one node has a file or link where another has a folder with this entry."""
    for parent in PurePosixPath(entry.path).parents:
        above = chosen.get((entry.root, str(parent)))
        if above is not None and above.kind is not EntryKind.FOLDER:
            return True
    return False


def union(listings: Mapping[int, Iterable[SnapshotEntry]], main: int) -> tuple[SnapshotEntry, ...]:
    """Unite the listings of all nodes.

    A path with the same content on several nodes is one entry. Where contents differ, there is an
    entry for each, with the nodes that have it. Of compiled graphs one is as good as another.
    """
    order = sorted(listings, key=lambda node: (node != main, node))
    found: dict[tuple[Root, str], list[SnapshotEntry]] = {}
    for node in order:
        for entry in listings[node]:
            variants = found.setdefault((entry.root, entry.path), [])
            for at, variant in enumerate(variants):
                if variant.identity == entry.identity:
                    variants[at] = replace(variant, nodes=tuple(sorted((*variant.nodes, node))))
                    break
            else:
                if entry.root is not Root.CACHE or not variants:
                    variants.append(replace(entry, nodes=(node,)))
    entries = [entry for variants in found.values() for entry in variants]
    kinds = list(EntryKind)
    entries.sort(key=lambda item: (kinds.index(item.kind), item.root, item.path, item.nodes))
    return tuple(entries)


def snapshot_key(number: int) -> str:
    """Key of a manifest; keys sort by number."""
    return f"{number:08d}.json"


def object_key(digest: str) -> str:
    """Key of a content."""
    return f"{OBJECTS}{digest}"


def snapshot_numbers(objects: Objects) -> list[int]:
    """Numbers of the complete snapshots, oldest first."""
    found = (_NUMBER.fullmatch(info.key) for info in objects.list("0"))
    return [int(match[1]) for match in found if match]


def at_text(seconds: float) -> str:
    """A time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def clock_text(at: str) -> str:
    """The time of day of an ISO 8601 time, for messages."""
    return at[11:19] or at


def size_text(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
