"""Parts of the receipt that tell of jobs: how they ended, and what they left behind."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class NodeAttempt:
    """One node of one attempt, as DescribeJobs tells it."""

    node: int
    attempt: int
    exit_code: int | None
    reason: str | None
    seconds: float | None


@dataclass(slots=True, kw_only=True)
class Size:
    """One line of the sweep."""

    bytes: int
    correct: bool
    p50_us: float
    p99_us: float
    algbw_gib_per_s: float
    busbw_gib_per_s: float


@dataclass(slots=True, kw_only=True)
class Run:
    """One submitted job."""

    run: str
    fault: str | None
    summary: str
    expected: str
    seen: str
    differences: list[str]
    """Everything that ended otherwise than the failure model says; empty is good."""
    job_id: str | None
    status: str
    status_reason: str | None
    jobs_exit_code: int
    attempts: list[int | None]
    """Exit codes of the main node."""
    nodes: list[NodeAttempt]
    sizes: list[Size]
    seconds: float


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """A command that was run."""

    name: str
    command: str
    exit_code: int
    seconds: float
    expected_exit_code: int = 0

    @property
    def problem(self) -> str | None:
        """What is wrong with its end."""
        if self.exit_code == self.expected_exit_code:
            return None
        return f"{self.command}: ended with {self.exit_code} instead of {self.expected_exit_code}"


@dataclass(slots=True, kw_only=True)
class TrainingAttempt:
    """The optimizer steps of one attempt that count; what it lost is in the next one's."""

    attempt: int
    steps: list[int]
    losses: list[float]


@dataclass(slots=True, kw_only=True)
class Check:
    """Something that must be true after training."""

    name: str
    ok: bool
    detail: str


@dataclass(slots=True, kw_only=True)
class Training:
    """The training story: from text to an exported model, over the loss of a node."""

    steps: list[StepRecord]
    run: Run
    killed_after: int
    """The step in the log after which a node was killed."""
    resumed_from: int | None
    attempts: list[TrainingAttempt]
    tokens_per_second: float | None
    """Median over all steps."""
    checks: list[Check]
    figure: str
    """File of the loss curve."""

    @property
    def problems(self) -> list[str]:
        """Everything that is not as it must be."""
        found = [step.problem for step in self.steps if step.problem]
        found += [f"{self.run.run}: {text}" for text in self.run.differences]
        found += [f"not so: {check.name} ({check.detail})" for check in self.checks if not check.ok]
        return found


@dataclass(slots=True, kw_only=True)
class Chart:
    """A Helm release that the deployment asked for."""

    release: str
    chart: str
    repository: str
    version: str
    namespace: str
    uninstalled: bool = False
    """Whether destroy asked for its end."""


@dataclass(slots=True, kw_only=True)
class ClusterStory:
    """The cluster's story: nodes, a training on one, a training on two over the loss of a pod."""

    steps: list[StepRecord] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    killed_after: int | None = None
    """The step in the log after which a pod was killed."""
    resumed_from: int | None = None
    attempts: list[TrainingAttempt] = field(default_factory=list)
    """Of the run that lost a pod."""
    checks: list[Check] = field(default_factory=list)
    figure: str | None = None
    """File of the loss curve."""

    @property
    def problems(self) -> list[str]:
        """Everything that is not as it must be."""
        return [
            *(step.problem for step in self.steps if step.problem),
            *(f"{run.run}: {text}" for run in self.runs for text in run.differences),
            *(f"not so: {c.name} ({c.detail})" for c in self.checks if not c.ok),
        ]
