"""Uploads what a node holds: each content once, at a bounded rate, beside training."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from training.program.snapshots.capture import Changed, Held
from training.program.snapshots.manifest import OBJECTS, object_key
from training.storage import Objects

_BLOCK = 16 * 1024 * 1024
_SMALL_FILES_AT_ONCE = 8


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
            if self._cut:
                raise Cancelled

    def lift(self) -> None:
        """Let everything pass: nobody trains any more."""
        with self._changed:
            self._lifted = True
            self._changed.notify_all()

    def cut(self) -> None:
        """Let nothing pass."""
        with self._changed:
            self._cut = True
            self._changed.notify_all()

    def resume(self) -> None:
        """Let pass again what was cut off."""
        with self._changed:
            self._cut = False


class Sender:
    """One node's uploads below the run's ``snapshots/``."""

    def __init__(
        self,
        objects: Objects,
        *,
        intent_key: str,
        first_share: float,
        bandwidth: Bandwidth,
    ) -> None:
        self._objects = objects
        self._intent_key = intent_key
        self._first_share = first_share
        self._bandwidth = bandwidth
        self._listed: set[str] = set()
        self._earlier: deque[set[str]] = deque(maxlen=2)
        """Contents of the latest listings; the main node may not have heard of them yet."""
        self.sent = 0
        """Bytes of the current upload that have been sent."""
        self.total = 0
        """Bytes of the current upload."""

    def protect(self, digests: Iterable[str]) -> None:
        """Note contents that are in the bucket and that this node's listing names."""
        self._listed = set(digests)
        self._earlier.append(self._listed)

    def forget(self, digests: set[str]) -> None:
        """Note that the bucket lacks some of them."""
        self._listed -= digests

    def send(self, items: Sequence[Held]) -> None:
        """Upload every content that the bucket lacks; ``Changed``, ``Cancelled``, StorageError."""
        wanted = {item.entry.sha256: item for item in items if item.source is not None}
        fresh = {digest: item for digest, item in wanted.items() if digest not in self._listed}
        self.sent, self.total = 0, sum(item.entry.bytes for item in fresh.values())
        if not fresh:
            return
        # First of all, so that nobody clears away what this upload finds there and relies on.
        needed = {*(item.entry.sha256 for item in items), *fresh}.union(*self._earlier)
        intent = {"digests": sorted(needed - {""})}
        self._objects.put(self._intent_key, json.dumps(intent).encode())
        there = {info.key: info.size for info in self._objects.list(OBJECTS)}
        lacking = [
            item
            for digest, item in sorted(fresh.items())
            if there.get(object_key(digest)) != item.entry.bytes
        ]
        # Nodes that have the same files begin at different ones, and find what others have sent.
        first = int(self._first_share * len(lacking))
        lacking = lacking[first:] + lacking[:first]
        self.total = sum(item.entry.bytes for item in lacking)
        small = [item for item in lacking if item.entry.bytes <= _BLOCK]
        with ThreadPoolExecutor(_SMALL_FILES_AT_ONCE, thread_name_prefix="send") as pool:
            waiting = [pool.submit(self._send_small, item) for item in small]
            try:
                for future in as_completed(waiting):
                    self.sent += future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for item in lacking:
            if item.entry.bytes > _BLOCK:
                self._send_large(item)

    def _send_small(self, item: Held) -> int:
        data = _read_all(item)
        self._bandwidth.take(len(data))
        self._objects.put(object_key(item.entry.sha256), data)
        return len(data)

    def _send_large(self, item: Held) -> None:
        assert item.source is not None
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
            # An object is what its name says, or it does not come to be.
            if digest.hexdigest() != item.entry.sha256:
                raise Changed(item.entry.path)


def _opened(item: Held) -> Any:
    assert item.source is not None
    try:
        return item.source.open("rb", buffering=0)
    except FileNotFoundError:
        raise Changed(item.entry.path) from None


def _read_all(item: Held) -> bytes:
    with _opened(item) as file:
        data: bytes = file.read(item.entry.bytes)
    if hashlib.sha256(data).hexdigest() != item.entry.sha256:
        raise Changed(item.entry.path)
    return data
