"""The launchers' connection, over real sockets."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.limits import scaled
from tests.training.nodes import CPU_NODE
from training.core.contract import NodeContract
from training.launcher.messages import _CONTENTS, hello, refusal
from training.launcher.peers import Event, Hub, Link, LinkLost, PeerLoss, PeerMessage, Spoke
from training.launcher.verdict import Verdict
from trainium_catalogue.exit_codes import ExitCode

TIMEOUT_S = 1.0
NETWORK = f"127.{64 + os.getpid() % 128}.251"
MAIN = replace(
    CPU_NODE, num_nodes=3, address=f"{NETWORK}.2", main_address=f"{NETWORK}.2", attempt=2
)


def child(index: int) -> NodeContract:
    return replace(MAIN, node_index=index, address=f"{NETWORK}.{2 + index}")


@pytest.fixture
def hub() -> Iterator[Hub]:
    opened = Hub(MAIN, timeout_s=TIMEOUT_S)
    yield opened
    opened.close()


def collect(poll: Callable[[float], list[Event]], *, until: Callable[[Event], bool]) -> list[Event]:
    """Return the events up to the expected one."""
    events: list[Event] = []
    deadline = time.monotonic() + scaled(10)
    while not any(until(event) for event in events):
        assert time.monotonic() < deadline, events
        events += poll(0.05)
    return events


def heard(kind: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, PeerMessage) and event.message["type"] == kind


def is_lost(event: Event) -> bool:
    return isinstance(event, PeerLoss)


def join(hub: Hub, node: NodeContract, problem: Verdict | None = None) -> Spoke:
    spoke = Spoke(node, timeout_s=TIMEOUT_S)
    assert spoke.connect(hello(node, problem), 1)
    collect(hub.poll, until=heard("hello"))
    collect(spoke.poll, until=heard("welcome"))
    return spoke


def test_a_silent_child_is_lost_after_the_timeout(hub: Hub) -> None:
    spoke = join(hub, child(1))

    events = collect(hub.poll, until=is_lost)

    assert events[-1] == PeerLoss(node=1, how="its launcher was silent for 1 s")
    spoke.close()


def test_a_child_that_left_in_order_is_not_lost(hub: Hub) -> None:
    spoke = join(hub, child(1))
    spoke.send({"type": "ended"})
    spoke.close()

    events = collect(hub.poll, until=heard("ended"))

    assert not [event for event in [*events, *hub.poll(0.2)] if is_lost(event)]
    assert hub.members == {}


def test_messages_of_a_lost_child_are_still_read(hub: Hub) -> None:
    spoke = join(hub, child(1))
    verdict = Verdict(code=ExitCode.WORKLOAD, reason="it failed")
    spoke.send({"type": "verdict", **asdict(verdict)})
    spoke.close()

    events = collect(hub.poll, until=is_lost)

    assert [heard("verdict")(event) for event in events][-2:] == [True, False]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (replace(child(1), attempt=1), "its job, attempt and number of nodes are"),
        (replace(child(1), job_id="other"), "its job, attempt and number of nodes are"),
        (replace(child(1), node_index=3), "there is no child node 3"),
        (replace(child(1), node_index=0), "there is no child node 0"),
    ],
)
def test_an_unknown_peer_is_refused(
    hub: Hub, node: NodeContract, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoke = Spoke(node, timeout_s=TIMEOUT_S)
    assert spoke.connect(hello(node, None), 1)

    assert hub.poll(0.5) == []

    collect(spoke.poll, until=is_lost)
    assert why in capsys.readouterr().out
    assert hub.members == {}


def test_a_second_node_of_the_same_index_is_refused() -> None:
    assert refusal(MAIN, hello(child(1), None), {1}) == "node 1 has already joined"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"type": "hello"}\n',
        b'{"type": "hello", "problem": {"code": 12}}\n',
        b"x" * 300_000,
        b"",
    ],
)
def test_foreign_messages_do_no_harm(hub: Hub, data: bytes) -> None:
    with socket.create_connection((MAIN.address, 41001)) as outsider:
        outsider.sendall(data)
        hub.poll(0.2)
        spoke = join(hub, child(1))

    assert list(hub.members) == [1]
    spoke.close()


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    return left, right


# Hypothesis also draws words from the code itself, and messages of known types have more fields.
UNKNOWN_TYPE = st.text(max_size=5).filter(lambda text: text not in _CONTENTS)
MESSAGES = st.lists(
    st.fixed_dictionaries({"type": UNKNOWN_TYPE}, optional={"reason": st.text(max_size=50)}),
    max_size=6,
)


@given(MESSAGES, st.integers(1, 40))
def test_messages_arrive_complete_however_the_network_splits_them(
    messages: list[dict[str, str]], piece: int
) -> None:
    data = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    left, right = connected_pair()
    with left, right:
        link = Link(right, now_s=0)
        arrived = []
        for start in range(0, len(data), piece):
            left.sendall(data[start : start + piece])
            arrived += link.receive(1)[0]
        deadline = time.monotonic() + scaled(5)
        while len(arrived) < len(messages) and time.monotonic() < deadline:
            arrived += link.receive(1)[0]

    assert arrived == messages


def test_a_peer_that_stops_reading_counts_as_lost() -> None:
    left, right = connected_pair()
    with left, right:
        link = Link(left, now_s=0)
        with pytest.raises(LinkLost, match=r".+"):
            for _ in range(100_000):
                link.send({"type": "alive", "filler": "x" * 1000})


def test_bytes_a_full_buffer_rejects_go_with_the_next_message() -> None:
    left, right = connected_pair()
    with left, right:
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sender, receiver = Link(left, now_s=0), Link(right, now_s=0)
        sent = [{"type": "alive", "filler": str(number) * 80_000} for number in range(3)]
        for message in sent:
            sender.send(message)
        assert sender._unsent
        arrived: list[object] = []
        deadline = time.monotonic() + scaled(5)
        while len(arrived) <= len(sent) and time.monotonic() < deadline:
            arrived += receiver.receive(1)[0]
            sender.send({"type": "alive"})
            time.sleep(0.01)

    assert arrived[: len(sent)] == sent


def test_a_backlog_of_messages_is_not_a_long_line() -> None:
    message = {"type": "alive", "filler": "x" * 8000}
    left, right = connected_pair()
    with left, right:
        receiver = Link(right, now_s=0)
        data = (json.dumps(message).encode() + b"\n") * 100
        threading.Thread(target=left.sendall, args=(data,), daemon=True).start()
        time.sleep(0.2)
        arrived: list[object] = []
        deadline = time.monotonic() + scaled(5)
        while len(arrived) < 100 and time.monotonic() < deadline:
            arrived += receiver.receive(1)[0]

    assert arrived == [message] * 100
