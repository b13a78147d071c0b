"""A node's thread that brings what was captured to the bucket, and lists it there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from training.core.failures import describe
from training.program.snapshots.capture import Capture, Changed, Held
from training.program.snapshots.coordinator import Messages
from training.program.snapshots.manifest import HISTORY, Listing
from training.program.snapshots.sending import Bandwidth, Cancelled, Sender
from training.storage import Objects, StorageError, StorageRefused

_BETWEEN_COMPLAINTS_S = 60.0

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What a node held at one instant."""

    items: Sequence[Held]
    since: float
    until: float
    quiet_s: float
    final: bool = False


class Uploader:
    """Delivers one parcel at a time."""

    def __init__(
        self,
        objects: Objects,
        messages: Messages,
        capture: Capture,
        sender: Sender,
        bandwidth: Bandwidth,
        *,
        node: int,
        publishes: bool,
    ) -> None:
        self._objects, self._messages, self._node = objects, messages, node
        self._capture, self._sender, self._bandwidth = capture, sender, bandwidth
        self._publishes = publishes
        self._complaints = Complaints()
        self._lock = threading.Condition()
        self._parcel: Parcel | None = None
        self._busy = False
        self._since = 0.0
        self._held = 0.0, 0.0
        """Start of the folder's present state, and the time up to which it has held."""
        self._history: tuple[Listing, ...] = ()
        self.error = ""
        """The reason why the latest parcel was not delivered."""
        self.refusal = ""
        """The same, if it would not be delivered another time either."""
        threading.Thread(target=self._run, name="delivery", daemon=True).start()

    @property
    def history(self) -> tuple[Listing, ...]:
        """The node's latest listings, complete in the bucket, oldest first."""
        with self._lock:
            return self._history

    @property
    def listing(self) -> Listing | None:
        """The newest of them."""
        history = self.history
        return history[-1] if history else None

    @property
    def busy(self) -> bool:
        """True while a parcel is under way."""
        with self._lock:
            return self._busy or self._parcel is not None

    @property
    def since(self) -> float:
        """Start of the state that is under way."""
        return self._since

    def offer(self, parcel: Parcel) -> None:
        """Deliver a parcel; nothing else is under way."""
        with self._lock:
            assert self._parcel is None and not self._busy
            self.error, self._since = "", parcel.since
            self._parcel = parcel
            self._lock.notify_all()

    def list_nothing(self, reason: str, at: float) -> None:
        """Tell that this node has no final state."""
        listing = Listing(
            node=self._node, since=at, until=at, quiet_s=0.0, entries=(), final=True, missing=reason
        )
        self._publish(listing)

    def held_until(self, since: float, until: float) -> None:
        """Note that what is listed has held for longer."""
        with self._lock:
            self._held = since, until
            self._history = tuple(
                listing.held_until(until)
                if listing.since == since and until > listing.until
                else listing
                for listing in self._history
            )

    def forget(self, digests: set[str]) -> None:
        """Send these contents once more with the next parcel."""
        self._capture.forget(digests)
        self._sender.forget(digests)

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes of the parcel that have been sent, and all of them."""
        return self._sender.sent, self._sender.total

    def _run(self) -> None:
        while True:
            with self._lock:
                while self._parcel is None:
                    self._lock.wait()
                parcel, self._parcel, self._busy = self._parcel, None, True
            error = refusal = ""
            try:
                self._deliver(parcel)
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
                log.exception("snapshots: a snapshot could not be sent, the program goes on")
            self._capture.release()
            with self._lock:
                self.error, self.refusal, self._busy = error, refusal, False

    def _deliver(self, parcel: Parcel) -> None:
        items = [self._capture.checksum(item) for item in parcel.items]
        self._sender.send(items)
        with self._lock:
            since, until = self._held
        listing = Listing(
            node=self._node,
            since=parcel.since,
            until=max(parcel.until, until) if since == parcel.since else parcel.until,
            quiet_s=parcel.quiet_s,
            entries=tuple(item.entry for item in items),
            final=parcel.final,
        )
        self._publish(listing)
        self._capture.remember(items)
        self._sender.protect(entry.sha256 for entry in listing.entries if entry.sha256)

    def _publish(self, listing: Listing) -> None:
        if self._publishes:
            key = self._messages.listing(self._node, listing.name)
            self._objects.put(key, listing.encode())
        with self._lock:
            others = [other for other in self._history if other.name != listing.name]
            forgotten = others[: -(HISTORY - 1)]
            self._history = (*others[-(HISTORY - 1) :], listing)
        if self._publishes and forgotten:
            self._objects.delete([self._messages.listing(self._node, x.name) for x in forgotten])
