"""Verdicts: how faults become exit codes, and all nodes' verdicts become one decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.core.arguments import ArgumentError
from training.core.contract import NodeContract
from training.core.failures import describe
from training.core.orchestrators import ContractError
from training.launcher.addresses import AddressNotFound, HostNotFound
from trainium_catalogue.exit_codes import ExitCode

# Best evidence first. A request to stop explains every failure after it; an error in the
# workload or the configuration would recur, and appears as a lost connection on other nodes.
_PRECEDENCE = (
    ExitCode.STOPPED,
    ExitCode.TIME_LIMIT,
    ExitCode.CONFIGURATION,
    ExitCode.WORKLOAD,
    ExitCode.PREFLIGHT,
    ExitCode.HOST,
    ExitCode.OK,
)
_CONCLUSIVE = _PRECEDENCE[:4]

MAX_WAIT_FOR_CAUSE_S = 5.0
"""Longest wait for better evidence than a lost connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The end of a node, or of the job: an exit code and its reason."""

    code: ExitCode
    reason: str
    graceful: bool = False
    """True if workers get SIGTERM and time to finish, because nothing is broken yet."""
    symptom: bool = False
    """True for a broken connection, whose cause is probably on another node."""
    weak: bool = False
    """True for an exit status without an exception: a program that catches the error of a broken
    connection may end so as well."""

    def __post_init__(self) -> None:
        if self.code not in _PRECEDENCE:
            raise ValueError(f"{self.code} is not a verdict")

    @property
    def strength(self) -> int:
        """Rank in ``_PRECEDENCE``; smaller is better evidence."""
        return _PRECEDENCE.index(self.code)


def verdict_of(error: Exception) -> Verdict:
    """Judge an error of the launcher itself."""
    match error:
        case ArgumentError() | ContractError():
            return Verdict(code=ExitCode.CONFIGURATION, reason=str(error))
        case HostNotFound():
            return Verdict(code=ExitCode.PREFLIGHT, reason=str(error))
        case AddressNotFound():
            return Verdict(code=ExitCode.HOST, reason=str(error))
    return launcher_failed(error)


def launcher_failed(error: Exception) -> Verdict:
    """Judge an error of the launcher itself: another attempt may do better."""
    return Verdict(code=ExitCode.HOST, reason=f"the launcher failed: {describe(error)}")


def told_to_stop(node: NodeContract) -> Verdict:
    """Verdict of a node that has been told to stop.

    The main node is told when the job is stopped, and also when its own host is reclaimed. A child
    alone is told when its host is reclaimed, which is worth another attempt; when the job is
    stopped the main node's verdict wins.
    """
    code = ExitCode.STOPPED if node.is_main else ExitCode.HOST
    return Verdict(code=code, reason=f"node {node.node_index}: told to stop", graceful=True)


def out_of_time(node: NodeContract, time_limit_s: int) -> Verdict:
    """Verdict of the main node when the attempt has used up its time."""
    return Verdict(
        code=ExitCode.TIME_LIMIT,
        reason=f"node {node.node_index}: the attempt has run for {time_limit_s} s (--time-limit)",
        graceful=True,
    )


def better(first: Verdict | None, second: Verdict) -> Verdict:
    """Pick the better evidence; the first verdict if they are equal."""
    if first is None or (second.strength, second.weak) < (first.strength, first.weak):
        return second
    return first


@dataclass(slots=True, kw_only=True)
class Board:
    """The main node's collection of verdicts."""

    num_nodes: int
    wait_s: float
    peer_timeout_s: float = 0.0
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    lost: dict[int, Verdict] = field(default_factory=dict)
    first_failure_s: float | None = None
    all_joined: bool = False

    def report(self, node: int, verdict: Verdict, now_s: float) -> None:
        """Record a node's verdict; better evidence replaces worse."""
        self.verdicts[node] = better(self.verdicts.get(node), verdict)
        if verdict.code is not ExitCode.OK and self.first_failure_s is None:
            self.first_failure_s = now_s

    def lose(self, node: int, verdict: Verdict, now_s: float) -> None:
        """Record that a node was lost."""
        self.lost[node] = verdict
        self.report(node, verdict, now_s)

    def decision(self, now_s: float, *, heard_s: float = float("inf")) -> Verdict | None:
        """The job's verdict, or None while it may still change.

        Success needs every node. A failure waits ``wait_s`` for better evidence, unless there can
        be none: it is conclusive, every node has reported, or all preflights are known. Weak
        evidence gives way to the loss of a node, so it waits until every node has been heard from
        since; ``heard_s`` is when the node that has been silent for longest was.
        """
        failures = {n: v for n, v in self.verdicts.items() if v.code is not ExitCode.OK}
        complete = len(self.verdicts) == self.num_nodes
        if not failures:
            done = complete and self.num_nodes > 0
            return Verdict(code=ExitCode.OK, reason="every node finished") if done else None
        # Causes before symptoms; and if one node is told to stop while another is already lost,
        # a grace period is pointless.
        best = min(failures.values(), key=lambda v: (v.strength, v.weak, v.symptom, v.graceful))
        assert self.first_failure_s is not None
        if best.weak and self.lost:
            best = next(iter(self.lost.values()))
        final = (
            (best.code in _CONCLUSIVE and not best.weak)
            or complete
            or (best.code is ExitCode.PREFLIGHT and self.all_joined)
            or now_s >= self._settled_s(best, heard_s)
        )
        if not final:
            return None
        if best.code is ExitCode.PREFLIGHT:
            reasons = [v.reason for _, v in sorted(failures.items()) if v.code is best.code]
            return Verdict(code=best.code, reason="; ".join(reasons))
        return best

    def _settled_s(self, best: Verdict, heard_s: float) -> float:
        """Tell until when better evidence than ``best`` may come."""
        assert self.first_failure_s is not None
        settled_s = self.first_failure_s + self.wait_s
        if best.weak and heard_s < self.first_failure_s:
            settled_s += self.peer_timeout_s
        return settled_s
