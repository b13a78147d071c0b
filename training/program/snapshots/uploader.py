"""The thread that brings what was captured to the bucket, each content once, and lists it there."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from training.core.failures import describe
from training.core.threads import in_threads
from training.program.snapshots.barrier import HISTORY, Messages, NodeListing
from training.program.snapshots.capture import Capture, Changed, HeldEntry
from training.program.snapshots.manifest import OBJECTS, object_key
from training.program.snapshots.process import SnapshotSettings
from training.storage import Objects, StorageError, StorageRefused

_BLOCK = 16 * 1024 * 1024
_SMALL_FILES_AT_ONCE = 8
_BETWEEN_COMPLAINTS_S = 60.0

log = logging.getLogger(__name__)


class Cancelled(Exception):
    """There is no time left, or no use."""


class Bandwidth:
    """A bound on bytes per second, shared by threads, which can be lifted and cut off."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._changed = threading.Condition()
        self._lifted = self._cut = False

    def take(self, count: int) -> None:
        """Wait until ``count`` bytes may be sent; ``Cancelled`` when cut off."""
        with self._changed:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + count / self._bytes_per_s
            while not self._cut and not self._lifted and (left := begin - time.monotonic()) > 0:
                self._changed.wait(left)
        self.check()

    def check(self) -> None:
        """Raise ``Cancelled`` if nothing may be sent any more."""
        if self._cut:
            raise Cancelled

    def lift(self) -> None:
        """Let everything pass, also after a cut: nobody trains any more."""
        self._set(lifted=True, cut=False)

    def cut(self) -> None:
        """Let nothing pass."""
        self._set(lifted=self._lifted, cut=True)

    def _set(self, *, lifted: bool, cut: bool) -> None:
        with self._changed:
            self._lifted, self._cut = lifted, cut
            self._changed.notify_all()


class Complaints:
    """Says what goes wrong, but not every second."""

    def __init__(self) -> None:
        self._said_s: dict[str, float] = {}

    def say(self, about: str, text: str) -> None:
        """Log ``text`` unless something about the same was logged a moment ago."""
        now = time.monotonic()
        if now - self._said_s.get(about, float("-inf")) >= _BETWEEN_COMPLAINTS_S:
            self._said_s[about] = now
            log.info("snapshots: %s", text)


class RefusalTimer:
    """How long a bucket has refused what a thread asks of it, without a success in between."""

    def __init__(self) -> None:
        self.text = ""
        self._since_s = 0.0

    def note(self, reason: str) -> None:
        """Note how a try has ended; an empty reason if it was not refused."""
        if reason and not self.text:
            self._since_s = time.monotonic()
        self.text = reason

    def lasts(self, at_least_s: float) -> bool:
        """Tell if it goes on."""
        return bool(self.text) and time.monotonic() - self._since_s >= at_least_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What a node held from ``since`` to ``until``."""

    items: Sequence[HeldEntry]
    since: float
    until: float
    quiet_s: float
    final: bool = False
    missing: str = ""
    """The reason why a final state holds nothing."""


class Contents:
    """Uploads contents below the run's ``snapshots/objects/``."""

    def __init__(self, objects: Objects, bandwidth: Bandwidth, *, first_share: float) -> None:
        self._objects, self._bandwidth = objects, bandwidth
        self._first_share = first_share
        self._before = 0
        self.sent = 0
        """Bytes of the current upload that have been sent."""
        self.total = 0
        """Bytes of the current upload."""

    @property
    def progress(self) -> int:
        """Bytes that have ever been sent; falls when an upload fails in the middle of a file."""
        return self._before + self.sent

    def upload(self, items: Sequence[HeldEntry]) -> None:
        """Upload every content that the bucket lacks; ``Changed``, ``Cancelled``, StorageError."""
        self._before += self.sent
        self.sent, self.total = 0, sum(item.entry.bytes for item in items)
        if not items:
            return
        there = {info.key: info.size for info in self._objects.list(OBJECTS)}
        lacking = [i for i in items if there.get(object_key(i.entry.sha256)) != i.entry.bytes]
        # Nodes that have the same files begin at different ones, and find what others have sent.
        first = int(self._first_share * len(lacking))
        lacking = lacking[first:] + lacking[:first]
        self.total = sum(item.entry.bytes for item in lacking)
        small = [item for item in lacking if item.entry.bytes <= _BLOCK]
        arrived = 0
        try:
            for count in in_threads(
                self._upload_small, small, at_once=_SMALL_FILES_AT_ONCE, name="upload"
            ):
                arrived += count
                self.sent = arrived
            for item in lacking:
                if item.entry.bytes > _BLOCK:
                    self._upload_large(item)
                    arrived += item.entry.bytes
        finally:
            self.sent = arrived

    def _upload_small(self, item: HeldEntry) -> int:
        with _opened(item) as file:
            data = file.read(item.entry.bytes)
        _check(item, hashlib.sha256(data))
        self._bandwidth.take(len(data))
        self._objects.put(object_key(item.entry.sha256), data)
        return len(data)

    def _upload_large(self, item: HeldEntry) -> None:
        digest, left = hashlib.sha256(), item.entry.bytes
        with (
            _opened(item) as file,
            self._objects.create(object_key(item.entry.sha256), size=left) as stream,
        ):
            target: Any = stream
            while left and (block := file.read(min(_BLOCK, left))):
                self._bandwidth.take(len(block))
                digest.update(block)
                target.write(block)
                left -= len(block)
                self.sent += len(block)
            _check(item, digest)


