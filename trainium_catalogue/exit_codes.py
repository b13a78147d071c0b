"""Exit codes of a node, and which of them are retried.

The launcher exits with them, Batch and Volcano base retries on them, and the CLI explains them. One
exception to ``retry``: on EKS, ``STOPPED`` (143) is retried too, because a pod on a drained node
exits with it (``JOB_POLICIES`` in kubernetes.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType


class ExitCode(IntEnum):
    """The exit codes of a node."""

    OK = 0
    WORKLOAD = 1
    CONFIGURATION = 64
    """``EX_USAGE`` of sysexits.h."""
    PREFLIGHT = 70
    """``EX_SOFTWARE`` of sysexits.h."""
    UNFIT_HOST = 71
    """``EX_OSERR`` of sysexits.h: the node's own host failed preflight, or its hardware failed, but
    not that of others; on Batch also for a job's only host."""
    HOST = 75
    """``EX_TEMPFAIL`` of sysexits.h."""
    TIME_LIMIT = 124
    """As used by ``timeout`` (coreutils)."""
    KILLED = 137
    """128 + SIGKILL: the container was killed."""
    STOPPED = 143
    """128 + SIGTERM; retried on EKS, see above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCodeInfo:
    """The meaning of an exit code, for users and for retries."""

    meaning: str
    remedy: str
    retry: bool


EXIT_CODES: Mapping[ExitCode, ExitCodeInfo] = MappingProxyType(
    {
        ExitCode.OK: ExitCodeInfo(meaning="finished", remedy="nothing to do", retry=False),
        ExitCode.WORKLOAD: ExitCodeInfo(
            meaning="the workload raised an error",
            remedy="see the log of the named node; another attempt would fail again",
            retry=False,
        ),
        ExitCode.CONFIGURATION: ExitCodeInfo(
            meaning="the launcher refused its configuration",
            remedy="correct the parameter named in the log and submit again",
            retry=False,
        ),
        ExitCode.PREFLIGHT: ExitCodeInfo(
            meaning="a node failed preflight or did not join",
            remedy="another attempt follows; the log names the node, the finding and the remedy",
            retry=True,
        ),
        ExitCode.UNFIT_HOST: ExitCodeInfo(
            meaning="the node's own host failed preflight, or its hardware failed; it is replaced",
            remedy="another attempt follows, on other hosts; the log names the finding and the "
            "remedy",
            retry=True,
        ),
        ExitCode.HOST: ExitCodeInfo(
            meaning="a peer was lost, a node hung or a host failed",
            remedy=(
                "another attempt follows; a run with checkpoints resumes from the newest complete "
                "one"
            ),
            retry=True,
        ),
        ExitCode.TIME_LIMIT: ExitCodeInfo(
            meaning="the submission's time limit was reached, or its Capacity Block will end soon",
            remedy=(
                "submit again with a larger --time-limit, or in the next block; a run with "
                "checkpoints resumes"
            ),
            retry=False,
        ),
        ExitCode.KILLED: ExitCodeInfo(
            meaning="the node was killed or frozen, or ran out of memory",
            remedy=(
                "another attempt follows; if every attempt ends this way, reduce the memory use "
                "of the workload"
            ),
            retry=True,
        ),
        ExitCode.STOPPED: ExitCodeInfo(
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
"""Nonzero codes that are not retried, the only ones in a Batch job definition."""
