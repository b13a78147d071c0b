"""Exchange of documents between a job's snapshot processes without the bucket.

A process writes documents to a folder, and its launcher sends them over the launchers' connection
(``training/launcher/courier.py``): a child's to the main node, the main node's to every child. So
the number of requests to the bucket does not grow with the number of nodes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from training.core.files import write_whole
from training.storage import LocalObjects, StorageUnavailable

INBOX = "mail-in"
OUTBOX = "mail-out"
SERIAL_DIGITS = 20
"""Number of digits in the prefix that orders documents in the outbox."""
MISSING = "missing.json"
"""The main node's document, which names listed contents that are missing from the bucket."""
_LISTING = re.compile(r"node-(\d+)-(\d{15})\.json")
_TICK_S = 0.05
_LIMIT_S = 600.0
"""Time limit for a document to reach the main node, which may be slow with many nodes."""


def listing_name(node: int, name: str) -> str:
    """Return the document name of one of a node's latest listings."""
    return f"node-{node}-{name}.json"


def read_listing_name(document: str) -> tuple[int, str] | None:
    """Return node and name of a listing; None for other documents."""
    match = _LISTING.fullmatch(document)
    return (int(match[1]), match[2]) if match else None


def until_name(node: int) -> str:
    """Return the name of the small document, updated often, with the end times of listings."""
    return f"node-{node}-until.json"


def intent_name(node: int) -> str:
    """Return the name of the document of contents that a node has listed or is about to list."""
    return f"node-{node}-sends.json"


class Mailbox:
    """A snapshot process's end of the exchange."""

    def __init__(self, scratch: Path, *, is_main: bool) -> None:
        self._is_main = is_main
        self._inbox, self._outbox = scratch / INBOX, scratch / OUTBOX
        for folder in (self._inbox, self._outbox):
            folder.mkdir(exist_ok=True)
        self.received = LocalObjects(self._inbox)
        """All nodes' documents on the main node; on a child, the main node's."""

    def send_to_main(
        self, name: str, document: bytes, check: Callable[[], None] = lambda: None
    ) -> None:
        """Send a document to the main node, and wait until it arrives.

        Aborts if ``check`` raises; raises ``StorageUnavailable`` after ``_LIMIT_S``.
        """
        if self._is_main:
            write_whole(self._inbox / name, document)
            return
        path = self._post(name, document)
        limit_s = time.monotonic() + _LIMIT_S
        try:
            while path.exists():
                check()
                if time.monotonic() > limit_s:
                    raise StorageUnavailable(f"the main node has not received {name}")
                time.sleep(_TICK_S)
        finally:
            path.unlink(missing_ok=True)

    def send_to_all(self, name: str, document: bytes) -> None:
        """Send a document from the main node to every node, including itself."""
        write_whole(self._inbox / name, document)
        self._post(name, document)

    def _post(self, name: str, document: bytes) -> Path:
        path = self._outbox / f"{time.time_ns():0{SERIAL_DIGITS}}-{name}"
        write_whole(path, document)
        return path
