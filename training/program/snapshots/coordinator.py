"""The main node's part: completes snapshots from what all nodes list, and clears old ones away."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from training.program.snapshots.barrier import Digests, Messages, NodeListing, common_instant
from training.program.snapshots.manifest import (
    OBJECTS,
    JobSnapshot,
    at_text,
    clock_text,
    object_key,
    size_text,
    snapshot_key,
    snapshot_numbers,
    union,
)
from training.storage import ObjectMissing, Objects, PreconditionFailed
from trainium_catalogue.typed_json import read_json, read_object, typed

_SKEW_S = 1.0
"""Most by which the clocks of two nodes differ; AWS's differ by microseconds."""
_PATIENCE_S = 60.0
"""Time without a common instant of all nodes after which the log says so, at least."""

_TIMES: Any = Mapping[str, float]

log = logging.getLogger(__name__)


class Patience:
    """Tells when snapshots have been waiting for some node for long."""

    def __init__(self, every_s: float) -> None:
        self._limit_s = max(_PATIENCE_S, 3 * every_s)
        self._since_s: float | None = None

    def waited_s(self, now_s: float, *, waits: bool) -> float:
        """Time of waiting if it is too long, or else 0."""
        if not waits:
            self._since_s = None
            return 0.0
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        return waited_s if waited_s > self._limit_s else 0.0


