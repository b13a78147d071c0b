"""Transfer documents between the nodes' snapshot processes over the launchers' connection.

A child sends the next part only after the previous one is acknowledged, so that a main node that is
slow or has a thousand children is never sent more than its connections can buffer. A document stays
in the child's outbox until the main node has written all of it to disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from training.launcher.messages import Mail, MailReceipt, Message
from training.program.snapshots.mailbox import INBOX, OUTBOX, SERIAL_DIGITS
from trainium_catalogue.safe_folder import PART_PREFIX
from trainium_catalogue.typed_json import typed

_PART_CHARACTERS = 16 * 1024
_RETRY_S = 5.0

log = logging.getLogger(__name__)


class Courier:
    """The launcher's side of document transfers."""

    def __init__(self, scratch: Path, *, is_main: bool) -> None:
        self._is_main = is_main
        self._inbox, self._outbox = scratch / INBOX, scratch / OUTBOX
        for folder in (self._inbox, self._outbox):
            folder.mkdir(exist_ok=True)
        self._failed_nodes: set[int] = set()
        """Nodes whose latest document could not be stored."""
        self._path: Path | None = None
        """The document in flight."""
        self._text = ""
        self._num_sent = 0
        self._is_waiting = False
        self._due_s = float("-inf")

    def outgoing(self) -> Iterator[Message]:
        """Yield messages: on the main node for every child, on a child for the main node."""
        if self._is_main:
            for path in self._documents():
                yield self._part(path, path.read_text(), 0)
                path.unlink()
            return
        if self._is_waiting or time.monotonic() < self._due_s:
            return
        if self._path is None or not self._path.exists():
            self._path = next(iter(self._documents()), None)
            if self._path is None:
                return
            try:
                self._text, self._num_sent = self._path.read_text(), 0
            except FileNotFoundError:  # withdrawn by its sender
                return
        self._is_waiting = True
        yield self._part(self._path, self._text, self._num_sent)

    def receive(self, node: int, message: Message) -> Message | None:
        """Handle a message from another node; return the reply, if any."""
        match message["type"]:
            case "mail":
                receipt = MailReceipt(ok=self._store(node, typed(message, Mail)))
                return {"type": "taken", **asdict(receipt)}
            case "taken":
                self._handle_receipt(typed(message, MailReceipt))
        return None

    def _documents(self) -> list[Path]:
        return sorted(
            path for path in self._outbox.iterdir() if not path.name.startswith(PART_PREFIX)
        )

    def _part(self, path: Path, text: str, start: int) -> Message:
        end = len(text) if self._is_main else start + _PART_CHARACTERS
        part = Mail(
            name=path.name[SERIAL_DIGITS + 1 :],
            text=text[start:end],
            first=start == 0,
            last=end >= len(text),
        )
        return {"type": "mail", **asdict(part)}

    def _store(self, node: int, mail: Mail) -> bool:
        part = self._inbox / f"{PART_PREFIX}{node}"
        try:
            if self._is_main and not mail.name.startswith(f"node-{node}-"):
                raise ValueError("it is named after another node")
            with part.open("wb" if mail.first else "ab") as file:
                file.write(mail.text.encode())
            if mail.last:
                part.replace(self._inbox / mail.name)
                self._failed_nodes.discard(node)
        except (OSError, ValueError) as error:  # such as a full disk, which also fails the program
            if node not in self._failed_nodes:
                log.info("launch: %s from node %d could not be stored: %s", mail.name, node, error)
            self._failed_nodes.add(node)
            return False
        return True

    def _handle_receipt(self, receipt: MailReceipt) -> None:
        self._is_waiting = False
        if self._path is None:
            return
        if not receipt.ok:
            self._num_sent, self._due_s = 0, time.monotonic() + _RETRY_S
            return
        self._num_sent += _PART_CHARACTERS
        if self._num_sent >= len(self._text):
            self._path.unlink(missing_ok=True)
            self._path = None
