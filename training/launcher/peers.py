"""The launchers' link: a TCP connection from each child to the main node, carrying JSON lines.

Both sides only send and receive messages (``messages.py``); the rules for timeouts and exit codes
are in ``verdict`` and ``supervisor``.
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import time
from dataclasses import dataclass

from training.core.contract import NodeContract
from training.core.heartbeat import HeartbeatClock
from training.launcher.messages import Message, parse_message, refusal
from trainium_catalogue.contract import PEER_WATCH

_MAX_LINE_BYTES = 256 * 1024

log = logging.getLogger(__name__)


class LinkLost(Exception):
    """The connection is closed, or received data that is not a launcher's message."""


class Link:
    """A connected, non-blocking socket that sends and receives messages."""

    def __init__(self, connection: socket.socket, *, now_s: float) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.last_received_s = now_s
        """Time of the last received data."""
        self._received = self._unsent = b""

    def send(self, message: Message) -> None:
        """Send a message; raise ``LinkLost`` if the peer no longer receives.

        Data that does not fit into the socket's buffer is sent with the next message, at the
        latest the next ``alive``.
        """
        self._unsent += json.dumps(message).encode() + b"\n"
        try:
            self._unsent = self._unsent[self.connection.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise LinkLost(str(error)) from None
        if len(self._unsent) > _MAX_LINE_BYTES:
            raise LinkLost("the peer has stopped reading")

    def receive(self, now_s: float) -> tuple[list[Message], bool]:
        """Return the received messages, and whether the peer then closed the connection."""
        closed = False
        while len(self._received) < _MAX_LINE_BYTES:  # the rest stays for the next call
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
            self.last_received_s = now_s
            self._received += data
        *lines, self._received = self._received.split(b"\n")
        if len(self._received) >= _MAX_LINE_BYTES:
            raise LinkLost("a line is too long for a launcher's message")
        try:
            return [parse_message(line) for line in lines], closed
        except ValueError as error:
            raise LinkLost(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMessage:
    """A message from a node."""

    node: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLoss:
    """The loss of a node: its link closed or fell silent before the node sent ``ended``."""

    node: int
    how: str


Event = PeerMessage | PeerLoss


class _Clock(HeartbeatClock):
    """Timing of heartbeats and silence, for both sides."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._timeout_s = timeout_s

    def silent(self, link: Link, now_s: float) -> bool:
        """Return whether a peer has been silent for longer than the timeout."""
        return now_s - link.last_received_s > self._timeout_s

    def receive(self, link: Link, now_s: float) -> tuple[list[Message], str | None]:
        """Return a peer's messages and, if it was lost, how."""
        try:
            messages, closed = link.receive(now_s)
        except LinkLost as error:
            return [], str(error)
        if closed:
            return messages, "its launcher exited"
        if self.silent(link, now_s):
            return messages, f"its launcher was silent for {self._timeout_s:g} s"
        return messages, None


class Hub:
    """The main node's side of the link."""

    def __init__(self, node: NodeContract, *, timeout_s: float) -> None:
        """Listen for children, if any; raise ``OSError`` if the port is unavailable."""
        self._node = node
        self._clock = _Clock(timeout_s)
        self._newcomers: list[Link] = []
        self.members: dict[int, Link] = {}
        self._listener: socket.socket | None = None
        if node.num_nodes > 1:
            self._listener = socket.create_server(
                (node.address, PEER_WATCH), backlog=node.num_nodes
            )
            self._listener.setblocking(False)
        # Created once the port is bound: if that fails, the caller tries again.
        self._selector = selectors.DefaultSelector()
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)

    def poll(self, wait_s: float) -> list[Event]:
        """Wait up to ``wait_s`` for events and return them."""
        ready: list[int | None] = []
        if self._selector.get_map():
            ready = [key.data for key, _ in self._selector.select(wait_s)]
        else:
            time.sleep(wait_s)
        now = time.monotonic()
        self._accept(now)
        events: list[Event] = []
        for link in list(self._newcomers):
            events += self._greet(link, now)
        is_due = self._clock.due(now)
        # Polling a thousand nodes whenever one sends would use a whole core.
        for index in list(self.members) if is_due else ready:
            if index is not None:
                events += self._receive_from(index, self.members[index], now)
        if is_due:
            self.broadcast({"type": "alive"})
        return events

    @property
    def last_received_s(self) -> float:
        """Time of the last message from the longest-silent member."""
        return min((link.last_received_s for link in self.members.values()), default=float("inf"))

    def broadcast(self, message: Message) -> None:
        """Send to every member; the next ``poll`` reports a broken link."""
        for index in self.members:
            self.send(index, message)

    def send(self, index: int, message: Message) -> None:
        """Send to a node, if still a member; the next ``poll`` reports a broken link."""
        if (link := self.members.get(index)) is None:
            return
        try:
            link.send(message)
        except LinkLost:
            link.last_received_s = float("-inf")

    def dismiss(self, index: int) -> None:
        """Remove a node that has ended or was lost, and close its connection."""
        self._drop(self.members.pop(index))

    def close(self) -> None:
        """Close the listener and every connection."""
        for link in (*self._newcomers, *self.members.values()):
            self._drop(link)
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, now: float) -> None:
        while self._listener is not None:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no more pending connections
                return
            link = Link(connection, now_s=now)
            self._newcomers.append(link)
            self._selector.register(connection, selectors.EVENT_READ)

    def _greet(self, link: Link, now: float) -> list[Event]:
        try:
            messages, closed = link.receive(now)
        except LinkLost:
            messages, closed = [], True
        if not messages:
            if closed or self._clock.silent(link, now):  # not a launcher, or already disconnected
                self._newcomers.remove(link)
                self._drop(link)
            return []
        self._newcomers.remove(link)
        why = refusal(self._node, messages[0], set(self.members))
        if why is not None:
            log.info("launch: a connection was rejected: %s", why)
            self._drop(link)
            return []
        index = int(messages[0]["node"])
        self.members[index] = link
        self._selector.modify(link.connection, selectors.EVENT_READ, index)
        self.send(index, {"type": "welcome"})
        return [PeerMessage(node=index, message=message) for message in messages]

    def _receive_from(self, index: int, link: Link, now: float) -> list[Event]:
        messages, how = self._clock.receive(link, now)
        events: list[Event] = [PeerMessage(node=index, message=message) for message in messages]
        if how is not None:
            self.dismiss(index)
            if not any(message["type"] == "ended" for message in messages):
                events.append(PeerLoss(node=index, how=how))
        return events

    def _drop(self, link: Link) -> None:
        self._selector.unregister(link.connection)
        link.connection.close()


