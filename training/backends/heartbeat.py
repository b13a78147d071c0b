"""Heartbeats of a rank during blocking calls, since long silence counts as a hang."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from training.core.heartbeat import heartbeat
from training.core.progress import MAX_COMPILE_S

_MAX_LOAD_S = 3600.0
_UNTIL_STEADY = 2
"""Steps after which every graph of a job is compiled; until then ranks may wait for others."""


class DeviceHeartbeat:
    """Reports while this rank compiles and, in the first steps, while it waits for others."""

    def __init__(
        self, report: Callable[[str], None], *, is_compiling: Callable[[], bool] | None = None
    ) -> None:
        self._report, self._is_compiling = report, is_compiling or xla_is_compiling
        self._steps = 0

    def step_made(self) -> None:
        """Count a completed step."""
        self._steps += 1

    def waiting(self, *, is_first: bool = False) -> contextlib.AbstractContextManager[None]:
        """Report during a call that may compile or wait for the device.

        Set ``is_first`` for the first call of a kind with its own graphs, such as an evaluation.
        """
        return heartbeat(
            self._report,
            "compiling graphs",
            at_most_s=MAX_COMPILE_S,
            when=lambda: is_first or self._steps < _UNTIL_STEADY or self._is_compiling(),
        )

    def loading(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Report while the checkpoint ``name`` is loaded."""
        return heartbeat(self._report, f"loading {name}", at_most_s=_MAX_LOAD_S)


def xla_is_compiling() -> bool:
    """Return whether torch_xla is compiling in this process.

    torch_xla counts each graph that is missing from its cache before compiling it, and records the
    time afterwards (2.9, csrc/xla_graph_executor.cpp, ``LookupCachedCompile`` and ``Compile``).
    """
    from torch_xla.debug import metrics

    timed = metrics.metric_data("CompileTime")
    ended = int(timed[0]) if timed else 0
    return int(metrics.counter_value("UncachedCompile") or 0) > ended
