"""Follow a job, as a stream of events: status changes and the output of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from jobs import errors
from jobs.job import ON_HOSTS, Attempt, Explanation, Job, JobKind, Shape
from jobs.output.startup import NodeReady, StartupFilter
from jobs.output.streams import LogLine, Phase, Streams
from trainium_catalogue.contract import HOST_LOST_REASON, Orchestrator
from trainium_catalogue.exit_codes import EXIT_CODES, RETRIED, ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChanged:
    """The job's status or its reason has changed."""

    status: str
    reason: str | None
    explanation: Explanation | None = None
    """Explanation that names the jobs it waits for, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """An attempt has ended, and another one follows."""

    attempt: Attempt
    max_attempts: int | None
    orchestrator: Orchestrator = Orchestrator.BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """The nodes of a retry have started printing."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StillWaiting:
    """The job has been waiting for a while, for hosts or to start on them."""

    seconds: float
    explanation: Explanation | None
    orchestrator: Orchestrator = Orchestrator.BATCH
    status: str = "RUNNABLE"
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """AWS or the cluster is not responding; the follower retries."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """The job has ended, and every line has been delivered."""

    job: Job


Event = (
    StatusChanged
    | AttemptEnded
    | AttemptStarted
    | StillWaiting
    | NoResponse
    | NodeReady
    | LogLine
    | JobEnd
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Injectable time source."""

    now: Callable[[], float]
    """Seconds since the epoch."""
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Polling intervals and time limits."""

    running_s: float = 1.0
    """Pause between polling rounds while the nodes start and run."""
    waiting_max_s: float = 8.0
    """Maximum pause between polling rounds before the nodes start, or while requests fail."""
    calls_per_second: float = 5.0
    """Maximum rate of API calls for any number of nodes; four can be polled every second.
    GetLogEvents allows 25 requests per second per account and region (CloudWatch Logs quotas)."""
    quiet_s: float = 3.0
    """Wait after the end for the last lines of nodes without a launcher's last line, such as a
    killed node."""
    children_s: float = 60.0
    """Wait after the end for the exit codes of child nodes that are still stopping."""
    old_s: float = 60.0
    """Time after a job's end in which more log lines may arrive."""
    still_waiting_s: tuple[float, float] = (120.0, 600.0)
    """Time until the first remark about an unexplained wait, and between later ones."""
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
    """Explains why the job waits for hosts."""
    waits_for: Callable[[Job], Explanation | None] = lambda job: None
    """Explains which jobs it waits for."""
    startup: StartupFilter | None = None
    """Folds the launchers' startup lines; None to show every line."""

    _shape: Shape | None = None
    _status: tuple[str, str | None] | None = None
    _attempts_ended: int = 0
    _attempt_printed: int = 1
    _since: float = 0.0
    _remarks: int = 0
    _failing_since: float | None = None
    _failed_rounds: int = 0
    _interval_s: float = 0.0
    _seen_before_end: bool = False
    _is_gone: bool = False
    _end_seen_at: float = 0.0

    def events(self) -> Iterator[Event]:
        """Yield events; the last one is ``JobEnd``."""
        self._since = self.clock.now()
        self._interval_s = self.pace.running_s
        while True:
            failures: list[BaseException] = []
            job = self._describe(failures)
            if job is not None:
                yield from self._changes(job)
                self.streams.note(job, failures)
            num_responses = self.streams.read(failures) + (job is not None)
            for line in self.streams.merger.end_round():
                yield from self._line_events(line)
            if self.startup is not None:
                yield from self.startup.slow(self.clock.now())
            # Reads from a deleted job's streams still succeed, but do not count.
            yield from self._check_responses(failures, 0 if self._is_gone else num_responses)
            if job is not None and self._is_quiet(job):
                for line in self.streams.merger.flush():
                    yield from self._line_events(line)
                yield from self._release_startup()
                yield JobEnd(job=job)
                return
            self.clock.sleep(self._pause_s(job, bool(failures)))

    def _describe(self, failures: list[BaseException]) -> Job | None:
        try:
            job = self.describe(self.job_id, self._shape)
        except Exception as error:
            if not errors.is_transient(error):
                raise
            failures.append(error)
            return None
        self._is_gone = job is None
        if job is None:
            # DescribeJobs may briefly lag behind SubmitJob.
            failures.append(
                errors.Refusal(
                    "unknown-job",
                    f"job {self.job_id} no longer exists; if it was deleted, or its cluster was "
                    "destroyed, the run's files are still in the bucket, and submitting the same "
                    "name again resumes it",
                )
            )
            return None
        self._shape = job.shape
        return job

    def _changes(self, job: Job) -> Iterator[Event]:
        if not job.ended:
            self._seen_before_end = True
        if not self._seen_before_end:
            return  # already ended: the lines and JobEnd show everything in order
        for attempt in job.attempts[self._attempts_ended :]:
            if attempt.number == len(job.attempts) and (job.ended or _is_final(attempt, job)):
                break  # reported by JobEnd; Batch lists it shortly before the job ends
            self._attempts_ended += 1
            yield from self._release_startup(attempt.number)
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
            found = self._try_explain(self.waits_for, job) if is_held else None
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
                    explanation=self._try_explain(self.why_waiting, job),
                    orchestrator=job.orchestrator,
                )

    @staticmethod
    def _try_explain(why: Callable[[Job], Explanation | None], job: Job) -> Explanation | None:
        try:
            return why(job)
        except Exception:  # best effort: a failing remark must not stop the follower
            return None

    def _line_events(self, line: LogLine) -> Iterator[Event]:
        is_array = self._shape is not None and self._shape.kind is JobKind.ARRAY
        # An array's children are retried individually, as their line labels show.
        if line.attempt > self._attempt_printed and not is_array:
            self._attempt_printed = line.attempt
            yield AttemptStarted(number=line.attempt)
        if self.startup is None:
            yield line
        else:
            yield from self.startup.add(line, self.clock.now())

    def _release_startup(self, last_attempt: int | None = None) -> Iterator[LogLine]:
        return iter(()) if self.startup is None else self.startup.release(last_attempt)

    def _check_responses(
        self, failures: list[BaseException], num_responses: int
    ) -> Iterator[Event]:
        """Report the second consecutive round without a response; raise after ``give_up_s``."""
        if num_responses:
            self._failing_since = None
            self._failed_rounds = 0
            return
        now = self.clock.now()
        if self._failing_since is None:
            self._failing_since = now
        self._failed_rounds += 1
        # A single failed round is normal, and throttling only requires backing off.
        if self._failed_rounds == 2 and not all(errors.is_throttled(e) for e in failures):
            yield NoResponse(message=" ".join(str(failures[0]).split()))
        if now - self._failing_since >= self.pace.give_up_s:
            raise failures[0]

    def _is_quiet(self, job: Job) -> bool:
        """Return whether the last line has probably been read."""
        if not job.ended or not self.streams.is_complete(job):
            return False
        if self.streams.phase is Phase.LIVE:
            self.streams.phase = Phase.SETTLING
            self._end_seen_at = self.clock.now()
        if self.streams.phase is Phase.SETTLING and self._has_waited(job):
            self.streams.phase = Phase.LAST
        return self.streams.phase is Phase.LAST and self.streams.caught_up

    def _has_waited(self, job: Job) -> bool:
        now = self.clock.now()
        if not self._seen_before_end and now - (job.stopped_at_ms or 0) / 1000 >= self.pace.old_s:
            return True
        still_stopping = any(node.status in ON_HOSTS for node in job.nodes)
        if not still_stopping and self.streams.have_last_lines(job):
            return True
        wait_s = self.pace.children_s if still_stopping else self.pace.quiet_s
        return now - self._end_seen_at >= wait_s

    def _pause_s(self, job: Job | None, has_failures: bool) -> float:
        pace = self.pace
        if has_failures:
            self._interval_s = min(self._interval_s * 2, pace.waiting_max_s)
        elif self.streams.phase is not Phase.LIVE or (job is not None and job.status in ON_HOSTS):
            self._interval_s = pace.running_s
        else:
            self._interval_s = min(self._interval_s * 1.3, pace.waiting_max_s)
        calls = len(self.streams.in_use()) + 1
        return max(self._interval_s, calls / pace.calls_per_second)


def _is_final(attempt: Attempt, job: Job) -> bool:
    """Return whether no retry follows: no attempts are left, or the exit code is not retried."""
    if job.max_attempts is not None and attempt.number >= job.max_attempts:
        return True
    if fnmatchcase(attempt.status_reason or "", HOST_LOST_REASON):
        return False
    on_eks = job.orchestrator is Orchestrator.EKS  # EKS also retries 143
    retried = (*RETRIED, ExitCode.STOPPED) if on_eks else RETRIED
    return attempt.exit_code in EXIT_CODES and attempt.exit_code not in retried
