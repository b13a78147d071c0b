"""The losses of a program's output, as a curve that stays small."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tests.training.checkpoint.documents import assert_valid
from training.program.output import LossCurve, Recorder
from training.program.reports import LOSSES_FILE


def points(folder: Path) -> list[tuple[int, float]]:
    found = [json.loads(line) for line in (folder / LOSSES_FILE).read_text().splitlines()]
    for item in found:
        assert_valid(item, "program-loss.schema.json")
    return [(item["step"], item["loss"]) for item in found]


def drawn(folder: Path, *losses: tuple[int | None, float]) -> list[tuple[int, float]]:
    curve = LossCurve()
    for step, loss in losses:
        curve.add(step, loss)
    curve.write(folder)
    return points(folder)


def test_the_end_of_a_silent_program_is_also_in_the_curve(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "")
    recorder.line(b"iter 1: loss 2.5", 0.0)
    recorder.write(0.0)
    recorder.line(b"iter 2: loss nan", 0.5)
    recorder.line(b"iter 3: loss 2.25", 1.0)
    recorder.write(1.0)
    assert points(tmp_path) == [(1, 2.5)]

    recorder.write(1.1, force=True)

    assert points(tmp_path) == [(1, 2.5), (3, 2.25)]


def test_the_last_of_several_losses_of_a_step_counts(tmp_path: Path) -> None:
    assert drawn(tmp_path, (1, 3.0), (2, 2.0), (2, 1.5), (3, 1.0)) == [(1, 3), (2, 1.5), (3, 1)]


def test_losses_without_steps_are_counted(tmp_path: Path) -> None:
    assert drawn(tmp_path, (None, 3.0), (None, 2.0)) == [(1, 3), (2, 2)]


def test_epochs_that_restart_their_count_are_concatenated(tmp_path: Path) -> None:
    epoch = ((0, 4.0), (50, 3.0), (100, 2.0))

    steps = [step for step, _ in drawn(tmp_path, *epoch, *epoch)]

    assert steps == [0, 50, 100, 101, 150, 200]


def test_many_losses_are_thinned_evenly_with_both_ends(tmp_path: Path) -> None:
    found = [step for step, _ in drawn(tmp_path, *((step, 1.0) for step in range(1, 5001)))]

    assert (found[0], found[-1]) == (1, 5000)
    assert 500 < len(found) < 1002
    assert {later - step for step, later in itertools.pairwise(found[:-1])} == {8}
