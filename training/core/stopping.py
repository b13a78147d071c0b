"""A request to stop, for workloads that have something to bring to safety first."""

from __future__ import annotations


class Stopped(Exception):
    """The workload has ended early because it was asked to."""


class StopSwitch:
    """Set by SIGTERM. Unless a workload defers it, the worker ends at once.

    The launcher's ``stop-grace-s`` bounds how long a deferred end may take.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.requested = False

    def defer(self) -> None:
        """From here on the workload looks at ``requested`` and ends itself, with ``Stopped``."""
        self.deferred = True
