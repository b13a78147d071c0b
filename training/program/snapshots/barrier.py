"""What the nodes of a job tell each other, and the newest instant that all of them have listed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from training.program.snapshots.manifest import (
    FORMAT,
    SnapshotEntry,
    entries_document,
    read_entries,
)
from training.storage import Objects
from trainium_catalogue.typed_json import read_object, typed

_ATTEMPTS = "attempt-"
_LISTING = re.compile(r"node-(\d+)-(\d{15})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Contents that nodes name to each other."""

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeListing:
    """One node's kept folders, as they were from ``since`` to ``until``."""

    node: int
    since: float
    """Seconds since the epoch, by this node's clock."""
    until: float
    quiet_s: float
    """Seconds after ``since`` that it had to stay unchanged to count; 0 if it was caught between
    two changes."""
    entries: tuple[SnapshotEntry, ...]
    final: bool = False
    """True after the program's end: nothing changes any more."""
    missing: str = ""
    """The reason why a final listing holds nothing."""

    @property
    def name(self) -> str:
        """Name of the state among those of its node: the time of its beginning."""
        return f"{round(self.since * 1000):015d}"

    @property
    def state(self) -> str:
        """Name of the content."""
        document = [entries_document(self.entries), self.final, self.missing, self.since]
        return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:32]

    def held_until(self, until: float) -> NodeListing:
        """The same, known to have held for longer."""
        return replace(self, until=until)

    def encode(self) -> bytes:
        """The node's file in the bucket."""
        document = {
            "format": FORMAT,
            "node": self.node,
            "since": self.since,
            "until": self.until,
            "quiet_s": self.quiet_s,
            "final": self.final,
            "missing": self.missing,
            **entries_document(self.entries),
        }
        return json.dumps(document).encode()

    @staticmethod
    def decode(data: bytes) -> NodeListing:
        """Read a node's file; ``ValueError`` says what is wrong with it."""
        document = read_object(data)
        head = typed({**document, "entries": ()}, NodeListing)
        return replace(head, entries=read_entries(document))


HISTORY = 16
"""Listings that a node keeps up: so many changes may pass while another node sends its files."""


def common_instant(
    histories: Sequence[Sequence[NodeListing]], skew_s: float, after: float = float("-inf")
) -> tuple[float, list[NodeListing]] | None:
    """Find the newest instant, not before ``after``, at which every node had a listed state.

    Clocks differ by up to ``skew_s``. One node's clock tells the instant; the listings of the
    others must hold ``skew_s`` longer on both sides. So one node may have been caught between two
    changes, but not two. Returns the listing of each node as well.
    """
    newest = [history[-1] for history in histories]
    if newest and all(listing.final for listing in newest):
        return max(listing.since for listing in newest), newest
    instants = {
        listing.since + wait_s
        for history in histories
        for listing in history
        for wait_s in (listing.quiet_s, max(listing.quiet_s, skew_s))
    }
    for instant in sorted(instants, reverse=True):
        if instant < after:
            break
        if listings := _at(instant, histories, skew_s):
            return instant, listings
    return None


def _at(
    instant: float, histories: Sequence[Sequence[NodeListing]], skew_s: float
) -> list[NodeListing] | None:
    chosen, exact = [], 0
    for history in histories:
        found = _held(instant, history, skew_s)
        if found is None:
            found, exact = _held(instant, history, 0.0), exact + 1
        if found is None or exact > 1:
            return None
        chosen.append(found)
    return chosen


def _held(instant: float, history: Sequence[NodeListing], skew_s: float) -> NodeListing | None:
    """The newest state that a node had at an instant, and ``skew_s`` around it."""
    for listing in reversed(history):
        begin = listing.since + max(listing.quiet_s, skew_s)
        if begin <= instant <= listing.until - skew_s:
            return listing
    return None


class Messages:
    """What the nodes of an attempt tell each other: who writes which key.

    Attempts are counted anew for each job, so the job's name is part of the keys.
    """

    def __init__(self, attempt: int, job_id: str) -> None:
        self.prefix = f"{_ATTEMPTS}{attempt}/{job_id}/"

    def listing(self, node: int, name: str) -> str:
        """One of a node's latest listings."""
        return f"{self.prefix}node-{node}-{name}.json"

    def read_listing(self, key: str) -> tuple[int, str] | None:
        """Node and name of a listing; None for other keys."""
        match = _LISTING.fullmatch(key.removeprefix(self.prefix))
        return (int(match[1]), match[2]) if match else None

    def until(self, node: int) -> str:
        """Times up to which the node's listings hold; small, as it is renewed often."""
        return f"{self.prefix}node-{node}-until.json"

    def intent(self, node: int) -> str:
        """Contents that the node lists or is about to list."""
        return f"{self.prefix}node-{node}-sends.json"

    @property
    def missing(self) -> str:
        """Contents that were listed and are not in the bucket; written by the main node."""
        return f"{self.prefix}missing.json"

    def of_others(self, objects: Objects) -> list[str]:
        """Keys that other attempts have left."""
        return [
            info.key for info in objects.list(_ATTEMPTS) if not info.key.startswith(self.prefix)
        ]
