"""Plain explanations of why a job waits or ended: reasons first, then exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from jobs.batch.reasons import REASONS
from jobs.eks.reasons import CLUSTER_REASONS
from jobs.job import Explanation, find_explanation
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode

KNOWN_REASONS = (*REASONS, *CLUSTER_REASONS)
# Written by Batch when a container simply ended: the exit code says the rest.
_NO_NEWS = ("Essential container in task exited*", "Task stopped by user*")


def explain_reason(reason: str | None) -> Explanation | None:
    """Find the meaning of a reason; None if the table has none."""
    return find_explanation(KNOWN_REASONS, reason)


def explain_exit(exit_code: int | None) -> Explanation | None:
    """Find the meaning of a node's exit code; None if there is none."""
    if exit_code is None:
        return None
    try:
        ending = EXIT_CODES[ExitCode(exit_code)]
    except ValueError:
        if exit_code > 128:
            return Explanation(
                pattern=str(exit_code),
                meaning=f"ended by signal {exit_code - 128}",
                remedy="read the last lines of the node's log",
            )
        return Explanation(
            pattern=str(exit_code),
            meaning="not a code of the launcher",
            remedy="read the last lines of the node's log",
        )
    return Explanation(pattern=str(exit_code), meaning=ending.meaning, remedy=ending.remedy)


def explain(*, exit_code: int | None, reasons: Iterable[str | None]) -> Explanation | None:
    """Explain an ending: reasons of Batch or ECS first, then the exit code."""
    for reason in reasons:
        found = explain_reason(reason)
        if found is not None:
            return found
    return explain_exit(exit_code)


def is_news(reason: str | None) -> bool:
    """Tell whether a reason says more than that the container ended."""
    return bool(reason) and not any(fnmatchcase(str(reason), quiet) for quiet in _NO_NEWS)
