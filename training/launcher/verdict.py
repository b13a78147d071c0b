"""Verdicts: map faults to exit codes, and all nodes' verdicts to one decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from training.core.arguments import ArgumentError
from training.core.contract import NodeContract
from training.core.failures import describe
from training.core.orchestrators import ContractError
from training.launcher.addresses import AddressNotFound, HostNotFound
from trainium_catalogue.exit_codes import ExitCode

# Best evidence first. A stop request explains all later failures; an error in the workload or the
# configuration would recur, and appears as a lost connection on other nodes.
_PRECEDENCE = (
    ExitCode.STOPPED,
    ExitCode.TIME_LIMIT,
    ExitCode.CONFIGURATION,
    ExitCode.WORKLOAD,
    ExitCode.PREFLIGHT,
    ExitCode.UNFIT_HOST,
    ExitCode.HOST,
    ExitCode.OK,
)
_CONCLUSIVE = _PRECEDENCE[:4]

MAX_WAIT_FOR_CAUSE_S = 5.0
"""Maximum wait for better evidence than a lost connection."""
_MAX_NAMED = 8
"""Maximum number of nodes named in a reason, which is sent to every node and truncated if long."""

BLOCK_GRACE_S = 480.0
"""Time for the workers to save before their Capacity Block ends: of the remaining ten minutes
(``BLOCK_LEAD`` in jobs/job.py), two are reserved for slow nodes and the last uploads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a node or of the job: an exit code and its reason."""

    code: ExitCode
    reason: str
    graceful: bool = False
    """True if workers get SIGTERM and a grace period, since nothing is broken yet."""
    grace_s: float | None = None
    """The workers' grace period; None for the parameter stop-grace-s."""
    unfit_host: bool = False
    """True if preflight failed because of the host, or a worker because of its host's hardware (in
    a job's verdict: some hosts, not all)."""
    symptom: bool = False
    """True for a broken connection, which is probably caused by another node."""
    weak: bool = False
    """True for an exit code without an exception, which a program may also choose when it catches
    the error of a broken connection."""

    def __post_init__(self) -> None:
        if self.code not in _PRECEDENCE:
            raise ValueError(f"{self.code} is not a verdict")

    @property
    def precedence(self) -> int:
        """Position in ``_PRECEDENCE``; the lowest is the best evidence."""
        return _PRECEDENCE.index(self.code)


def verdict_of(error: Exception) -> Verdict:
    """Return the verdict on an error that the launcher raised before the job started."""
    match error:
        case ArgumentError() | ContractError():
            return Verdict(code=ExitCode.CONFIGURATION, reason=str(error))
        case HostNotFound():
            return Verdict(code=ExitCode.PREFLIGHT, reason=str(error))
        case AddressNotFound():
            return Verdict(code=ExitCode.HOST, reason=str(error))
    return launcher_failed(error)


def launcher_failed(error: Exception) -> Verdict:
    """Return the verdict on a failure of the launcher itself, which is worth a retry."""
    return Verdict(code=ExitCode.HOST, reason=f"the launcher failed: {describe(error)}")


def stop_requested(node: NodeContract) -> Verdict:
    """Return the verdict of a node that received a stop request.

    The main node receives SIGTERM when the job is stopped, and also when its own host is reclaimed.
    A child alone receives it when its host is reclaimed, which is worth a retry; when the job is
    stopped, the main node's verdict takes precedence.
    """
    code = ExitCode.STOPPED if node.is_main else ExitCode.HOST
    return Verdict(code=code, reason=f"node {node.node_index}: stop requested", graceful=True)


def out_of_time(node: NodeContract, time_limit_s: int) -> Verdict:
    """Return the main node's verdict when the attempt has reached its time limit."""
    return Verdict(
        code=ExitCode.TIME_LIMIT,
        reason=f"node {node.node_index}: the attempt has run for {time_limit_s} s (--time-limit)",
        graceful=True,
    )


def block_ends(node: NodeContract) -> Verdict:
    """Return the main node's verdict when its Capacity Block is about to end.

    No container is being stopped yet, so the workers may take longer than after a stop request.
    """
    assert node.stop_at_s is not None
    moment = datetime.fromtimestamp(node.stop_at_s, UTC)
    return Verdict(
        code=ExitCode.TIME_LIMIT,
        reason=f"node {node.node_index}: the Capacity Block ends soon, so the job stops at "
        f"{moment:%Y-%m-%d %H:%M} UTC; submit the run again in the next block",
        graceful=True,
        grace_s=BLOCK_GRACE_S,
    )


