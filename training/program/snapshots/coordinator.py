"""Complete snapshots from all nodes' listings, and delete old ones; runs on the main node."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from training.program.snapshots.barrier import HISTORY, Digests, NodeListing, common_instant
from training.program.snapshots.mailbox import (
    MISSING,
    Mailbox,
    intent_name,
    listing_name,
    read_listing_name,
    until_name,
)
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
from trainium_catalogue.wording import counted

_SKEW_S = 1.0
"""Maximum clock skew between two nodes; on AWS the actual skew is microseconds."""
_MAX_DIGESTS = 128
"""Maximum number of missing contents per document, which must fit into one message."""
_BETWEEN_SENDING_S = 10.0

_TIMES: Any = Mapping[str, float]

log = logging.getLogger(__name__)


class Coordinator:
    """Completes snapshots; the only writer below the run's ``snapshots/``, except for contents."""

    def __init__(
        self,
        objects: Objects,
        mailbox: Mailbox,
        *,
        num_nodes: int,
        main: int,
        keep: int,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """``confirm`` raises unless this job still holds the run's lock."""
        self._objects = objects
        self._mailbox = mailbox
        self._num_nodes, self._main, self._keep = num_nodes, main, keep
        self._confirm = confirm
        self._etags: dict[str, str] = {}
        self._listings: dict[int, dict[str, NodeListing]] = {}
        """Each node's latest listings, by name."""
        self._until: dict[int, dict[str, float]] = {}
        self._gathered: tuple[str, ...] = ()
        self._instant = float("-inf")
        """Instant of the newest complete snapshot of this attempt."""
        self._last_number = 0
        self._unreferenced: set[str] = set()
        self._send_again_s = float("-inf")
        self.snapshots: list[JobSnapshot] = []
        """Readable snapshots in the bucket, oldest first."""
        self._unreadable: set[int] = set()
        self.is_gathered = False
        """True if the newest listings are part of a complete snapshot."""
        self.num_reports = 0
        """Incremented whenever a node reports something new."""

    def open(self) -> None:
        """Read the existing snapshots."""
        self._confirm()
        self._read_new()

    def _read_new(self) -> None:
        """Read snapshots that this attempt did not create."""
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
                log.info("snapshots: %s is ignored: %s", snapshot_key(number), error)
        self.snapshots.sort(key=lambda snapshot: snapshot.number)

    def gather(self, own: Sequence[NodeListing]) -> JobSnapshot | None:
        """Complete a snapshot if all nodes have listed a common instant; return it if new.

        ``own`` are this node's latest listings, oldest first.
        """
        if self._num_nodes > 1:
            self._receive()
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
        common = common_instant(histories, min(_SKEW_S, *quiet_s), self._instant)
        if common is None:
            return None
        instant, listings = common
        states = tuple(listing.state for listing in listings)
        if states == self._gathered:
            return None
        entries = union({listing.node: listing.entries for listing in listings}, self._main)
        if entries == (self.snapshots[-1].entries if self.snapshots else ()):
            self._record(instant, states, newest_states)
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
            self._read_new()  # a late write by a job that this one has replaced
            return None
        self._last_number = snapshot.number
        self._record(instant, states, newest_states)
        self.snapshots.append(snapshot)
        log.info(
            "snapshots: snapshot %d of %s: %s, %s",
            *(snapshot.number, clock_text(snapshot.at)),
            *(counted(len(snapshot.files), "file"), size_text(snapshot.size)),
        )
        return snapshot

    def _record(
        self, instant: float, states: tuple[str, ...], newest_states: tuple[str, ...]
    ) -> None:
        self._instant, self._gathered = instant, states
        self.is_gathered = states == newest_states

    def _history(self, node: int) -> list[NodeListing]:
        """Return a node's latest listings, oldest first."""
        listings = self._listings.get(node, {}).values()
        return sorted(listings, key=lambda listing: (listing.final, listing.since))

    def _newest(self) -> dict[int, NodeListing]:
        return {node: self._history(node)[-1] for node in sorted(self._listings)}

    @property
    def waits_for(self) -> list[int]:
        """Nodes that block a snapshot: those without a listing, else the one with the oldest."""
        newest = self._newest()
        silent = [node for node in range(self._num_nodes) if node not in newest]
        if silent or not newest:
            return silent
        return [min(newest, key=lambda node: newest[node].until)]

    @property
    def has_listings(self) -> bool:
        """True once any node has sent a listing."""
        return bool(self._listings)

    @property
    def not_final(self) -> list[int]:
        """Nodes whose final state is still unknown."""
        newest = self._newest()
        return [
            node for node in range(self._num_nodes) if node not in newest or not newest[node].final
        ]

    @property
    def refusals(self) -> list[str]:
        """Nodes' reasons for not having a final state."""
        return [item.missing for item in self._newest().values() if item.missing]

    def prune(self, *, at_end: bool = False) -> None:
        """Delete old snapshots, then unreferenced contents.

        Of snapshots that differ only in logs and compiled graphs, only the newest is kept.
        Snapshots of earlier jobs of the same name count too. Contents are deleted if they were
        unreferenced at the previous call too, or at the end, when no node is uploading.
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
            return  # unreadable snapshots may reference any of the contents
        needed = {object_key(digest) for snapshot in kept for digest in snapshot.digests}
        needed |= {object_key(digest) for digest in self._digests_in_use()}
        unreferenced = {info.key for info in self._objects.list(OBJECTS)} - needed
        self._objects.delete(sorted(unreferenced if at_end else unreferenced & self._unreferenced))
        self._unreferenced = unreferenced

    def _receive(self) -> None:
        """Read other nodes' changed documents, and remove their old listings."""
        untils = {until_name(node): node for node in range(self._num_nodes)}
        documents = [
            (info, read_listing_name(info.key) or (untils.get(info.key, self._main), ""))
            for info in self._mailbox.received.list()
        ]
        documents = [(info, origin) for info, origin in documents if origin[0] != self._main]
        for info, (node, name) in documents:
            if self._etags.get(info.key) == info.etag:
                continue
            try:
                data = self._mailbox.received.get(info.key)
                if name:
                    self._listings.setdefault(node, {})[name] = NodeListing.decode(data)
                else:
                    self._until[node] = typed(read_object(data), _TIMES)
            except (ObjectMissing, ValueError) as error:
                log.info("snapshots: %s cannot be read: %s", info.key, error)
            self._etags[info.key] = info.etag
            self.num_reports += 1
        received_names: dict[int, list[str]] = {node: [] for node in range(self._num_nodes)}
        for _, (node, name) in documents:
            if name:
                received_names[node].append(name)
        for node, listings in self._listings.items():
            if node == self._main:
                continue
            old, latest = received_names[node][:-HISTORY], received_names[node][-HISTORY:]
            self._mailbox.received.delete(listing_name(node, name) for name in old)
            for name in listings.keys() - set(latest):
                del listings[name]
            for name, until in self._until.get(node, {}).items():
                if name in listings and until > listings[name].until:
                    listings[name] = replace(listings[name], until=until)
        self._listings = {node: listings for node, listings in self._listings.items() if listings}

    def _has_contents(self, snapshot: JobSnapshot) -> bool:
        """Return whether all contents exist in full; request missing ones from the nodes."""
        sizes = {info.key: info.size for info in self._objects.list(OBJECTS)}
        missing = {
            entry.sha256
            for entry in snapshot.files
            if sizes.get(object_key(entry.sha256)) != entry.bytes
        }
        now_s = time.monotonic()
        if missing and now_s >= self._send_again_s:
            self._send_again_s = now_s + _BETWEEN_SENDING_S
            named = random.sample(sorted(missing), min(len(missing), _MAX_DIGESTS))
            log.info(
                "snapshots: the contents of %s are missing from %s; the nodes upload them again",
                *(counted(len(missing), "file"), self._objects.uri),
            )
            document = {"digests": named, "at": now_s}  # distinguishes repeated requests
            self._mailbox.send_to_all(MISSING, json.dumps(document).encode())
        return not missing

    def _digests_in_use(self) -> Iterable[str]:
        """Yield digests that nodes are about to list, or have listed for a future snapshot."""
        newest = self._newest()
        for node in newest:
            for listing in self._history(node):
                if listing is newest[node] or listing.until >= self._instant:
                    yield from (entry.sha256 for entry in listing.entries if entry.sha256)
        for node in range(self._num_nodes):
            try:
                data = self._mailbox.received.get(intent_name(node))
                yield from read_json(data, Digests).digests
            except ObjectMissing:
                continue
