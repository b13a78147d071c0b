"""The thread that uploads captured contents, each once, and lists them."""

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
from training.program.snapshots.barrier import HISTORY, NodeListing
from training.program.snapshots.capture import Capture, FileChanged, HeldEntry
from training.program.snapshots.mailbox import Mailbox, intent_name, listing_name
from training.program.snapshots.manifest import OBJECTS, object_key
from training.program.snapshots.process import SnapshotSettings
from training.storage import Objects, StorageError, StorageRefused

_BLOCK_BYTES = 16 * 1024 * 1024
_SMALL_FILES_AT_ONCE = 8
_LOG_INTERVAL_S = 60.0

log = logging.getLogger(__name__)


class UploadCancelled(Exception):
    """The upload was cancelled, because time ran out or a newer state replaces it."""


class Bandwidth:
    """A rate limit shared by threads; it can be lifted, and all uploads can be cancelled."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._changed = threading.Condition()
        self._lifted = self._cut = False

    def take(self, count: int) -> None:
        """Wait until ``count`` bytes may be sent; raise ``UploadCancelled`` after ``cut``."""
        with self._changed:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + count / self._bytes_per_s
            while (
                not self._cut and not self._lifted and (remaining := begin - time.monotonic()) > 0
            ):
                self._changed.wait(remaining)
        self.check()

    def check(self) -> None:
        """Raise ``UploadCancelled`` after ``cut``."""
        if self._cut:
            raise UploadCancelled

    def lift(self) -> None:
        """Remove the rate limit, even after ``cut``, because training has ended."""
        self._set(lifted=True, cut=False)

    def cut(self) -> None:
        """Cancel all uploads."""
        self._set(lifted=self._lifted, cut=True)

    def _set(self, *, lifted: bool, cut: bool) -> None:
        with self._changed:
            self._lifted, self._cut = lifted, cut
            self._changed.notify_all()


class ThrottledLog:
    """Logs problems at a limited rate."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}

    def log(self, about: str, text: str) -> None:
        """Log ``text`` unless a message about the same subject was logged recently."""
        now = time.monotonic()
        if now - self._logged_s.get(about, float("-inf")) >= _LOG_INTERVAL_S:
            self._logged_s[about] = now
            log.info("snapshots: %s", text)


class ProblemTimer:
    """Measures how long a problem lasts, such as the refusal of all of a thread's requests."""

    def __init__(self) -> None:
        self.text = ""
        self._since_s = 0.0

    def note(self, problem: str) -> None:
        """Record the present problem; an empty string if there is none."""
        if problem and not self.text:
            self._since_s = time.monotonic()
        self.text = problem

    @property
    def lasts_s(self) -> float:
        """Seconds since the problem began; 0 if there is none."""
        return time.monotonic() - self._since_s if self.text else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedState:
    """A node's captured entries, valid from ``since`` to ``until``."""

    items: Sequence[HeldEntry]
    since: float
    until: float
    quiet_s: float
    final: bool = False
    missing: str = ""
    """The reason for an empty final state."""


class Contents:
    """Uploads contents below the run's ``snapshots/objects/``."""

    def __init__(self, objects: Objects, bandwidth: Bandwidth, *, first_share: float) -> None:
        self._objects, self._bandwidth = objects, bandwidth
        self._first_share = first_share
        self._before = 0
        self.sent = 0
        """Bytes of the current upload sent so far."""
        self.total = 0
        """Total bytes of the current upload."""

    @property
    def progress(self) -> int:
        """Total bytes ever sent; decreases if an upload fails in the middle of a file."""
        return self._before + self.sent

    def upload(self, items: Sequence[HeldEntry]) -> None:
        """Upload missing contents; raise ``FileChanged``, ``UploadCancelled``, ``StorageError``."""
        self._before += self.sent
        self.sent, self.total = 0, sum(item.entry.bytes for item in items)
        if not items:
            return
        stored = {info.key: info.size for info in self._objects.list(OBJECTS)}
        missing = [i for i in items if stored.get(object_key(i.entry.sha256)) != i.entry.bytes]
        # Nodes with the same files upload them in different orders: when one lists the bucket, it
        # skips those that others have uploaded.
        first = int(self._first_share * len(missing))
        missing = missing[first:] + missing[:first]
        self.total = sum(item.entry.bytes for item in missing)
        small = [item for item in missing if item.entry.bytes <= _BLOCK_BYTES]
        arrived = 0
        try:
            for count in in_threads(
                self._upload_small, small, at_once=_SMALL_FILES_AT_ONCE, name="upload"
            ):
                arrived += count
                self.sent = arrived
            for item in missing:
                if item.entry.bytes > _BLOCK_BYTES:
                    self._upload_large(item)
                    arrived += item.entry.bytes
        finally:
            self.sent = arrived

    def _upload_small(self, item: HeldEntry) -> int:
        with _open_source(item) as file:
            data = file.read(item.entry.bytes)
        _check(item, hashlib.sha256(data))
        self._bandwidth.take(len(data))
        self._objects.put(object_key(item.entry.sha256), data)
        return len(data)

    def _upload_large(self, item: HeldEntry) -> None:
        digest, remaining = hashlib.sha256(), item.entry.bytes
        with (
            _open_source(item) as file,
            self._objects.create(object_key(item.entry.sha256), size=remaining) as stream,
        ):
            target: Any = stream
            while remaining and (block := file.read(min(_BLOCK_BYTES, remaining))):
                self._bandwidth.take(len(block))
                digest.update(block)
                target.write(block)
                remaining -= len(block)
                self.sent += len(block)
            _check(item, digest)


