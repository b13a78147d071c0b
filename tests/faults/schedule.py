"""A schedule: the faults of a run's attempts, determined by the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = 8
_PATTERNS = ("*", "*train.jsonl", "*checkpoints*", "*lock.json", "*status.json", "*complete.json")
_S3_KINDS = ("SLOW_DOWN", "INTERNAL_ERROR", "RESET", "LOST_ANSWER", "CUT_BODY", "SLOW")
DAMAGES = ("truncate", "flip", "remove", "marker", "history", "torn", "status", "lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of an attempt."""

    kind: str
    """kill, stop, freeze, storage, partition or second."""
    after: str
    """Beginning of what the main node's log has when the time begins to run."""
    delay_s: float
    what: str = ""
    """The process (launcher, worker, guardian, node), or the keys of a storage fault."""
    node: int = -1
    """The node hit; -1 for all."""
    seconds: float = 0.0
    error: str = ""
    tenths: int = 10
    """Of a storage fault: how many of ten requests fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt, and how the next one starts."""

    faults: tuple[Fault, ...]
    skews_s: tuple[float, ...]
    """By how much each node's clock is off."""
    new_job: bool
    """True if this is a submission of its own, False for another attempt of the job before."""
    replaced_after: str
    """If not empty: at this line the main node's host, or all, freeze and the next attempt begins,
    as when a host does not answer any more."""
    replaced_all: bool
    thawed_after: str
    """The line of a later attempt at which what was frozen resumes; empty: after the last one."""
    damage: str
    """What is damaged in storage before it."""


def draw(rng: random.Random, *, on_s3: bool, num_nodes: int) -> Sequence[Attempt]:
    """Generate a schedule's attempts with faults; one without follows."""

    def line() -> str:
        if rng.random() < 0.15:
            return "launch: start"
        return f"training: step {rng.randint(1, STEPS)} of"

    def fault() -> Fault:
        kinds = ["kill", "kill", "stop", "freeze", "freeze", "storage", "storage", "second"]
        kind = rng.choice([*kinds, "partition"] if num_nodes > 1 else kinds)
        node = rng.randrange(-1, num_nodes)
        what = error = ""
        tenths = 10
        if kind in ("kill", "freeze"):
            what = rng.choice(("launcher", "worker", "worker", "guardian", "node", "node"))
        elif kind == "storage":
            what, tenths = rng.choice(_PATTERNS), rng.choice((3, 7, 10))
            error = rng.choice(_S3_KINDS) if on_s3 else "EIO"
        return Fault(
            kind=kind,
            after=line(),
            delay_s=round(rng.random() * 0.15, 3),
            what=what,
            node=node,
            seconds=round(rng.choice((0.2, 0.8, 3.0)) * (0.5 + rng.random()), 3),
            error=error,
            tenths=tenths,
        )

    attempts = []
    for number in range(rng.choice((1, 2, 2, 3))):
        replaced = rng.random() < 0.4
        attempts.append(
            Attempt(
                faults=tuple(
                    fault()
                    for _ in range(rng.choice((0, 1, 1, 2, 3) if replaced else (1, 1, 2, 3)))
                ),
                skews_s=tuple(
                    rng.choice((0.0, 0.0, -3600.0, 7.0, 900.0)) for _ in range(num_nodes)
                ),
                new_job=number == 0 or rng.random() < 0.3,
                replaced_after=line() if replaced else "",
                replaced_all=rng.random() < 0.6,
                thawed_after=rng.choice((line(), line(), "")),
                damage=rng.choice(DAMAGES) if number and rng.random() < 0.3 else "",
            )
        )
    return attempts
