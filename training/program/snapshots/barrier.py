"""Listings that nodes exchange, and the newest instant listed by all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from training.program.snapshots.manifest import SnapshotEntry, entries_document, read_entries
from trainium_catalogue.documents import as_document
from trainium_catalogue.typed_json import read_object, typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Digests of contents, as sent between nodes."""

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeListing:
    """The state of a node's persisted folders from ``since`` to ``until``."""

    node: int
    since: float
    """Seconds since the epoch on this node's clock."""
    until: float
    quiet_s: float
    """Required seconds of quiescence after ``since``; 0 if captured between changes."""
    entries: tuple[SnapshotEntry, ...]
    final: bool = False
    """True after the program's end, when nothing will change."""
    missing: str = ""
    """The reason for an empty final listing."""

    @property
    def name(self) -> str:
        """The state's start time in milliseconds since the epoch, unique on its node."""
        return f"{round(self.since * 1000):015d}"

    @property
    def state(self) -> str:
        """Digest that identifies this state."""
        document = [entries_document(self.entries), self.final, self.missing, self.since]
        return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:32]

    def encode(self) -> bytes:
        """Encode the listing as a JSON document."""
        document = {**as_document(replace(self, entries=())), **entries_document(self.entries)}
        del document["entries"]
        return json.dumps(document).encode()

    @staticmethod
    def decode(data: bytes) -> NodeListing:
        """Parse an encoded listing; raise ``ValueError`` if it is invalid."""
        document = read_object(data)
        head = typed({**document, "entries": ()}, NodeListing)
        return replace(head, entries=read_entries(document))


HISTORY = 16
"""Number of listings retained per node. If a node's state changes more often than this while
another node uploads, the two have no instant in common."""


def common_instant(
    histories: Sequence[Sequence[NodeListing]], skew_s: float, after: float = float("-inf")
) -> tuple[float, list[NodeListing]] | None:
    """Return the newest instant, not before ``after``, at which every node had a listed state.

    Also returns each node's listing. Clocks differ by up to ``skew_s``. One node's clock sets the
    instant; the other nodes' listings must be valid for ``skew_s`` before and after it. So a single
    node, but not several, may have been captured between two changes.
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
        if listings := _listings_at(instant, histories, skew_s):
            return instant, listings
    return None


def _listings_at(
    instant: float, histories: Sequence[Sequence[NodeListing]], skew_s: float
) -> list[NodeListing] | None:
    """Return each node's listing at ``instant``; all but one must be valid despite clock skew."""
    chosen, exact = [], 0
    for history in histories:
        listing = _valid_at(instant, history, skew_s)
        if listing is None:
            listing, exact = _valid_at(instant, history, 0.0), exact + 1
        if listing is None or exact > 1:
            return None
        chosen.append(listing)
    return chosen


def _valid_at(instant: float, history: Sequence[NodeListing], skew_s: float) -> NodeListing | None:
    """Return a node's newest state that was valid for ``skew_s`` before and after an instant."""
    for listing in reversed(history):
        begin = listing.since + max(listing.quiet_s, skew_s)
        if begin <= instant <= listing.until - skew_s:
            return listing
    return None