def _open_source(item: HeldEntry) -> Any:
    assert item.source is not None
    try:
        return item.source.open("rb", buffering=0)
    except FileNotFoundError:
        raise FileChanged(item.entry.path) from None


def _check(item: HeldEntry, digest: Any) -> None:
    """Raise ``FileChanged`` unless the content matches its SHA-256."""
    if digest.hexdigest() != item.entry.sha256:
        raise FileChanged(item.entry.path)


class Uploader:
    """Uploads and lists one captured state at a time."""

    def __init__(
        self,
        objects: Objects,
        mailbox: Mailbox,
        settings: SnapshotSettings,
        capture: Capture,
        bandwidth: Bandwidth,
        throttled_log: ThrottledLog,
        *,
        restored: Iterable[str],
    ) -> None:
        """Start the thread; ``restored`` are digests of contents restored on this node."""
        self._mailbox, self._settings = mailbox, settings
        self._capture, self._bandwidth, self._throttled_log = capture, bandwidth, throttled_log
        self.contents = Contents(objects, bandwidth, first_share=settings.node / settings.num_nodes)
        self._recent: deque[set[str]] = deque([set(restored)], maxlen=2)
        """Digests in the latest listings, which the main node may not have received yet."""
        self._changed = threading.Condition()
        self._captured: CapturedState | None = None
        """The state in flight."""
        self._history: tuple[NodeListing, ...] = ()
        self.error = ""
        """The reason why the latest state was not uploaded."""
        self.refusal = ProblemTimer()
        threading.Thread(target=self._run, name="uploader", daemon=True).start()

    @property
    def history(self) -> tuple[NodeListing, ...]:
        """The node's latest listings, whose contents are in the bucket, oldest first."""
        with self._changed:
            return self._history

    @property
    def listing(self) -> NodeListing | None:
        """The newest listing."""
        history = self.history
        return history[-1] if history else None

    @property
    def busy(self) -> bool:
        """True while a state is in flight."""
        return self._captured is not None

    def has_other_than(self, since: float) -> bool:
        """Return whether a state with a start other than ``since`` is in flight."""
        captured = self._captured
        return captured is not None and captured.since != since

    def offer(self, captured: CapturedState) -> None:
        """Queue a state for upload; no other may be in flight."""
        with self._changed:
            assert self._captured is None
            self.error, self._captured = "", captured
            self._changed.notify_all()

    def extend_until(self, since: float, until: float) -> None:
        """Extend the validity of the state from ``since``."""
        with self._changed:
            if self._captured is not None and self._captured.since == since:
                self._captured = replace(self._captured, until=max(until, self._captured.until))
            self._history = tuple(
                replace(listing, until=until)
                if listing.since == since and until > listing.until
                else listing
                for listing in self._history
            )

    def forget(self, digests: Iterable[str]) -> None:
        """Upload these contents again with the next state; no state may be in flight."""
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
            except FileChanged as changed:
                # The file is modified in place, so copy it from now on.
                self._capture.mark_rewritten(str(changed))
                error = f"{changed} was modified during the upload"
            except UploadCancelled:
                error = "there was not enough time to upload everything"
            except (StorageError, OSError) as failed:
                error = str(failed)
                refusal = error if isinstance(failed, StorageRefused) else ""
                self._throttled_log.log(
                    "storage", f"a snapshot could not be uploaded; the program continues: {failed}"
                )
            except Exception as failed:
                error = describe(failed)
                log.exception("snapshots: a snapshot could not be uploaded; the program continues")
            self._capture.release()
            with self._changed:
                self.refusal.note(refusal)
                self.error, self._captured = error, None

    def _upload(self, captured: CapturedState) -> None:
        items = [self._capture.checksum(item, self._bandwidth.check) for item in captured.items]
        digests = {item.entry.sha256 for item in items} - {""}
        fresh = {
            item.entry.sha256: item
            for item in items
            if item.source is not None and item.entry.sha256 not in self._recent[-1]
        }
        if fresh:
            # Announce first, so that existing contents this upload relies on are not deleted.
            intent = {"digests": sorted(digests.union(*self._recent))}
            name = intent_name(self._settings.node)
            self._mailbox.send_to_main(name, json.dumps(intent).encode(), self._bandwidth.check)
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
        """Send the listing to the main node, unless this is the main node."""
        if not self._settings.is_main:
            name = listing_name(self._settings.node, listing.name)
            self._mailbox.send_to_main(name, listing.encode(), self._bandwidth.check)
        with self._changed:
            others = [other for other in self._history if other.name != listing.name]
            self._history = (*others[1 - HISTORY :], listing)
