"""The faults that can be injected, and the ending that the failure model expects of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rehearsal.deployment.state import OptionsError
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.suggest import did_you_mean

PARAMETER = "/rehearsal/next-fault"
"""SSM parameter from which the emulator takes the next fault."""

ALL = "all"
NO_CAPACITY = "no-capacity"

# Divisor of the queue's RUNNABLE time limit: an hour becomes three seconds.
RUNNABLE_CLOCK = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedEnding:
    """The way a run is expected to end."""

    exit_codes: tuple[int | None, ...]
    """Exit codes of the main node by attempt; None where any is allowed, or it is not known."""
    status: str
    jobs_exit_code: int
    """Exit code of ``python -m jobs submit --follow``."""
    reason: str | None = None
    """Part of the job's status reason."""

    @property
    def on_cluster(self) -> ExpectedEnding:
        """The ending on a cluster, where Volcano ends an attempt's pods as soon as one fails: it is
        a race whether the main node still reports how its attempt ended."""
        return replace(self, exit_codes=(*(None for _ in self.exit_codes[1:]), self.exit_codes[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong on the first attempt."""

    kind: str
    summary: str
    ending: ExpectedEnding
    parameters: tuple[str, ...] = ()
    """Passed to ``jobs submit --set``."""
    armed: bool = True
    """True if the emulator injects it; otherwise the parameters cause it."""


SUCCESS = ExpectedEnding(exit_codes=(ExitCode.OK,), status="SUCCEEDED", jobs_exit_code=0)


def _retried(code: ExitCode) -> ExpectedEnding:
    return ExpectedEnding(exit_codes=(code, ExitCode.OK), status="SUCCEEDED", jobs_exit_code=0)


_FAULTS = (
    Fault(
        kind="kill-child",
        summary="node 1 is killed",
        ending=_retried(ExitCode.HOST),
    ),
    Fault(
        kind="kill-main",
        summary="the main node is killed",
        ending=_retried(ExitCode.KILLED),
    ),
    Fault(
        kind="hang-child",
        summary="node 1 is frozen",
        ending=_retried(ExitCode.HOST),
    ),
    Fault(
        kind="reclaim-child",
        summary="node 1's host is reclaimed",
        ending=_retried(ExitCode.HOST),
    ),
    Fault(
        kind="reclaim-main",
        summary="the main node's host is reclaimed",
        # Not the code is retried, but the reason, which names the host.
        ending=_retried(ExitCode.STOPPED),
    ),
    Fault(
        kind="error-in-workload",
        summary="rank 1 raises a Python error",
        ending=ExpectedEnding(exit_codes=(ExitCode.WORKLOAD,), status="FAILED", jobs_exit_code=1),
        parameters=("inject-error-rank=1",),
        armed=False,
    ),
    Fault(
        kind="preflight-failure",
        summary="node 1 may open too few files",
        ending=_retried(ExitCode.PREFLIGHT),
    ),
    Fault(
        kind=NO_CAPACITY,
        summary="no instance can be had",
        ending=ExpectedEnding(
            exit_codes=(),
            status="FAILED",
            jobs_exit_code=1,
            reason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
        ),
    ),
)
OF_NODES = (
    "kill-child", "kill-main", "hang-child", "reclaim-child", "reclaim-main",
)  # fmt: skip
"""Faults that hit a node while it works, whatever runs on it."""
FAULTS: Mapping[str, Fault] = MappingProxyType({fault.kind: fault for fault in _FAULTS})


def find_faults(names: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds to inject without duplicates; ``all`` stands for every one."""
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
    ending: ExpectedEnding,
    *,
    exit_codes: Sequence[int | None],
    status: str,
    jobs_exit_code: int,
    reasons: Iterable[str | None],
) -> list[str]:
    """List everything that ended differently from what is expected."""
    found = []
    wanted = ending.exit_codes
    if len(exit_codes) != len(wanted) or any(
        code not in (None, seen) for code, seen in zip(wanted, exit_codes, strict=True)
    ):
        found.append(
            f"the main node ended with {_codes(exit_codes)} instead of {_codes(ending.exit_codes)}"
        )
    if status != ending.status:
        found.append(f"the job is {status} instead of {ending.status}")
    if jobs_exit_code != ending.jobs_exit_code:
        found.append(f"jobs submit ended with {jobs_exit_code} instead of {ending.jobs_exit_code}")
    if ending.reason is not None and not any(ending.reason in (text or "") for text in reasons):
        found.append(f"no status reason names {ending.reason}")
    return found


def describe(ending: ExpectedEnding) -> str:
    """Format an ending for a table: exit codes, then the job's status."""
    return f"{_codes(ending.exit_codes)} {ending.status}"


def _codes(codes: Sequence[int | None]) -> str:
    return ", ".join("?" if code is None else str(int(code)) for code in codes) or "no attempt"
