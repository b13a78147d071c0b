"""Whether Batch starts another attempt: ``retryStrategy`` and ``evaluateOnExit``.

AWS Batch user guide, "Automated job retries": rules are read in order, a rule applies when all of
its patterns match, and whatever matches no rule is retried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt of the main node ended, as Batch sees it."""

    exit_code: int | None
    """None when the container did not end by itself (its host was lost)."""
    reason: str = ""
    status_reason: str = ""


def matches(pattern: str, text: str) -> bool:
    """Batch's patterns: the whole text, or its beginning when they end with ``*``."""
    if pattern.endswith("*"):
        return text.startswith(pattern[:-1])
    return text == pattern


def _applies(rule: Mapping[str, str], outcome: Outcome) -> bool:
    texts = {
        "onExitCode": "" if outcome.exit_code is None else str(outcome.exit_code),
        "onReason": outcome.reason,
        "onStatusReason": outcome.status_reason,
    }
    return all(matches(rule[key], text) for key, text in texts.items() if key in rule)


def retries(strategy: Mapping[str, Any], outcome: Outcome, *, attempt: int) -> bool:
    """Whether there is another attempt after ``attempt`` (counted from 1) ended so."""
    if outcome.exit_code == 0 or attempt >= int(strategy.get("attempts", 1)):
        return False
    rules: Sequence[Mapping[str, str]] = strategy.get("evaluateOnExit", ())
    for rule in rules:
        if _applies(rule, outcome):
            return rule["action"].lower() == "retry"
    return True