class Spoke:
    """A child's side of the link."""

    def __init__(self, node: NodeContract, *, timeout_s: float) -> None:
        self._node = node
        self._clock = _Clock(timeout_s)
        self._link: Link | None = None
        self.last_error = "not tried yet"

    @property
    def connected(self) -> bool:
        """True while connected."""
        return self._link is not None

    def connect(self, first: Message, wait_s: float) -> bool:
        """Try to connect to the main node for up to ``wait_s``, and send ``first`` on success."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # From the node's own address, which security groups allow and the main node expects.
            connection.bind((self._node.address, 0))
            connection.settimeout(wait_s)
            connection.connect((self._node.main_address, PEER_WATCH))
        except OSError as error:
            connection.close()
            self.last_error = "no answer" if isinstance(error, TimeoutError) else str(error)
            return False
        self._link = Link(connection, now_s=time.monotonic())
        return self.send(first)

    def poll(self, wait_s: float) -> list[Event]:
        """Wait up to ``wait_s`` for the main node; return its messages, or its loss."""
        link, main = self._link, self._node.main_index
        if link is None:
            time.sleep(wait_s)
            return []
        with selectors.DefaultSelector() as selector:
            selector.register(link.connection, selectors.EVENT_READ)
            selector.select(wait_s)
        now = time.monotonic()
        messages, how = self._clock.receive(link, now)
        if how is None and self._clock.due(now) and not self.send({"type": "alive"}):
            how = "its launcher exited"
        events: list[Event] = [PeerMessage(node=main, message=message) for message in messages]
        if how is not None:
            self.last_error = how
            self.close()
            events.append(PeerLoss(node=main, how=how))
        return events

    def send(self, message: Message) -> bool:
        """Send a message; return False if the link is broken, which the next ``poll`` reports."""
        if self._link is None:
            return False
        try:
            self._link.send(message)
        except LinkLost:
            return False
        return True

    def close(self) -> None:
        """Close the link."""
        if self._link is not None:
            self._link.connection.close()
            self._link = None
