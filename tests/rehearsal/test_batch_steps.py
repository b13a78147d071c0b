"""The steps on Batch: their commands, and the checks of their results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rehearsal.proofs import training as evidence
from rehearsal.proofs.training import ExpectedTraining
from rehearsal.report import curve
from rehearsal.steps import batch
from tests.rehearsal.rehearsals import settings

PLAN = ExpectedTraining(max_steps=6, save_every=2, killed_after=3)


def events(resumed: int = 2, *, steps: range = range(1, 7)) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [{"event": "resume", "attempt": 2, "step": resumed}]
    for step in steps:
        attempt = 1 if step <= resumed else 2
        lines.append({"event": "step", "attempt": attempt, "step": step, "loss": 10.0 - step,
                      "tokens_per_second": 100.0})  # fmt: skip
    return lines


def failed(lines: list[dict[str, Any]], resumed: int | None) -> list[str]:
    checks = evidence.judge_steps(lines, PLAN, resumed_from=resumed)
    return [check.name for check in checks if not check.ok]


@pytest.mark.parametrize(("nodes", "kind"), [(4, "kill-child"), (1, "kill-main")])
def test_main_node_is_killed_only_without_children(nodes: int, kind: str) -> None:
    assert batch.fault_kind(settings(nodes=nodes)) == kind


@pytest.mark.parametrize(
    ("states", "ok"),
    [(["green", "not run"], True), (["green", "crashed"], False), (["not run"], False)],
)
def test_crashing_probe_is_detected(states: list[str], ok: bool) -> None:
    findings = [{"id": "main-address", "state": state, "seen": "KeyError: 0"} for state in states]

    assert evidence.judge_record(json.dumps({"findings": findings})).ok is ok
    assert not evidence.judge_record("").ok


def test_run_as_planned_passes() -> None:
    assert failed(events(), 2) == []


def test_missing_step_is_detected() -> None:
    assert failed(events(steps=range(1, 6)), 2) == [
        "the metrics have every step exactly once",
        "the loss fell",
    ]


@pytest.mark.parametrize("resumed", [None, 4])
def test_wrong_resume_step_is_detected(resumed: int | None) -> None:
    (name,) = failed(events(), resumed)

    assert "newest complete checkpoint" in name


def test_losses_belong_to_their_attempt() -> None:
    found = [(a.attempt, a.steps) for a in evidence.attempts(events())]

    assert found == [(1, [1, 2]), (2, [3, 4, 5, 6])]


@pytest.mark.parametrize(
    ("found", "ok"),
    [
        ([(2, 8.0), (4, 7.0), (6, 6.0)], True),
        ([(2, 8.0), (4, 7.0), (6, 9.0)], False),
        ([(2, 8.0), (6, 6.0)], False),
        ([(2, 8.0), (4, None), (6, 6.0)], False),
        ([], False),
    ],
)
def test_held_out_loss_must_be_evaluated_and_fall(
    found: list[tuple[int, float | None]], ok: bool
) -> None:
    lines = [{"event": "evaluation", "step": step, "val_loss": loss} for step, loss in found]

    assert evidence.judge_validation(lines, replace(PLAN, eval_every=2)).ok is ok


@pytest.mark.parametrize(
    ("log", "ok"),
    [
        ("training: step 3 of 6: loss 7.0000, x\ntraining: step 3 of 6: loss 7.0000, x", True),
        ("training: step 3 of 6: loss 7.0000, x\ntraining: step 3 of 6: loss 7.0001, x", False),
        ("training: step 3 of 6: loss 7.0000, x", False),
    ],
)
def test_repeated_step_must_have_same_loss(log: str, ok: bool) -> None:
    assert evidence.judge_repeated(log).ok is ok


@pytest.mark.parametrize(
    ("sizes", "ok"),
    [({"a": 3, "complete.json": 9}, True), ({"a": 2, "complete.json": 9}, False)],
)
def test_marker_must_match_files(sizes: dict[str, int], ok: bool) -> None:
    marker = json.dumps({"step": 6, "files": {"a": {"bytes": 3}}})

    assert evidence.judge_marker(marker, sizes, PLAN).ok is ok
    # The marker of a save that never completed.
    assert not evidence.judge_marker("0" * 32, sizes, PLAN).ok


def test_figure_has_a_line_for_each_attempt(tmp_path: Path) -> None:
    path = tmp_path / "loss.svg"

    curve.write_svg(
        path, evidence.attempts(events()), title="loss", killed_after=11, resumed_from=6
    )

    lines = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}polyline")
    assert len(list(lines)) == 2
