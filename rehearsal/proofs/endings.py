"""The injectable faults, and the outcome that the failure model predicts for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rehearsal.deployment.state import OptionsError
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.suggest import did_you_mean

PARAMETER = "/rehearsal/next-fault"
"""SSM parameter from which the emulator reads the next fault."""

ALL = "all"
NO_CAPACITY = "no-capacity"

# Divisor of the queue's RUNNABLE time limit: an hour becomes three seconds.
RUNNABLE_SPEEDUP = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedOutcome:
    """The expected outcome of a run."""

    exit_codes: tuple[int | None, ...]
    """Exit codes of the main node by attempt; None for any or unknown."""
    status: str
    jobs_exit_code: int
    """Exit code of ``python -m jobs submit --follow``."""
    reason: str | None = None
    """Part of the job's status reason."""

    @property
    def on_cluster(self) -> ExpectedOutcome:
        """The outcome on a cluster, where the main node may not report its attempt's end, because
        Volcano ends an attempt's pods as soon as one fails."""
        return replace(self, exit_codes=(*(None for _ in self.exit_codes[1:]), self.exit_codes[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault in the first attempt."""

    kind: str
    summary: str
    outcome: ExpectedOutcome
    parameters: tuple[str, ...] = ()
    """Passed to ``jobs submit --set``."""
    armed: bool = True
    """True if the emulator injects it; otherwise the parameters cause it."""


SUCCESS = ExpectedOutcome(exit_codes=(ExitCode.OK,), status="SUCCEEDED", jobs_exit_code=0)


def _retried(code: ExitCode) -> ExpectedOutcome:
    return ExpectedOutcome(exit_codes=(code, ExitCode.OK), status="SUCCEEDED", jobs_exit_code=0)


_FAULTS = (
    Fault(
        kind="kill-child",
        summary="node 1 is killed",
        outcome=_retried(ExitCode.HOST),
    ),
    Fault(
        kind="kill-main",
        summary="the main node is killed",
        outcome=_retried(ExitCode.KILLED),
    ),
    Fault(
        kind="hang-child",
        summary="node 1 is frozen",
        outcome=_retried(ExitCode.HOST),
    ),
    Fault(
        kind="reclaim-child",
        summary="node 1's host is reclaimed",
        outcome=_retried(ExitCode.HOST),
    ),
    Fault(
        kind="reclaim-main",
        summary="the main node's host is reclaimed",
        # The job is retried because its reason names the host, not because of the exit code.
        outcome=_retried(ExitCode.STOPPED),
    ),
    Fault(
        kind="error-in-workload",
        summary="rank 1 raises a Python error",
        outcome=ExpectedOutcome(exit_codes=(ExitCode.WORKLOAD,), status="FAILED", jobs_exit_code=1),
        parameters=("inject-error-rank=1",),
        armed=False,
    ),
    Fault(
        kind="preflight-failure",
        summary="node 1's open-file limit is too low",
        outcome=_retried(ExitCode.PREFLIGHT),
    ),
    Fault(
        kind=NO_CAPACITY,
        summary="no instance is available",
        outcome=ExpectedOutcome(
            exit_codes=(),
            status="FAILED",
            jobs_exit_code=1,
            reason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
        ),
    ),
)
NODE_FAULTS = (
    "kill-child", "kill-main", "hang-child", "reclaim-child", "reclaim-main",
)  # fmt: skip
"""Faults of a working node, independent of the workload."""
FAULTS: Mapping[str, Fault] = MappingProxyType({fault.kind: fault for fault in _FAULTS})


def find_faults(names: Iterable[str]) -> tuple[str, ...]:
    """Return the faults to inject, without duplicates; ``all`` selects every fault."""
    kinds: dict[str, None] = {}
    for name in names:
        if name == ALL:
            kinds |= dict.fromkeys(FAULTS)
        elif name in FAULTS:
            kinds[name] = None
        else:
            raise OptionsError(f"fault {name!r} is unknown; {did_you_mean(name, [*FAULTS, ALL])}")
    return tuple(kinds)


def differences(
    outcome: ExpectedOutcome,
    *,
    exit_codes: Sequence[int | None],
    status: str,
    jobs_exit_code: int,
    reasons: Iterable[str | None],
) -> list[str]:
    """List the differences from the expected outcome."""
    deviations = []
    expected = outcome.exit_codes
    if len(exit_codes) != len(expected) or any(
        code not in (None, actual) for code, actual in zip(expected, exit_codes, strict=True)
    ):
        deviations.append(
            f"the main node exited with {_codes(exit_codes)} instead of {_codes(expected)}"
        )
    if status != outcome.status:
        deviations.append(f"the job is {status} instead of {outcome.status}")
    if jobs_exit_code != outcome.jobs_exit_code:
        deviations.append(
            f"jobs submit exited with {jobs_exit_code} instead of {outcome.jobs_exit_code}"
        )
    if outcome.reason is not None and not any(outcome.reason in (text or "") for text in reasons):
        deviations.append(f"no status reason names {outcome.reason}")
    return deviations


def describe(outcome: ExpectedOutcome) -> str:
    """Format an outcome for a table: exit codes, then the job's status."""
    return f"{_codes(outcome.exit_codes)} {outcome.status}"


def _codes(codes: Sequence[int | None]) -> str:
    return ", ".join("?" if code is None else str(int(code)) for code in codes) or "no attempt"
