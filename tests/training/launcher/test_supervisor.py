"""What the main node does once the job is decided."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.training.nodes import CPU_NODE
from training.launcher import supervisor
from training.launcher.node import WorkerNode
from training.launcher.supervisor import LauncherContext, MainRole, StopRequest
from training.launcher.verdict import Verdict
from trainium_catalogue.exit_codes import ExitCode

GRACE_S = 1.0
CLOSING_S = 0.2
STOPPED = Verdict(code=ExitCode.STOPPED, reason="told to stop", graceful=True)


class Workers(WorkerNode):
    """They do not end by themselves."""

    running = True
    asked = 0

    def __init__(self) -> None:
        """Nothing is started."""

    def send_sigterm(self) -> None:
        self.asked += 1

    def kill(self, heartbeat: Callable[[], None]) -> None:
        self.running = False


@dataclass
class SilentChildren:
    """They never say that they have ended."""

    members: set[int] = field(default_factory=lambda: {1})

    def broadcast(self, message: Any) -> None:
        assert message["type"] == "stop"

    def poll(self, wait_s: float) -> list[Any]:
        time.sleep(0.01)
        return []

    def close(self) -> None:
        """Nothing to close."""


class Guardian:
    def heartbeat(self) -> None:
        """Nobody listens."""


@dataclass
class Parameters:
    stop_grace_s: float = GRACE_S


def test_workers_and_children_have_one_grace_and_not_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ECS kills the container 30 s after the launcher's grace, and with it the last word."""
    monkeypatch.setattr(supervisor, "_CLOSING_S", CLOSING_S)
    workers = Workers()
    context = LauncherContext(
        node=CPU_NODE,
        parameters=cast(Any, Parameters()),
        local=workers,
        guardian=cast(Any, Guardian()),
        stop=StopRequest(count=1),
    )

    began_s = time.monotonic()
    MainRole(context)._finish(cast(Any, SilentChildren()), STOPPED)
    took_s = time.monotonic() - began_s

    assert workers.asked == 1 and not workers.running
    assert GRACE_S + CLOSING_S <= took_s < 1.5 * GRACE_S + CLOSING_S