def own_verdict(node: NodeContract, own: Verdict | None, decision: Verdict) -> Verdict:
    """Return a node's own verdict: the job's decision, or ``UNFIT_HOST``.

    ``own`` is the verdict on its preflight or its workers. A defect shared by all hosts of a
    multi-node job is not any host's fault (``VerdictCollector``).
    A single host cannot be compared, so on Batch any defect makes it unfit.

    On ``UNFIT_HOST`` the host is retired: by itself on Batch (``watch`` in host_setup.sh), by the
    node scaler on EKS. Volcano treats an attempt as the last one if every pod has failed while an
    action is delayed (kubernetes.py, ``JOB_POLICIES``), so the pod of a single-node job exits with
    the decision.
    """
    single_on_batch = node.num_nodes == 1 and not node.on_cluster
    if own is None or not own.unfit_host or decision.code is not own.code:
        return decision
    if not decision.unfit_host and not single_on_batch:
        return decision
    return Verdict(code=ExitCode.UNFIT_HOST, reason=decision.reason)


def better(first: Verdict | None, second: Verdict) -> Verdict:
    """Return the better evidence; the first verdict if they are equal."""
    if first is None or _strength(second) < _strength(first):
        return second
    return first


def _strength(verdict: Verdict) -> tuple[int, bool, bool]:
    return verdict.precedence, verdict.weak, not verdict.unfit_host


def join_first(parts: Sequence[str], separator: str) -> str:
    """Join the parts; if there are many, the first ones and the number of omitted ones."""
    more = [f"and {len(parts) - _MAX_NAMED} more"] if len(parts) > _MAX_NAMED else []
    return separator.join([*parts[:_MAX_NAMED], *more])


@dataclass(slots=True, kw_only=True)
class VerdictCollector:
    """The main node's collection of verdicts."""

    num_nodes: int
    wait_s: float
    peer_timeout_s: float = 0.0
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    lost: dict[int, Verdict] = field(default_factory=dict)
    first_failure_s: float | None = None
    all_joined: bool = False

    def report(self, node: int, verdict: Verdict, now_s: float) -> None:
        """Record a node's verdict, unless an earlier one is better evidence."""
        self.verdicts[node] = better(self.verdicts.get(node), verdict)
        if verdict.code is not ExitCode.OK and self.first_failure_s is None:
            self.first_failure_s = now_s

    def lose(self, node: int, verdict: Verdict, now_s: float) -> None:
        """Record the loss of a node."""
        self.lost[node] = verdict
        self.report(node, verdict, now_s)

    def decision(self, now_s: float, *, oldest_contact_s: float = float("inf")) -> Verdict | None:
        """Return the job's verdict; None while it may still change.

        Success requires every node. A failure waits ``wait_s`` for better evidence, unless it is
        conclusive, every node has reported, or all preflights are known. The loss of a node
        outweighs weak evidence, which therefore waits for a later message from every node;
        ``oldest_contact_s`` is the time of the longest-silent node's last message.
        """
        failures = {n: v for n, v in self.verdicts.items() if v.code is not ExitCode.OK}
        complete = len(self.verdicts) == self.num_nodes
        if not failures:
            done = complete and self.num_nodes > 0
            return Verdict(code=ExitCode.OK, reason="every node finished") if done else None
        # Causes before symptoms. If a node is asked to stop while another is already lost, a grace
        # period is pointless.
        best = min(
            failures.values(),
            key=lambda v: (v.precedence, v.weak, v.symptom, not v.unfit_host, v.graceful),
        )
        assert self.first_failure_s is not None
        if best.weak and self.lost:
            best = next(iter(self.lost.values()))
        final = (
            (best.code in _CONCLUSIVE and not best.weak)
            or complete
            or (best.code is ExitCode.PREFLIGHT and self.all_joined)
            or now_s >= self._deadline_s(best, oldest_contact_s)
        )
        if not final:
            return None
        same = [v for _, v in sorted(failures.items()) if v.code is best.code]
        # A defect shared by every host would recur on their replacements.
        is_unfit = 0 < sum(v.unfit_host for v in same) < self.num_nodes
        if best.code is ExitCode.PREFLIGHT:
            reason = join_first([v.reason for v in same], "; ")
            return Verdict(code=best.code, reason=reason, unfit_host=is_unfit)
        return replace(best, unfit_host=is_unfit)

    def _deadline_s(self, best: Verdict, oldest_contact_s: float) -> float:
        """Return the deadline for better evidence than ``best``."""
        assert self.first_failure_s is not None
        deadline_s = self.first_failure_s + self.wait_s
        if best.weak and oldest_contact_s < self.first_failure_s:
            deadline_s += self.peer_timeout_s
        return deadline_s
