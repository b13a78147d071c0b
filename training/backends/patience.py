"""Say for a rank that it lives while torch_xla compiles: a long silence counts as a hang."""

from __future__ import annotations

import contextlib

from training.backends.beat import Report, beating
from training.launcher.settings import COMPILES_AT_MOST_S

_UNTIL_STEADY = 2
"""Steps that have all graphs of a job: in these, ranks also wait for others that compile."""


class Patience:
    """Speaks while this rank compiles, in any step, and while the first steps wait for others."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._steps = 0

    def step_made(self) -> None:
        """Count one more step."""
        self._steps += 1

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Around a call that may compile, or wait for the device."""
        return beating(
            self._report,
            "compiling graphs",
            at_most_s=COMPILES_AT_MOST_S,
            when=lambda: self._steps < _UNTIL_STEADY or is_compiling(),
        )


def is_compiling() -> bool:
    """Whether this process is inside the compiler.

    torch_xla counts a graph that is not in its cache before it compiles, and takes the time after
    (2.9, csrc/xla_graph_executor.cpp, ``LookupCachedCompile`` and ``Compile``).
    """
    from torch_xla.debug import metrics

    timed = metrics.metric_data("CompileTime")
    ended = int(timed[0]) if timed else 0
    return int(metrics.counter_value("UncachedCompile") or 0) > ended