class Coordinator:
    """Completes snapshots; owns everything below the run's ``snapshots/`` but the contents."""

    def __init__(
        self,
        objects: Objects,
        messages: Messages,
        *,
        num_nodes: int,
        main: int,
        keep: int,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """``confirm`` raises unless this job still holds the run's name."""
        self._objects = objects
        self._messages = messages
        self._num_nodes, self._main, self._keep = num_nodes, main, keep
        self._confirm = confirm
        self._etags: dict[str, str] = {}
        self._listings: dict[int, dict[str, NodeListing]] = {}
        """The latest ones of each node, by their names."""
        self._until: dict[int, dict[str, float]] = {}
        self._gathered: tuple[str, ...] = ()
        self._instant = float("-inf")
        """Instant of the newest complete snapshot of this attempt."""
        self._last_number = 0
        self._idle: set[str] = set()
        self._told_missing: set[str] = set()
        self.snapshots: list[JobSnapshot] = []
        """Those in the bucket, oldest first, as far as they can be read."""
        self._unreadable: set[int] = set()
        self.is_gathered = False
        """True if the newest listings are in a complete snapshot."""
        self.news = 0
        """Raised whenever a node tells something new."""

    def open(self) -> None:
        """Read the snapshots there are, and remove what earlier attempts told each other."""
        self._confirm()
        self._objects.delete(self._messages.of_others(self._objects))
        self._read_new()

    def _read_new(self) -> None:
        """Read the snapshots that this attempt has not made itself."""
        known = {snapshot.number for snapshot in self.snapshots} | self._unreadable
        for number in snapshot_numbers(self._objects):
            if number in known:
                continue
            self._last_number = max(self._last_number, number)
            try:
                self.snapshots.append(JobSnapshot.decode(self._objects.get(snapshot_key(number))))
            except ObjectMissing:
                continue
            except ValueError as error:
                self._unreadable.add(number)
                log.info("snapshots: %s is left alone: %s", snapshot_key(number), error)
        self.snapshots.sort(key=lambda snapshot: snapshot.number)

    def gather(self, own: Sequence[NodeListing]) -> JobSnapshot | None:
        """Complete a snapshot if all nodes have listed one instant; returns a new one.

        ``own`` are the latest listings of this node, oldest first.
        """
        if self._num_nodes > 1:
            self._hear()
        if own:
            self._listings[self._main] = {listing.name: listing for listing in own}
        if len(self._listings) < self._num_nodes:
            return None
        histories = [self._history(node) for node in range(self._num_nodes)]
        newest_states = tuple(history[-1].state for history in histories)
        self.is_gathered = newest_states == self._gathered
        if self.is_gathered or any(history[-1].missing for history in histories):
            return None
        quiet_s = [x.quiet_s or _SKEW_S for history in histories for x in history]
        found = common_instant(histories, min(_SKEW_S, *quiet_s), self._instant)
        if found is None:
            return None
        instant, listings = found
        states = tuple(listing.state for listing in listings)
        if states == self._gathered:
            return None
        entries = union({listing.node: listing.entries for listing in listings}, self._main)
        if entries == (self.snapshots[-1].entries if self.snapshots else ()):
            self._note(instant, states, newest_states)
            return None
        snapshot = JobSnapshot(
            number=self._last_number + 1,
            at=at_text(instant),
            nodes=self._num_nodes,
            main=self._main,
            entries=entries,
        )
        if not self._has_contents(snapshot):
            return None
        self._confirm()
        try:
            self._objects.put(snapshot.key, snapshot.encode(), if_absent=True)
        except PreconditionFailed:
            self._read_new()  # the late write of a job that this one has replaced
            return None
        self._last_number = snapshot.number
        self._note(instant, states, newest_states)
        self.snapshots.append(snapshot)
        log.info(
            "snapshots: snapshot %d of %s: %d files, %s",
            *(snapshot.number, clock_text(snapshot.at)),
            *(len(snapshot.files), size_text(snapshot.size)),
        )
        return snapshot

    def _note(
        self, instant: float, states: tuple[str, ...], newest_states: tuple[str, ...]
    ) -> None:
        self._instant, self._gathered = instant, states
        self.is_gathered = states == newest_states

    def _history(self, node: int) -> list[NodeListing]:
        """The latest listings of a node, oldest first."""
        listings = self._listings.get(node, {}).values()
        return sorted(listings, key=lambda listing: (listing.final, listing.since))

    def _newest(self) -> dict[int, NodeListing]:
        return {node: self._history(node)[-1] for node in sorted(self._listings)}

    @property
    def waits_for(self) -> list[int]:
        """Nodes that hold up a snapshot: without a listing, or with the oldest one."""
        newest = self._newest()
        silent = [node for node in range(self._num_nodes) if node not in newest]
        if silent or not newest:
            return silent
        return [min(newest, key=lambda node: newest[node].until)]

    @property
    def has_listings(self) -> bool:
        """True once some node has listed something."""
        return bool(self._listings)

    @property
    def not_final(self) -> list[int]:
        """Nodes whose final state is not known yet."""
        newest = self._newest()
        return [
            node for node in range(self._num_nodes) if node not in newest or not newest[node].final
        ]

    @property
    def refusals(self) -> list[str]:
        """Reasons of nodes that have no final state."""
        return [item.missing for item in self._newest().values() if item.missing]

    def prune(self, *, at_end: bool = False) -> None:
        """Delete old snapshots, then contents that nobody needs.

        Snapshots that differ only in logs and compiled graphs count as one, the newest of them.
        A content goes when it was of no use at the previous call either, unless this is the end
        and no node sends any more. Snapshots that a job of the same name has left meanwhile count
        too.
        """
        self._confirm()
        self._read_new()
        kept: list[JobSnapshot] = []
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
        untils = {self._messages.until(node): node for node in range(self._num_nodes)}
        found = [
            (info, self._messages.read_listing(info.key) or (untils.get(info.key, self._main), ""))
            for info in self._objects.list(self._messages.prefix)
        ]
        found = [(info, place) for info, place in found if place[0] != self._main]
        for info, (node, name) in found:
            if self._etags.get(info.key) == info.etag:
                continue
            try:
                data = self._objects.get(info.key)
                if name:
                    self._listings.setdefault(node, {})[name] = NodeListing.decode(data)
                else:
                    self._until[node] = typed(read_object(data), _TIMES)
            except (ObjectMissing, ValueError) as error:
                log.info("snapshots: %s is not understood: %s", info.key, error)
            self._etags[info.key] = info.etag
            self.news += 1
        there = {place for _, place in found}
        for node, listings in self._listings.items():
            if node == self._main:
                continue
            for name in [name for name in listings if (node, name) not in there]:
                del listings[name]
            for name, until in self._until.get(node, {}).items():
                if name in listings and until > listings[name].until:
                    listings[name] = listings[name].held_until(until)
        self._listings = {node: listings for node, listings in self._listings.items() if listings}

    def _has_contents(self, snapshot: JobSnapshot) -> bool:
        """Check that every content is there and whole; tell the nodes of those that are not."""
        sizes = {info.key: info.size for info in self._objects.list(OBJECTS)}
        missing = {
            entry.sha256
            for entry in snapshot.files
            if sizes.get(object_key(entry.sha256)) != entry.bytes
        }
        if missing and missing != self._told_missing:
            log.info(
                "snapshots: %d contents have gone from %s; the nodes send them again",
                *(len(missing), self._objects.uri),
            )
            document = json.dumps({"digests": sorted(missing)})
            self._objects.put(self._messages.missing, document.encode())
            self._told_missing = missing
        return not missing

    def _in_use(self) -> Iterable[str]:
        """Contents that some node is about to list, or lists for a snapshot to come."""
        newest = self._newest()
        for node in newest:
            for listing in self._history(node):
                if listing is newest[node] or listing.until >= self._instant:
                    yield from (entry.sha256 for entry in listing.entries if entry.sha256)
        for node in range(self._num_nodes):
            try:
                data = self._objects.get(self._messages.intent(node))
                yield from read_json(data, Digests).digests
            except ObjectMissing:
                continue
