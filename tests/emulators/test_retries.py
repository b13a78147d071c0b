"""The executor retries as Batch's user guide describes."""

from typing import Any

import pytest

from trainium_emulators.aws.batch.gang import AttemptEnd, matches, retries

RULES: dict[str, Any] = {
    "attempts": 3,
    "evaluateOnExit": [
        {"onStatusReason": "Host EC2*", "action": "RETRY"},
        {"onExitCode": "75", "action": "RETRY"},
        {"onReason": "*", "action": "EXIT"},
    ],
}


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("7*", "75", True),
        ("75", "175", False),
        ("Host EC2*", "the Host EC2 is gone", False),
        ("*", "", True),
    ],
)
def test_pattern_matches_whole_text_or_prefix(pattern: str, text: str, expected: bool) -> None:
    assert matches(pattern, text) is expected


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (AttemptEnd(exit_code=75), True),
        (AttemptEnd(exit_code=1), False),
        (AttemptEnd(exit_code=None, status_reason="Host EC2 (instance i-0) terminated."), True),
        (AttemptEnd(exit_code=0), False),
    ],
)
def test_first_rule_that_matches_decides(outcome: AttemptEnd, expected: bool) -> None:
    assert retries(RULES, outcome, attempt=1) is expected


def test_all_patterns_of_a_rule_must_match() -> None:
    rule = {"onExitCode": "75", "onReason": "gone*", "action": "EXIT"}
    strategy = {"attempts": 2, "evaluateOnExit": [rule]}

    assert not retries(strategy, AttemptEnd(exit_code=75, reason="gone away"), attempt=1)
    # Without a match, a failure is retried, but not after the last attempt.
    assert retries(strategy, AttemptEnd(exit_code=75, reason="other"), attempt=1)
    assert not retries(strategy, AttemptEnd(exit_code=75, reason="other"), attempt=2)
