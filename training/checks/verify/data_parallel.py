"""Check of the back-ends that hold a whole model: the BERT with AdamW, the digits with SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from training.checks.verify import reference
from training.checks.verify.data import images, sentences
from training.checks.verify.first_step import examine
from training.checks.verify.outcome import Outcome, deviations
from training.checks.verify.reference import Reference
from training.checks.verify.run import Run
from training.checks.verify.saved import read_whole
from training.checks.verify.settings import (
    DATA_PARALLEL_STEPS,
    Tolerance,
    bert_config_for,
    digits_config_for,
)
from training.core.ranks import Ranks
from training.models.bert.network import BertNetwork
from training.models.mnist.network import MlpNetwork

if TYPE_CHECKING:
    from training.backends.base import Network
    from training.core.config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model that is whole on every rank."""

    name: str
    config: Callable[[int], TrainConfig]
    network: Callable[[TrainConfig], Network]
    batches: Callable[[range], Any]
    judge: Callable[[TrainConfig], Reference]


CASES = (
    Case(
        name="BERT",
        config=bert_config_for,
        network=BertNetwork,
        batches=sentences,
        judge=reference.bert,
    ),
    Case(
        name="digits",
        config=digits_config_for,
        network=MlpNetwork,
        batches=images,
        judge=reference.digits,
    ),
)


def look(case: Case, run: Run, tolerance: Tolerance) -> tuple[bool, str]:
    """All ranks: train a few steps; whether they are the reference's, and how near they are."""
    run.train_to(1)
    run.save(1)
    run.train_to(DATA_PARALLEL_STEPS)
    place, info = run.saved(1)

    def compare() -> tuple[bool, str]:
        size = run.config.plan.global_batch
        first = examine(case.judge(run.config), case.batches(range(size)), read_whole(place, info))
        expected = case.judge(run.config).train(
            lambda step: case.batches(range((step - 1) * size, step * size)), len(run.steps)
        )
        loss, norm = deviations(run.steps, expected)
        compiled = run.graphs[-1] - run.graphs[0] if run.graphs else 0
        ok = first.ok(tolerance.gradient) and loss <= tolerance.loss and norm <= tolerance.norm
        text = (
            f"{case.name}: {first.describe(tolerance.gradient)}; losses off by {loss:.1e} of "
            f"{tolerance.loss:.0e}, norms by {norm:.1e} of {tolerance.norm:.0e}"
        )
        if compiled:
            text += f"; {compiled} graphs were compiled after the first step"
        return ok and not compiled, text

    return Ranks().agree(compare)


def outcome_of(found: list[tuple[bool, str]]) -> Outcome:
    """Of all cases together."""
    return Outcome(
        check="data-parallel",
        ok=all(ok for ok, _ in found),
        detail=" | ".join(text for _, text in found),
    )
