"""One TCP connection between two launchers: JSON lines, never blocking."""

from __future__ import annotations

import json
import socket
from typing import Any

from training.launcher.verdict import Verdict

Message = dict[str, Any]

_MAX_LINE_BYTES = 256 * 1024


class LinkLost(Exception):
    """The connection is closed, or carries what no launcher sends."""


class Link:
    """A connected, non-blocking socket that sends and receives messages."""

    def __init__(self, connection: socket.socket, *, now_s: float) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.heard_s = now_s
        """When anything last arrived."""
        self._received = b""

    def send(self, message: Message) -> None:
        """Send a message; ``LinkLost`` when the peer no longer takes any.

        Messages are a few hundred bytes and a socket buffers many thousand, so a full buffer
        means that the peer has not read for longer than any time-out.
        """
        data = json.dumps(message).encode() + b"\n"
        try:
            sent = self.connection.send(data)
        except OSError as error:
            raise LinkLost(str(error)) from None
        if sent != len(data):
            raise LinkLost("the peer has stopped reading")

    def receive(self, now_s: float) -> tuple[list[Message], bool]:
        """Messages that have arrived, and whether the peer has closed its end after them."""
        closed = False
        while True:
            try:
                data = self.connection.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                closed = True
                break
            if not data:
                closed = True
                break
            self.heard_s = now_s
            self._received += data
            if len(self._received) > _MAX_LINE_BYTES:
                raise LinkLost("a line is too long for a launcher's")
        *lines, self._received = self._received.split(b"\n")
        return [_parse(line) for line in lines], closed

    def close(self) -> None:
        """Close it; the peer sees it at once."""
        self.connection.close()


def _parse(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError:
        raise LinkLost("a line is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise LinkLost("a line is not a launcher's message")
    try:
        _check(message)
    except (KeyError, TypeError, ValueError):
        raise LinkLost(f"a {message['type'][:20]} message is not of a launcher's form") from None
    return message


def _check(message: Message) -> None:
    """Raise when a field that a role will read is missing or of another type."""
    match message["type"]:
        case "verdict" | "stop":
            Verdict.from_message(message)
        case "hello" if message["problem"] is not None:
            Verdict.from_message(message["problem"])
        case "start":
            int(message["port"])
