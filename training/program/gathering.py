"""The main node's part: completes snapshots from what all nodes list, and clears old ones away."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from training.program.snapshots import (
    OBJECTS,
    Listing,
    Snapshot,
    at_text,
    attempt_prefix,
    clock_text,
    common_instant,
    object_key,
    other_attempts,
    size_text,
    snapshot_key,
    snapshot_numbers,
    union,
)
from training.storage import ObjectMissing, Objects, PreconditionFailed

_SKEW_S = 1.0
"""Most by which the clocks of two nodes differ; AWS's differ by microseconds."""

log = logging.getLogger(__name__)


class NotAlone(Exception):
    """Another job keeps snapshots under the same run name."""


class Messages:
    """What the nodes of an attempt tell each other: who writes which key."""

    def __init__(self, attempt: int, job_id: str) -> None:
        self.prefix = attempt_prefix(attempt, job_id)

    def listing(self, node: int) -> str:
        """A node's listing."""
        return f"{self.prefix}node-{node}.json"

    def until(self, node: int) -> str:
        """The time up to which the node's listing holds; small, as it is renewed often."""
        return f"{self.prefix}node-{node}-until.json"

    def intent(self, node: int) -> str:
        """Contents that the node lists or is about to list."""
        return f"{self.prefix}node-{node}-sends.json"

    @property
    def missing(self) -> str:
        """Contents that were listed and are not in the bucket; written by the main node."""
        return f"{self.prefix}missing.json"