def _opened(item: HeldEntry) -> Any:
    assert item.source is not None
    try:
        return item.source.open("rb", buffering=0)
    except FileNotFoundError:
        raise Changed(item.entry.path) from None


def _check(item: HeldEntry, digest: Any) -> None:
    """An object is what its name says, or it does not come to be."""
    if digest.hexdigest() != item.entry.sha256:
        raise Changed(item.entry.path)


class Uploader:
    """Uploads and lists one captured state at a time."""

    def __init__(
        self,
        objects: Objects,
        messages: Messages,
        settings: SnapshotSettings,
        capture: Capture,
        bandwidth: Bandwidth,
        complaints: Complaints,
        *,
        restored: Iterable[str],
    ) -> None:
        """Start the thread; ``restored`` are contents that the bucket has given this node."""
        self._objects, self._messages, self._settings = objects, messages, settings
        self._capture, self._bandwidth, self._complaints = capture, bandwidth, complaints
        self.contents = Contents(objects, bandwidth, first_share=settings.node / settings.num_nodes)
        self._recent: deque[set[str]] = deque([set(restored)], maxlen=2)
        """Contents of the latest listings; the main node may not have heard of them yet."""
        self._changed = threading.Condition()
        self._captured: Captured | None = None
        """The state that is under way."""
        self._history: tuple[NodeListing, ...] = ()
        self.error = ""
        """The reason why the latest state was not uploaded."""
        self.refusal = RefusalTimer()
        threading.Thread(target=self._run, name="uploader", daemon=True).start()

    @property
    def history(self) -> tuple[NodeListing, ...]:
        """The node's latest listings, whose contents are in the bucket, oldest first."""
        with self._changed:
            return self._history

    @property
    def listing(self) -> NodeListing | None:
        """The newest of them."""
        history = self.history
        return history[-1] if history else None

    @property
    def busy(self) -> bool:
        """True while a state is under way."""
        return self._captured is not None

    def has_other_than(self, since: float) -> bool:
        """Tell if a state that began at another time than ``since`` is under way."""
        captured = self._captured
        return captured is not None and captured.since != since

    def offer(self, captured: Captured) -> None:
        """Upload a state; nothing else is under way."""
        with self._changed:
            assert self._captured is None
            self.error, self._captured = "", captured
            self._changed.notify_all()

    def held_until(self, since: float, until: float) -> None:
        """Note that the state that began at ``since`` has held for longer."""
        with self._changed:
            if self._captured is not None and self._captured.since == since:
                self._captured = replace(self._captured, until=max(until, self._captured.until))
            self._history = tuple(
                listing.held_until(until)
                if listing.since == since and until > listing.until
                else listing
                for listing in self._history
            )

    def forget(self, digests: Iterable[str]) -> None:
        """Send these contents once more with the next state; nothing is under way."""
        self._capture.forget(set(digests))
        self._recent[-1] -= set(digests)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._captured is not None)
                captured = self._captured
            assert captured is not None
            error = refusal = ""
            try:
                self._upload(captured)
            except Changed as changed:
                # It is written to in place: from now on it is copied first.
                self._capture.was_rewritten(str(changed))
                error = f"{changed} was written to meanwhile"
            except Cancelled:
                error = "there was no time to send everything"
            except (StorageError, OSError) as failed:
                error = str(failed)
                refusal = error if isinstance(failed, StorageRefused) else ""
                self._complaints.say(
                    "storage", f"a snapshot could not be sent, the program goes on: {failed}"
                )
            except Exception as failed:
                error = describe(failed)
                log.exception("snapshots: one could not be sent, the program goes on")
            self._capture.release()
            with self._changed:
                self.refusal.note(refusal)
                self.error, self._captured = error, None

    def _upload(self, captured: Captured) -> None:
        items = [self._capture.checksum(item, self._bandwidth.check) for item in captured.items]
        digests = {item.entry.sha256 for item in items} - {""}
        fresh = {
            item.entry.sha256: item
            for item in items
            if item.source is not None and item.entry.sha256 not in self._recent[-1]
        }
        if fresh:
            # First of all, so that nobody clears away what this upload finds there and relies on.
            intent = {"digests": sorted(digests.union(*self._recent))}
            key = self._messages.intent(self._settings.node)
            self._objects.put(key, json.dumps(intent).encode())
        self.contents.upload([fresh[digest] for digest in sorted(fresh)])
        with self._changed:
            assert self._captured is not None
            until = self._captured.until
        listing = NodeListing(
            node=self._settings.node,
            since=captured.since,
            until=until,
            quiet_s=captured.quiet_s,
            entries=tuple(item.entry for item in items),
            final=captured.final,
            missing=captured.missing,
        )
        self._publish(listing)
        self._capture.remember(items)
        self._recent.append(digests)

    def _publish(self, listing: NodeListing) -> None:
        """Put the listing up for the main node, which hears of its own directly."""
        key, node = self._messages.listing, self._settings.node
        if not self._settings.is_main:
            self._objects.put(key(node, listing.name), listing.encode())
        with self._changed:
            others = [other for other in self._history if other.name != listing.name]
            forgotten, kept = others[: 1 - HISTORY], others[1 - HISTORY :]
            self._history = (*kept, listing)
        if forgotten and not self._settings.is_main:
            self._objects.delete([key(node, old.name) for old in forgotten])
