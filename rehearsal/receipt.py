"""The receipt of a rehearsal (docs/schemas/rehearsal-receipt.schema.json)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from rehearsal.deployment.state import Settings
from rehearsal.proofs.leftovers import AccountResource, ExpectedResource
from rehearsal.proofs.tensorboard import DRAWN
from trainium_catalogue.documents import Amount, Keywords, Natural, Positive, Sha256, Timestamp
from trainium_catalogue.wording import counted
from trainium_emulators.docker_cli import Entry

VERSION: Literal[5] = 5
Outcome = Literal["passed", "failed", "interrupted"]

ALWAYS_UNPROVEN = (
    "EFA, Neuron devices and drivers: the nodes run on CPU with gloo",
    "quotas, capacity and prices: the emulator has no limits",
    "that nodes and functions have enough permissions: only the submitter's policy is evaluated",
    "the hosts' boot script and AMI: no instance is started",
    "that AWS accepts every value: the emulator checks fewer than AWS does",
)
NO_IMAGE_BUILT = (
    "that the image builds and nodes start from it: needs podman and --containers",
    "the real base image: the docker emulator recorded the build and pushed a small manifest",
)
ON_CLUSTER = (
    "Helm charts: they are recorded, not rendered, so no plugin, driver or monitor runs",
    "pods' networks, volumes and Pod Identity: pods are processes with the rehearsal's credentials",
    "Volcano and Kubernetes themselves: an emulator follows their source",
)
NO_BROWSER = "that TensorBoard's page draws the loss: needs a browser (make setup-tests)"
SUBSTITUTE_BASE = "the real base image: the Dockerfile was built on Debian packages and CPU torch"


@dataclass(slots=True, kw_only=True)
class NodeAttempt:
    """A node of an attempt, as reported by DescribeJobs."""

    node: Natural
    attempt: Positive
    exit_code: int | None
    reason: str | None
    seconds: float | None


@dataclass(slots=True, kw_only=True)
class Size:
    """One size of the all-reduce sweep."""

    bytes: int
    correct: bool
    p50_us: float
    p99_us: float
    algbw_gib_per_s: Amount
    busbw_gib_per_s: Amount


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """A submitted job."""

    run: str
    fault: str | None
    summary: str
    expected: str
    seen: str
    differences: list[str]
    """Differences from the outcome predicted by the failure model; empty if there are none."""
    job_id: str | None
    status: str
    status_reason: str | None
    jobs_exit_code: int
    attempts: list[int | None]
    """Exit codes of the main node."""
    nodes: list[NodeAttempt]
    sizes: list[Size]
    seconds: Amount


@dataclass(slots=True, kw_only=True)
class CommandRecord:
    """An executed command."""

    name: str
    command: str
    exit_code: int
    seconds: Amount
    expected_exit_code: int = 0

    @property
    def problem(self) -> str | None:
        """Difference between the actual and the expected exit code, if any."""
        if self.exit_code == self.expected_exit_code:
            return None
        return f"{self.command}: exited with {self.exit_code} instead of {self.expected_exit_code}"


@dataclass(slots=True, kw_only=True)
class TrainingAttempt:
    """The steps of an attempt that count; repeated ones belong to the next attempt."""

    attempt: Positive
    steps: list[Positive]
    losses: list[float]


@dataclass(slots=True, kw_only=True)
class ReceiptCheck:
    """A check of the results."""

    name: str
    ok: bool
    detail: str


def _problems(
    steps: list[CommandRecord], runs: list[RunRecord], checks: list[ReceiptCheck]
) -> list[str]:
    return [
        *(step.problem for step in steps if step.problem),
        *(f"{run.run}: {text}" for run in runs for text in run.differences),
        *(f"failed: {check.name} ({check.detail})" for check in checks if not check.ok),
    ]


@dataclass(slots=True, kw_only=True)
class BatchTraining:
    """Training on Batch: from text to an exported model, with a lost node."""

    steps: list[CommandRecord]
    run: RunRecord
    killed_after: Positive
    """The step in the log after which a node was killed."""
    resumed_from: Positive | None
    attempts: list[TrainingAttempt]
    tokens_per_second: float | None
    """Median over all steps."""
    checks: list[ReceiptCheck]
    figure: str
    """File that shows the loss curve."""

    @property
    def problems(self) -> list[str]:
        """Everything that went wrong."""
        return _problems(self.steps, [self.run], self.checks)


@dataclass(slots=True, kw_only=True)
class HelmRelease:
    """A Helm release requested by the deployment."""

    release: str
    chart: str
    repository: str
    version: str
    namespace: str
    uninstalled: bool = False
    """True if destroy requested its removal."""


@dataclass(slots=True, kw_only=True)
class ClusterTraining:
    """Training on the cluster: on one node, and on two nodes with a lost pod."""

    steps: list[CommandRecord] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)
    killed_after: Positive | None = None
    """The step in the log after which a pod was killed."""
    resumed_from: Positive | None = None
    attempts: list[TrainingAttempt] = field(default_factory=list)
    """Attempts of the run that lost a pod."""
    checks: list[ReceiptCheck] = field(default_factory=list)
    figure: str | None = None
    """File that shows the loss curve."""

    @property
    def problems(self) -> list[str]:
        """Everything that went wrong."""
        return _problems(self.steps, self.runs, self.checks)


@dataclass(slots=True, kw_only=True)
class ProgramRun:
    """A user's own program on one orchestrator, with a lost node."""

    orchestrator: Annotated[str, Keywords(enum=["batch", "eks"])]
    steps: list[CommandRecord]
    run: RunRecord | None
    """None if no job was submitted."""
    checks: list[ReceiptCheck]
    unproven: list[str]
    """What this program did not prove, and the remedy."""

    @property
    def problems(self) -> list[str]:
        """Everything that went wrong."""
        return _problems(self.steps, [self.run] if self.run is not None else [], self.checks)


