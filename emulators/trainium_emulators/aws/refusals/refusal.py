"""The shape of a row: what AWS refuses, in its own words, and how to see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from trainium_emulators.aws.refusals.request import Request

Fill = tuple[object, ...]
"""What a message says of the request at hand: the values of its ``{}``, in order."""
Check = Callable[[Request], Iterable[Fill]]
"""Yields once for every fault; nothing, if AWS takes the request."""


class Outcome(StrEnum):
    """What AWS does with such a request."""

    REFUSED = "refused"
    """The call, or the creation of the resource, fails."""
    FAILS_LATER = "fails later"
    """It is taken, and what it describes can never start."""
    IGNORED = "ignored"
    """It is taken, and a part of it has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One row of the table."""

    id: str
    on: str
    """CloudFormation type, ``<service>:<Operation>`` of an API, or ``template``."""
    condition: str
    """What is wrong, in one sentence."""
    words: str
    """AWS's message, with ``{}`` where it names a value of the request."""
    source: str
    """Public address."""
    check: Check
    verbatim: bool = True
    """Whether ``words`` are AWS's own; if not, a paraphrase of its documentation."""
    judge: str = ""
    """Rule of the pack cdk-preflight that has seen AWS refuse the same."""
    outcome: Outcome = Outcome.REFUSED
    known_to: frozenset[str] = frozenset()
    """Which of ``cfn-lint`` and ``moto`` find it too; such a row is no news."""

    def messages(self, request: Request) -> list[str]:
        """What AWS says to a request, once for every fault."""
        return [self.words.format(*fill) for fill in self.check(request)]


def when(condition: bool, *fill: object) -> list[Fill]:
    """One fault if a condition holds, else none."""
    return [fill] if condition else []


CFN_LINT = frozenset({"cfn-lint"})
MOTO = frozenset({"moto"})

PACK = "https://github.com/badmintoncryer/cdk-preflight"
"""A published rule pack: each of its rules was reproduced by a real deployment."""
