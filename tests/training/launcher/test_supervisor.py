"""What the main node and the children do once the job is decided."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tests.training.nodes import CPU_NODE
from training.core.arguments import parse
from training.launcher import supervisor
from training.launcher.attempts import AttemptRecorder
from training.launcher.guardian import Guardian
from training.launcher.node import GracePeriod, StopRequest, WorkerNode
from training.launcher.peers import Event, PeerMessage
from training.launcher.supervisor import ChildRole, LauncherContext, MainRole
from training.launcher.verdict import Verdict
from trainium_catalogue.exit_codes import ExitCode

GRACE_S = 1.0
CLOSING_S = 0.2
STOPPED = Verdict(code=ExitCode.STOPPED, reason="stop requested", graceful=True)


class Workers(WorkerNode):
    """Workers that never exit on their own."""

    running = True
    asked = 0

    def __init__(self) -> None:
        """Start nothing."""

    def send_sigterm(self) -> None:
        self.asked += 1

    def start(self, rendezvous_port: int) -> None:
        """Already running."""

    def poll(self, now_s: float) -> None:
        """Report no failure."""

    def kill(self, heartbeat: Callable[[], None]) -> None:
        self.running = False


@dataclass
class SilentChildren:
    """Children that never report that they have ended."""

    members: set[int] = field(default_factory=lambda: {1})
    told: list[str] = field(default_factory=list)

    def broadcast(self, message: Any) -> None:
        self.told.append(message["type"])

    def poll(self, wait_s: float) -> list[Any]:
        time.sleep(0.01)
        return []

    def close(self) -> None:
        """Nothing to close."""


def test_a_first_stop_request_shortens_a_longer_grace_and_a_second_does_not() -> None:
    stop = StopRequest()
    period = GracePeriod(480.0, stop, stop_grace_s=90.0)
    assert 90.0 < period.ends_s() - time.monotonic() <= 480.0

    stop.count = 1
    ends_s = period.ends_s()
    stop.count = 2

    assert 0 < ends_s - time.monotonic() <= 90.0
    assert (period.ends_s(), period.length_s) == (ends_s, 90.0)


def _context(workers: Workers, stop: StopRequest) -> LauncherContext:
    return LauncherContext(
        node=CPU_NODE,
        parameters=parse(["all-reduce", f"--stop-grace-s={GRACE_S}", "--join-timeout-s=5"]).launch,
        local=workers,
        guardian=Mock(Guardian),
        stop=stop,
        recorder=AttemptRecorder(CPU_NODE, "all-reduce"),
    )


BLOCK_ENDS = Verdict(code=ExitCode.TIME_LIMIT, reason="the block ends", graceful=True, grace_s=60.0)


@pytest.mark.parametrize("already", [0, 1])
def test_a_main_node_stopped_before_its_block_ends_says_so(
    already: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_CLOSING_S", CLOSING_S)
    stop, children = StopRequest(count=already), SilentChildren()

    def poll(wait_s: float) -> list[Any]:
        stop.count = 1  # the workers have been stopped
        time.sleep(0.01)
        return []

    monkeypatch.setattr(children, "poll", poll)
    MainRole(_context(Workers(), stop))._finish(cast(Any, children), BLOCK_ENDS)

    assert children.told == ["stop", "stop"]


class Spoke:
    """A main node that decides, then has less time than it announced."""

    def __init__(self) -> None:
        stops: list[Any] = [{"type": "stop", **asdict(BLOCK_ENDS)}] * 2
        self._messages: list[Any] = [{"type": "welcome"}, {"type": "start", "port": 1}, *stops]
        self.connected = False

    def connect(self, first: Any, wait_s: float) -> bool:
        self.connected = True
        return True

    def poll(self, wait_s: float) -> list[Event]:
        time.sleep(0.01)
        return [PeerMessage(node=0, message=self._messages.pop(0))] if self._messages else []

    def send(self, message: Any) -> bool:
        return True

    def close(self) -> None:
        """Nothing to close."""


def test_a_child_stops_no_later_than_the_main_node() -> None:
    workers = Workers()
    began_s = time.monotonic()
    decision = ChildRole(_context(workers, StopRequest())).run(cast(Any, Spoke()), None)
    took_s = time.monotonic() - began_s

    assert decision == BLOCK_ENDS
    assert workers.asked == 1 and GRACE_S <= took_s < 30


def test_workers_and_children_share_one_grace_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With two in a row, ECS would kill the container (30 s after one) before the final message."""
    monkeypatch.setattr(supervisor, "_CLOSING_S", CLOSING_S)
    workers = Workers()
    context = _context(workers, StopRequest(count=1))

    began_s = time.monotonic()
    MainRole(context)._finish(cast(Any, SilentChildren()), STOPPED)
    took_s = time.monotonic() - began_s

    assert workers.asked == 1 and not workers.running
    assert GRACE_S + CLOSING_S <= took_s < 1.5 * GRACE_S + CLOSING_S
