"""The launchers' link: each child holds a TCP connection to the main node and sends JSON lines.

Both sides only queue and fetch messages (``messages.py``); all rules about time and codes are in
``verdict`` and ``supervisor``.
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
    """The connection is closed, or carries something no launcher sends."""


class Link:
    """A connected, non-blocking socket that sends and receives messages."""

    def __init__(self, connection: socket.socket, *, now_s: float) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.heard_s = now_s
        """Time at which anything last arrived."""
        self._received = b""

    def send(self, message: Message) -> None:
        """Send a message; ``LinkLost`` when the peer no longer takes any.

        Messages are a few hundred bytes and a socket buffers many thousands, so a full buffer
        means that the peer has not read for longer than any timeout.
        """
        data = json.dumps(message).encode() + b"\n"
        try:
            sent = self.connection.send(data)
        except OSError as error:
            raise LinkLost(str(error)) from None
        if sent != len(data):
            raise LinkLost("the peer has stopped reading")

    def receive(self, now_s: float) -> tuple[list[Message], bool]:
        """Return the messages that have arrived, and whether the peer then closed its end."""
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
        try:
            return [parse_message(line) for line in lines], closed
        except ValueError as error:
            raise LinkLost(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A message from a node."""

    node: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A node's link closed or fell silent before the node said goodbye."""

    node: int
    how: str


Event = Heard | Lost


class _Clock(HeartbeatClock):
    """Timing of heartbeats and silence, the same on both sides."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._timeout_s = timeout_s

    def silent(self, link: Link, now_s: float) -> bool:
        """Tell if a peer has been silent for too long."""
        return now_s - link.heard_s > self._timeout_s

    def listen(self, link: Link, now_s: float) -> tuple[list[Message], str | None]:
        """Return a peer's messages, and how it was lost if it was."""
        try:
            messages, closed = link.receive(now_s)
        except LinkLost as error:
            return [], str(error)
        if closed:
            return messages, "its launcher is gone"
        if self.silent(link, now_s):
            return messages, f"its launcher was silent for {self._timeout_s:g} s"
        return messages, None


class Hub:
    """The main node's side of the link."""

    def __init__(
        self, node: NodeContract, *, timeout_s: float, listener: socket.socket | None
    ) -> None:
        self._node = node
        self._clock = _Clock(timeout_s)
        self._selector = selectors.DefaultSelector()
        self._newcomers: list[Link] = []
        self.members: dict[int, Link] = {}
        self._listener = listener
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ)

    @classmethod
    def open(cls, node: NodeContract, *, timeout_s: float) -> Hub:
        """Listen for the children, if there are any; ``OSError`` if the port is unavailable."""
        listener = None
        if node.num_nodes > 1:
            listener = socket.create_server(
                (node.address, PEER_WATCH), backlog=node.num_nodes, reuse_port=False
            )
            listener.setblocking(False)
        return cls(node, timeout_s=timeout_s, listener=listener)

    def poll(self, wait_s: float) -> list[Event]:
        """Wait up to ``wait_s`` for events; returns them."""
        if self._selector.get_map():
            self._selector.select(wait_s)
        else:
            time.sleep(wait_s)
        now = time.monotonic()
        self._accept(now)
        events: list[Event] = []
        for link in list(self._newcomers):
            events += self._greet(link, now)
        for index, link in list(self.members.items()):
            events += self._hear(index, link, now)
        if self._clock.due(now):
            self.broadcast({"type": "alive"})
        return events

    @property
    def heard_s(self) -> float:
        """When the member that has been silent for longest was heard."""
        return min((link.heard_s for link in self.members.values()), default=float("inf"))

    def broadcast(self, message: Message) -> None:
        """Send to every member; a broken link shows up in the next ``poll``."""
        for index in self.members:
            self.send(index, message)

    def send(self, index: int, message: Message) -> None:
        """Send to one member; a broken link shows up in the next ``poll``."""
        link = self.members[index]
        try:
            link.send(message)
        except LinkLost:
            link.heard_s = float("-inf")

    def dismiss(self, index: int) -> None:
        """Forget a node that has ended."""
        self._drop(self.members.pop(index))

    def close(self) -> None:
        """Close everything."""
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
            except OSError:  # nobody is waiting any more
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
            if closed or self._clock.silent(link, now):  # not a launcher, or gone again
                self._newcomers.remove(link)
                self._drop(link)
            return []
        self._newcomers.remove(link)
        why = refusal(self._node, messages[0], set(self.members))
        if why is not None:
            log.info("launch: a connection is refused: %s", why)
            self._drop(link)
            return []
        index = int(messages[0]["node"])
        self.members[index] = link
        self.send(index, {"type": "welcome"})
        return [Heard(node=index, message=message) for message in messages]

    def _hear(self, index: int, link: Link, now: float) -> list[Event]:
        messages, how = self._clock.listen(link, now)
        events: list[Event] = [Heard(node=index, message=message) for message in messages]
        if how is not None:
            self.dismiss(index)
            if not any(message["type"] == "ended" for message in messages):
                events.append(Lost(node=index, how=how))
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
        """True while there is a link."""
        return self._link is not None

    def connect(self, first: Message, wait_s: float) -> bool:
        """Try to reach the main node for up to ``wait_s``, and send ``first`` on success."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # From the node's own address, which the security groups and the main node know.
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
        """Wait up to ``wait_s`` for the main node; returns its messages, or its loss."""
        link, main = self._link, self._node.main_index
        if link is None:
            time.sleep(wait_s)
            return []
        with selectors.DefaultSelector() as selector:
            selector.register(link.connection, selectors.EVENT_READ)
            selector.select(wait_s)
        now = time.monotonic()
        messages, how = self._clock.listen(link, now)
        if how is None and self._clock.due(now) and not self.send({"type": "alive"}):
            how = "its launcher is gone"
        events: list[Event] = [Heard(node=main, message=message) for message in messages]
        if how is not None:
            self.last_error = how
            self.close()
            events.append(Lost(node=main, how=how))
        return events

    def send(self, message: Message) -> bool:
        """Send a message; False if the link is broken, which the next ``poll`` reports."""
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
