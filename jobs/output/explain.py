"""Explanations of why a job waits or ended, from reasons and exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from jobs.batch.reasons import REASONS
from jobs.eks.reasons import CLUSTER_REASONS
from jobs.job import Explanation, ZonePosition, find_explanation
from jobs.output.console import timestamp
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode

KNOWN_REASONS = (*REASONS, *CLUSTER_REASONS)
# Batch sets these whenever a container exits or is stopped; the exit code has the details.
_UNINFORMATIVE = ("Essential container in task exited*", "Task stopped by user*")


def explain_reason(reason: str | None) -> Explanation | None:
    """Find the meaning of a reason; None if the table has none."""
    return find_explanation(KNOWN_REASONS, reason)


def explain_exit(exit_code: int | None) -> Explanation | None:
    """Find the meaning of a node's exit code; None if there is none."""
    if exit_code is None:
        return None
    try:
        entry = EXIT_CODES[ExitCode(exit_code)]
    except ValueError:
        meaning = "not an exit code of the launcher"
        if exit_code > 128:
            meaning = f"ended by signal {exit_code - 128}"
        return Explanation(meaning=meaning, remedy="read the last lines of the node's log")
    return Explanation(meaning=entry.meaning, remedy=entry.remedy)


def explain(*, exit_code: int | None, reasons: Iterable[str | None]) -> Explanation | None:
    """Explain how a job ended or why it waits, from its reasons or else from its exit code."""
    for reason in reasons:
        found = explain_reason(reason)
        if found is not None:
            return found
    return explain_exit(exit_code)


def describe_zone(position: ZonePosition) -> str:
    """Describe the zone of a job, and when it moves to the next."""
    zone, following = position.zone, position.next_zone
    if following is None:
        return f"zone {zone}"
    if position.moves_after_ms is None:
        return f"zone {zone}; without capacity it moves to {following}"
    return (
        f"zone {zone}; without capacity it moves to {following} within minutes after "
        f"{timestamp(position.moves_after_ms)}"
    )


def is_informative(reason: str | None) -> bool:
    """Return whether a reason states more than that a container ended."""
    return bool(reason) and not any(fnmatchcase(str(reason), quiet) for quiet in _UNINFORMATIVE)