@dataclass(slots=True, kw_only=True)
class PhaseRecord:
    """A phase and its duration."""

    name: str
    seconds: Amount
    outcome: Literal["ok", "failed", "interrupted"]


@dataclass(slots=True, kw_only=True)
class ReceiptStack:
    """A stack as deployed."""

    name: str
    resources: Natural


@dataclass(slots=True, kw_only=True)
class PushedImage:
    """The image that the CDK CLI built and pushed with docker."""

    name: str
    digest: str
    base_image: str | None
    platform: str
    dockerfile: str
    dockerfile_sha256: Sha256
    context_files: list[str]
    built: bool
    """True if it was actually built, on a substitute base image."""


@dataclass(slots=True, kw_only=True)
class FirstResult:
    """The first result: deploy, run an all-reduce, destroy, nothing left."""

    seconds: Amount
    """Time since the start."""
    stacks: Natural
    leftovers: list[AccountResource]

    def line(self, runs: list[RunRecord]) -> str:
        """Summarize the result in one line."""
        good = [run for run in runs if not run.differences]
        nodes = {end.node for run in runs for end in run.nodes}
        left = ", ".join(item.id for item in self.leftovers)
        return (
            f"{counted(self.stacks, 'stack')} deployed, all-reduce on "
            f"{counted(len(nodes), 'node')} {'passed' if len(good) == len(runs) else 'WRONG'}, "
            f"destroyed, {f'LEFT OVER: {left}' if left else 'nothing left'}, after "
            f"{self.seconds:.0f} s"
        )


@dataclass(slots=True, kw_only=True)
class ReceiptVerdict:
    """The conclusions from the findings."""

    version: Literal[5] = VERSION
    outcome: Outcome
    problems: list[str]
    """Every reason why the rehearsal did not pass."""
    unproven: list[str]
    """What a rehearsal cannot prove about AWS."""


@dataclass(slots=True, kw_only=True)
class Receipt:
    """All findings, in chronological order."""

    settings: Settings
    started_at: Timestamp = field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds")
    )
    seconds: Amount = 0.0
    interrupted: bool = False
    region: str | None = None
    endpoint: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    phases: list[PhaseRecord] = field(default_factory=list)
    stacks: list[ReceiptStack] = field(default_factory=list)
    image: PushedImage | None = None
    seeded: list[dict[str, str]] = field(default_factory=list)
    environment_extras: dict[str, str] = field(default_factory=dict)
    first_result: FirstResult | None = None
    runs: list[RunRecord] = field(default_factory=list)
    training: BatchTraining | None = None
    cluster: ClusterTraining | None = None
    programs: list[ProgramRun] = field(default_factory=list)
    charts: list[HelmRelease] = field(default_factory=list)
    proven_empty: bool = False
    """True if the account was checked after destroy; otherwise no leftovers proves nothing."""
    expected_left: list[ExpectedResource] = field(default_factory=list)
    leftovers: list[AccountResource] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Every reason why this rehearsal did not pass."""
        problems = [*self.errors, *_problems([], self.runs, [])]
        if self.first_result is not None:
            problems += [
                f"left over after the first part: {i.service} {i.kind} {i.id}"
                for i in self.first_result.leftovers
                if i not in self.leftovers
            ]
        problems += self.training.problems if self.training is not None else []
        problems += self.cluster.problems if self.cluster is not None else []
        problems += [problem for program in self.programs for problem in program.problems]
        if self.proven_empty:
            problems += [
                f"left over: Helm release {c.release}" for c in self.charts if not c.uninstalled
            ]
            problems += [f"left over: {i.service} {i.kind} {i.id}" for i in self.leftovers]
        elif not self.errors and not self.interrupted:
            problems.append("whether destroy left anything behind was not checked")
        return problems

    @property
    def outcome(self) -> Outcome:
        if self.interrupted:
            return "interrupted"
        return "failed" if self.problems else "passed"

    @property
    def unproven(self) -> list[str]:
        """List what this rehearsal cannot prove about AWS."""
        built = self.image is not None and self.image.built
        has_browser_check = self.cluster is None or DRAWN in (c.name for c in self.cluster.checks)
        return [
            *(text for program in self.programs for text in program.unproven),
            *ALWAYS_UNPROVEN,
            *(ON_CLUSTER if "eks" in self.settings.orchestrators else ()),
            *(() if has_browser_check else (NO_BROWSER,)),
            *((SUBSTITUTE_BASE,) if built else NO_IMAGE_BUILT),
        ]

    def to_document(self) -> dict[str, Any]:
        """Return the document for the file and ``--json``."""
        verdict = ReceiptVerdict(
            outcome=self.outcome, problems=self.problems, unproven=self.unproven
        )
        return {**asdict(verdict), **asdict(self)}

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_document(), indent=2) + "\n", encoding="utf-8")


def read_image(entries: list[Entry], *, built: bool) -> PushedImage | None:
    """Read the pushed image and its build from the docker emulator's record."""
    builds = [entry for entry in entries if entry["command"] == "build"]
    pushes = [entry for entry in entries if entry["command"] == "push"]
    if not builds or not pushes:
        return None
    build, push = builds[-1], pushes[-1]
    return PushedImage(
        name=push["image"],
        digest=push["digest"],
        base_image=build["base_image"],
        platform=build["platform"],
        dockerfile=build["dockerfile"],
        dockerfile_sha256=build["dockerfile_sha256"],
        context_files=build["context_files"],
        built=built,
    )
