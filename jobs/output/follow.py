"""Following a job: changes of its state and the output of its nodes, as a stream of events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from jobs import errors
from jobs.job import ON_HOSTS, Attempt, Explanation, Job, JobKind, Shape
from jobs.output.beginnings import Beginnings, NodeReady
from jobs.output.streams import LogLine, Phase, Streams
from trainium_catalogue.contract import HOST_LOST_REASON, Orchestrator
from trainium_catalogue.exit_codes import EXIT_CODES, RETRIED, ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChanged:
    """The job's status or its reason has changed."""

    status: str
    reason: str | None
    explanation: Explanation | None = None
    """The jobs it waits for, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """An attempt is over and another one follows."""

    attempt: Attempt
    max_attempts: int | None
    orchestrator: Orchestrator = Orchestrator.BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptBegan:
    """The nodes of the second or a later attempt start printing."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StillWaiting:
    """The job has been waiting for hosts, or to start on them, for a while."""

    seconds: float
    explanation: Explanation | None
    orchestrator: Orchestrator = Orchestrator.BATCH
    status: str = "RUNNABLE"
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """AWS or the cluster does not answer at the moment; the follower goes on."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The job is over and every line has been delivered."""

    job: Job


Event = (
    StatusChanged
    | AttemptEnded
    | AttemptBegan
    | StillWaiting
    | Trouble
    | NodeReady
    | LogLine
    | Ended
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time as a parameter."""

    now: Callable[[], float]
    """Seconds since the epoch."""
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Polling intervals and time limits."""

    running_s: float = 1.0
    """Pause between two rounds while nodes print."""
    waiting_max_s: float = 8.0
    """Pause between two rounds while nothing changes before the job runs."""
    calls_per_second: float = 10.0
    """GetLogEvents allows 25 per second for the account and region (CloudWatch Logs quotas)."""
    quiet_s: float = 3.0
    """Wait after the end until the last lines become readable, of a node that was killed for one:
    a launcher's last line is known."""
    children_s: float = 60.0
    """Wait after the end for child nodes still stopping, to learn their exit codes."""
    old_s: float = 60.0
    """Seconds after an end in which more log lines may arrive."""
    still_waiting_s: tuple[float, float] = (120.0, 600.0)
    """First and later remarks while a job waits without a reason."""
    give_up_s: float = 300.0
    """Seconds of consecutive errors before giving up."""


@dataclass(slots=True, kw_only=True)
class Follower:
    """Follows one job to its end."""

    describe: Callable[[str, Shape | None], Job | None]
    """Reads the job by its id; a known shape saves a call."""
    streams: Streams
    job_id: str
    clock: Clock
    pace: Pace = field(default_factory=Pace)
    why_waiting: Callable[[Job], Explanation | None] = lambda job: None
    waits_for: Callable[[Job], Explanation | None] = lambda job: None
    beginnings: Beginnings | None = None
    """Folds the launchers' first lines; None: every line is shown."""

    _shape: Shape | None = None
    _status: tuple[str, str | None] | None = None
    _attempts_ended: int = 0
    _attempt_printed: int = 1
    _since: float = 0.0
    _remarks: int = 0
    _trouble_since: float | None = None
    _trouble_rounds: int = 0
    _interval_s: float = 0.0
    _saw_it_live: bool = False
    _is_gone: bool = False
    _ended_seen: float = 0.0

    def events(self) -> Iterator[Event]:
        """Yield events; the last one is ``Ended``."""
        self._since = self.clock.now()
        self._interval_s = self.pace.running_s
        while True:
            troubles: list[BaseException] = []
            job = self._describe(troubles)
            if job is not None:
                yield from self._changes(job)
                self.streams.note(job, troubles)
            answered = self.streams.read(troubles) + (job is not None)
            for line in self.streams.merger.end_round():
                yield from self._printed(line)
            if self.beginnings is not None:
                yield from self.beginnings.slow(self.clock.now())
            # The streams of a job that is gone answer for as long as one likes.
            yield from self._weigh(troubles, 0 if self._is_gone else answered)
            if job is not None and self._is_quiet(job):
                for line in self.streams.merger.flush():
                    yield from self._printed(line)
                yield from self._released()
                yield Ended(job=job)
                return
            self.clock.sleep(self._pause_s(job, bool(troubles)))

    def _describe(self, troubles: list[BaseException]) -> Job | None:
        try:
            job = self.describe(self.job_id, self._shape)
        except Exception as error:
            if not errors.is_transient(error):
                raise
            troubles.append(error)
            return None
        self._is_gone = job is None
        if job is None:
            # DescribeJobs may briefly lag behind SubmitJob.
            troubles.append(
                errors.Refusal(
                    "unknown-job",
                    f"job {self.job_id} is not known (any more); if somebody has deleted it, or "
                    "destroyed its cluster, what the run has kept is in the bucket, and the same "
                    "name submitted again goes on from there",
                )
            )
            return None
        self._shape = job.shape
        return job

    def _changes(self, job: Job) -> Iterator[Event]:
        if not job.ended:
            self._saw_it_live = True
        if not self._saw_it_live:
            return  # already past: the lines and Ended show it in order
        for attempt in job.attempts[self._attempts_ended :]:
            if attempt.number == len(job.attempts) and (job.ended or _is_final(attempt, job)):
                break  # Ended reports it; Batch lists it a moment before the job has ended
            self._attempts_ended += 1
            yield from self._released(attempt.number)
            yield AttemptEnded(
                attempt=attempt,
                max_attempts=job.max_attempts,
                orchestrator=job.orchestrator,
            )
        status = job.status, job.status_reason
        if status != self._status:
            self._status = status
            self._since = self.clock.now()
            self._remarks = 0
            self._interval_s = self.pace.running_s
            is_held = job.status == "PENDING" and bool(job.depends_on)
            found = self._ask(self.waits_for, job) if is_held else None
            yield StatusChanged(status=job.status, reason=job.status_reason, explanation=found)
        elif job.waits_unexplained:
            first_s, later_s = self.pace.still_waiting_s
            waited_s = self.clock.now() - self._since
            if waited_s >= first_s + self._remarks * later_s:
                self._remarks += 1
                yield StillWaiting(
                    status=job.status,
                    seconds=waited_s,
                    reason=job.status_reason,
                    explanation=self._ask(self.why_waiting, job),
                    orchestrator=job.orchestrator,
                )

    @staticmethod
    def _ask(why: Callable[[Job], Explanation | None], job: Job) -> Explanation | None:
        try:
            return why(job)
        except Exception:  # a remark must not end the following
            return None

    def _printed(self, line: LogLine) -> Iterator[Event]:
        is_array = self._shape is not None and self._shape.kind is JobKind.ARRAY
        # An array's children are retried one by one, and their line labels show it.
        if line.attempt > self._attempt_printed and not is_array:
            self._attempt_printed = line.attempt
            yield AttemptBegan(number=line.attempt)
        if self.beginnings is None:
            yield line
        else:
            yield from self.beginnings.add(line, self.clock.now())

    def _released(self, last_attempt: int | None = None) -> Iterator[LogLine]:
        return iter(()) if self.beginnings is None else self.beginnings.release(last_attempt)

    def _weigh(self, troubles: list[BaseException], answered: int) -> Iterator[Event]:
        if answered:
            self._trouble_since = None
            self._trouble_rounds = 0
            return
        now = self.clock.now()
        if self._trouble_since is None:
            self._trouble_since = now
        self._trouble_rounds += 1
        # A single failed call is normal, and a throttled one only needs waiting.
        if self._trouble_rounds == 2 and not all(errors.is_throttled(e) for e in troubles):
            yield Trouble(message=" ".join(str(troubles[0]).split()))
        if now - self._trouble_since >= self.pace.give_up_s:
            raise troubles[0]

    def _is_quiet(self, job: Job) -> bool:
        """Tell whether the last line has been read, as far as can be known."""
        if not job.ended:
            return False
        if self.streams.phase is Phase.LIVE:
            self.streams.phase = Phase.SETTLING
            self._ended_seen = self.clock.now()
        if self.streams.phase is Phase.SETTLING and self._has_waited(job):
            self.streams.phase = Phase.LAST
        return self.streams.phase is Phase.LAST and self.streams.caught_up

    def _has_waited(self, job: Job) -> bool:
        now = self.clock.now()
        if not self._saw_it_live and now - (job.stopped_at_ms or 0) / 1000 >= self.pace.old_s:
            return True
        still_stopping = any(node.status in ON_HOSTS for node in job.nodes)
        if not still_stopping and self.streams.have_last_lines(job):
            return True
        wait_s = self.pace.children_s if still_stopping else self.pace.quiet_s
        return now - self._ended_seen >= wait_s

    def _pause_s(self, job: Job | None, trouble: bool) -> float:
        pace = self.pace
        if trouble:
            self._interval_s = min(self._interval_s * 2, pace.waiting_max_s)
        elif self.streams.phase is not Phase.LIVE or (job is not None and job.status in ON_HOSTS):
            self._interval_s = pace.running_s
        else:
            self._interval_s = min(self._interval_s * 1.3, pace.waiting_max_s)
        calls = len(self.streams.in_use()) + 1
        return max(self._interval_s, calls / pace.calls_per_second)


def _is_final(attempt: Attempt, job: Job) -> bool:
    """Tell whether no attempt follows: it is the last allowed, or its exit code is not retried."""
    if job.max_attempts is not None and attempt.number >= job.max_attempts:
        return True
    if fnmatchcase(attempt.status_reason or "", HOST_LOST_REASON):
        return False
    on_eks = job.orchestrator is Orchestrator.EKS  # there 143 is retried as well
    retried = (*RETRIED, ExitCode.STOPPED) if on_eks else RETRIED
    return attempt.exit_code in EXIT_CODES and attempt.exit_code not in retried