class Gatherer:
    """Completes snapshots; owns everything below the run's ``snapshots/`` but the contents."""

    def __init__(
        self, objects: Objects, messages: Messages, *, num_nodes: int, main: int, keep: int
    ) -> None:
        self._objects = objects
        self._messages = messages
        self._num_nodes, self._main, self._keep = num_nodes, main, keep
        self._etags: dict[str, str] = {}
        self._listings: dict[int, Listing] = {}
        self._until: dict[int, tuple[str, float]] = {}
        self._gathered: tuple[str, ...] = ()
        self._idle: set[str] = set()
        self._told_missing: set[str] = set()
        self.snapshots: list[Snapshot] = []
        """Those in the bucket, oldest first, as far as they can be read."""
        self._unreadable = False
        self.is_gathered = False
        """True if the newest listings are in a complete snapshot."""
        self.news = 0
        """Raised whenever a node tells something new."""

    def open(self) -> None:
        """Read the snapshots there are, and remove what earlier attempts told each other."""
        self._objects.delete(list(other_attempts(self._objects, self._messages.prefix)))
        for number in snapshot_numbers(self._objects):
            try:
                self.snapshots.append(Snapshot.decode(self._objects.get(snapshot_key(number))))
            except ObjectMissing:
                continue
            except ValueError as error:
                self._unreadable = True
                log.info("keeper: %s is left alone: %s", snapshot_key(number), error)

    @property
    def newest(self) -> Snapshot | None:
        """The newest complete snapshot."""
        return self.snapshots[-1] if self.snapshots else None

    def gather(self, own: Listing | None) -> Snapshot | None:
        """Complete a snapshot if all nodes have listed one instant; returns a new one."""
        if self._num_nodes > 1:
            self._hear()
        if own is not None:
            self._listings[self._main] = own
        if len(self._listings) < self._num_nodes:
            return None
        listings = [self._listings[node] for node in sorted(self._listings)]
        states = tuple(listing.state for listing in listings)
        self.is_gathered = states == self._gathered
        if self.is_gathered or any(listing.missing for listing in listings):
            return None
        instant = common_instant(listings, min(_SKEW_S, *(x.quiet_s or _SKEW_S for x in listings)))
        if instant is None:
            return None
        entries = union({listing.node: listing.entries for listing in listings}, self._main)
        newest = self.newest
        known = newest.entries if newest is not None else ()
        if known == entries:
            self._gathered, self.is_gathered = states, True
            return None
        snapshot = Snapshot(
            number=newest.number + 1 if newest is not None else 1,
            at=at_text(instant),
            nodes=self._num_nodes,
            main=self._main,
            entries=entries,
        )
        if not self._has_contents(snapshot):
            return None
        try:
            self._objects.put(snapshot.key, snapshot.encode(), if_absent=True)
        except PreconditionFailed:
            raise NotAlone(
                f"{self._objects.uri}/{snapshot.key} was written by another job; stop that job, "
                "or give this one a name of its own"
            ) from None
        self._gathered, self.is_gathered = states, True
        self.snapshots.append(snapshot)
        log.info(
            "keeper: snapshot %d of %s: %d files, %s",
            *(snapshot.number, clock_text(snapshot.at)),
            *(len(snapshot.files), size_text(snapshot.size)),
        )
        return snapshot

    @property
    def all_final(self) -> bool:
        """True once every node has listed its final state."""
        return len(self._listings) == self._num_nodes and all(
            listing.final for listing in self._listings.values()
        )

    @property
    def not_final(self) -> list[int]:
        """Nodes whose final state is not known yet."""
        return [
            node
            for node in range(self._num_nodes)
            if node not in self._listings or not self._listings[node].final
        ]

    @property
    def refusals(self) -> list[str]:
        """Reasons of nodes that have no final state."""
        return [item.missing for _, item in sorted(self._listings.items()) if item.missing]

    def prune(self, *, at_end: bool = False) -> None:
        """Delete old snapshots, then contents that nobody needs.

        Snapshots that differ only in logs and compiled graphs count as one, the newest of them.
        A content goes when it was of no use at the previous call either, unless this is the end
        and no node sends any more.
        """
        kept: list[Snapshot] = []
        for snapshot in reversed(self.snapshots):
            if kept and kept[-1].substance == snapshot.substance:
                continue
            if len(kept) == self._keep:
                break
            kept.append(snapshot)
        kept.reverse()
        numbers = {snapshot.number for snapshot in kept}
        old = [snapshot for snapshot in self.snapshots if snapshot.number not in numbers]
        self._objects.delete([snapshot.key for snapshot in old])
        self.snapshots = kept
        if self._unreadable:
            return  # nobody knows what it needs
        needed = {object_key(digest) for snapshot in kept for digest in snapshot.digests}
        needed |= {object_key(digest) for digest in self._in_use()}
        idle = {info.key for info in self._objects.list(OBJECTS)} - needed
        self._objects.delete(sorted(idle if at_end else idle & self._idle))
        self._idle = idle

    def close(self) -> None:
        """Remove what the nodes told each other."""
        self._objects.delete([info.key for info in self._objects.list(self._messages.prefix)])

    def _hear(self) -> None:
        """Read what has changed of the other nodes' messages."""
        known = {
            key: node
            for node in range(self._num_nodes)
            if node != self._main
            for key in (self._messages.listing(node), self._messages.until(node))
        }
        for info in list(self._objects.list(self._messages.prefix)):
            if info.key not in known or self._etags.get(info.key) == info.etag:
                continue
            try:
                data = self._objects.get(info.key)
                node = known[info.key]
                if info.key == self._messages.listing(node):
                    self._listings[node] = Listing.decode(data)
                else:
                    document = json.loads(data)
                    self._until[node] = (document["state"], document["until"])
            except (ObjectMissing, ValueError, KeyError) as error:
                log.info("keeper: %s is not understood: %s", info.key, error)
            self._etags[info.key] = info.etag
            self.news += 1
        for node, (state, until) in self._until.items():
            listing = self._listings.get(node)
            if listing is not None and listing.state == state and until > listing.until:
                self._listings[node] = listing.held_until(until)

    def _has_contents(self, snapshot: Snapshot) -> bool:
        """Check that every content is there and whole; tell the nodes of those that are not."""
        sizes = {info.key: info.size for info in self._objects.list(OBJECTS)}
        missing = {
            entry.sha256
            for entry in snapshot.files
            if sizes.get(object_key(entry.sha256)) != entry.bytes
        }
        if missing and missing != self._told_missing:
            log.info(
                "keeper: %d contents have gone from %s; the nodes send them again",
                *(len(missing), self._objects.uri),
            )
            document = json.dumps({"digests": sorted(missing)})
            self._objects.put(self._messages.missing, document.encode())
            self._told_missing = missing
        return not missing

    def _in_use(self) -> Iterable[str]:
        """Contents that some node lists or is about to list."""
        for listing in self._listings.values():
            yield from (entry.sha256 for entry in listing.entries if entry.sha256)
        for node in range(self._num_nodes):
            try:
                yield from json.loads(self._objects.get(self._messages.intent(node)))["digests"]
            except ObjectMissing:
                continue
