"""Exit codes of a node, and which of them are worth another attempt.

The launcher exits with them, Batch and Volcano retry by them and the CLI explains them. One
exception to ``retry``: on EKS, ``STOPPED`` (143) starts another attempt as well, because a pod on
a drained node ends that way (``JOB_POLICIES`` in kubernetes.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType


class ExitCode(IntEnum):
    """The ways in which a node ends."""

    OK = 0
    WORKLOAD = 1
    CONFIGURATION = 64
    """``EX_USAGE`` of sysexits.h."""
    PREFLIGHT = 70
    """``EX_SOFTWARE`` of sysexits.h."""
    HOST = 75
    """``EX_TEMPFAIL`` of sysexits.h."""
    TIME_LIMIT = 124
    """The code that ``timeout`` (coreutils) uses."""
    KILLED = 137
    """128 + SIGKILL: the container was killed, it did not exit."""
    STOPPED = 143
    """128 + SIGTERM; on EKS worth another attempt, see above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The meaning of an exit code, for people and for retries."""

    meaning: str
    remedy: str
    retry: bool


EXIT_CODES: Mapping[ExitCode, Ending] = MappingProxyType(
    {
        ExitCode.OK: Ending(meaning="finished", remedy="nothing to do", retry=False),
        ExitCode.WORKLOAD: Ending(
            meaning="the workload raised an error",
            remedy="the log of the node that is named has the rest; it would fail again",
            retry=False,
        ),
        ExitCode.CONFIGURATION: Ending(
            meaning="the launcher refused its configuration",
            remedy="correct the parameter that the log names and submit again",
            retry=False,
        ),
        ExitCode.PREFLIGHT: Ending(
            meaning="a node failed preflight or did not join",
            remedy=(
                "another attempt follows, maybe on the same hosts; the log names node, finding and "
                "remedy"
            ),
            retry=True,
        ),
        ExitCode.HOST: Ending(
            meaning="a peer was lost, a node hung or a host failed",
            remedy=(
                "another attempt follows; a run with checkpoints continues from the newest "
                "complete one"
            ),
            retry=True,
        ),
        ExitCode.TIME_LIMIT: Ending(
            meaning="the time limit of the submission was reached",
            remedy="submit again with a larger --time-limit; a run with checkpoints continues",
            retry=False,
        ),
        ExitCode.KILLED: Ending(
            meaning="the node was killed or frozen, or ran out of memory",
            remedy=(
                "another attempt follows; if every attempt ends so, lower the memory the workload "
                "needs"
            ),
            retry=True,
        ),
        ExitCode.STOPPED: Ending(
            meaning="stopped on request",
            remedy="submit the run again to resume it",
            retry=False,
        ),
    }
)

RETRIED: tuple[ExitCode, ...] = tuple(code for code, end in EXIT_CODES.items() if end.retry)
"""Codes after which another attempt follows."""

FINAL: tuple[ExitCode, ...] = tuple(
    code for code, end in EXIT_CODES.items() if not end.retry and code is not ExitCode.OK
)
"""Codes of a failure that would repeat itself: the only ones a Batch job definition names."""
