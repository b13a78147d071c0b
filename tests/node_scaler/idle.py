"""For how long a node may be without users."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from node_scaler.plan import Rules


@dataclass(slots=True, kw_only=True)
class IdleTime:
    """A node's time without users, since the last one."""

    rules: Rules
    slack: timedelta
    since: datetime
    spent: timedelta = timedelta(0)
    new_jobs: set[str] = field(default_factory=set)
    """Jobs submitted meanwhile."""
    requests: set[str | None] = field(default_factory=set)
    """Users' requests in force meanwhile."""

    @property
    def limit(self) -> timedelta:
        """Idle time, held time and idle time again, once for all jobs that wait, and once more for
        each that is submitted meanwhile; each request of a user restarts the idle time.
        """
        assert self.rules.idle is not None
        kept = (1 + len(self.new_jobs)) * (self.rules.hold + self.rules.idle)
        return kept + len(self.requests) * self.rules.idle + self.slack
