"""Reports that a rank is alive during blocking calls, since a long silence counts as a hang."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from training.core.heartbeat import heartbeat
from training.core.progress import COMPILES_AT_MOST_S

_LOADS_AT_MOST_S = 3600.0
_UNTIL_STEADY = 2
"""First steps, which cover all graphs of a job: ranks also wait for others that compile."""


class DeviceHeartbeat:
    """Reports while this rank compiles, and in the first steps while it waits for others."""

    def __init__(
        self, report: Callable[[str], None], *, is_compiling: Callable[[], bool] | None = None
    ) -> None:
        self._report, self._is_compiling = report, is_compiling or xla_is_compiling
        self._steps = 0

    def step_made(self) -> None:
        """Count a completed step."""
        self._steps += 1

    def waiting(self, *, is_first: bool = False) -> contextlib.AbstractContextManager[None]:
        """Wrap a call that may compile or wait for the device.

        The first call of a kind, such as an evaluation, has graphs that no training step has.
        """
        return heartbeat(
            self._report,
            "compiling graphs",
            at_most_s=COMPILES_AT_MOST_S,
            when=lambda: is_first or self._steps < _UNTIL_STEADY or self._is_compiling(),
        )

    def loading(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Wrap the loading of a checkpoint."""
        return heartbeat(self._report, f"loading {name}", at_most_s=_LOADS_AT_MOST_S)


def xla_is_compiling() -> bool:
    """Tell whether this process is inside torch_xla's compiler.

    torch_xla counts a graph missing from its cache before it compiles, and records the time
    afterwards (2.9, csrc/xla_graph_executor.cpp, ``LookupCachedCompile`` and ``Compile``).
    """
    from torch_xla.debug import metrics

    timed = metrics.metric_data("CompileTime")
    ended = int(timed[0]) if timed else 0
    return int(metrics.counter_value("UncachedCompile") or 0) > ended
