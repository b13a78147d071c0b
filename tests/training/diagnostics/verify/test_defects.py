"""Verify on one rank, with each defect that needs only one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.diagnostics.verify import making
from tests.training.llama.conftest import LoneDevice
from training.diagnostics.verify.checks import LlamaChecks
from training.diagnostics.verify.settings import BF16
from training.storage import LocalObjects

Defect = Callable[[pytest.MonkeyPatch], None]


def checks(folder: Path, **more: object) -> LlamaChecks:
    return making.llama(LocalObjects(folder), LoneDevice(), more.pop("tolerance", BF16), **more)  # type: ignore[arg-type]


def test_wrong_attention_is_detected_at_the_devices_tolerance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    making.forget_positions(monkeypatch)
    outcome = checks(tmp_path).gradients()

    assert not outcome.ok
    assert "self_attn." in outcome.detail


def test_weight_decay_of_norms_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    making.decay_norms(monkeypatch)
    outcome = checks(tmp_path).gradients()

    assert not outcome.ok
    assert "worst weight: model.layers" in outcome.detail


@pytest.mark.parametrize(
    ("defect", "sign"),
    [
        (making.resume_without_moments, "optimizer.exp_avg.lm_head.weight and 41 others differ"),
        (making.resume_from_bf16_weights, "model.lm_head.weight and 20 others differ"),
        (making.resume_counting_from_zero, "are off by"),
    ],
)
def test_a_run_that_does_not_resume_is_detected_at_the_devices_tolerance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: Defect, sign: str
) -> None:
    defect(monkeypatch)
    outcome = checks(tmp_path).resume()

    assert not outcome.ok
    assert sign in outcome.detail


def test_visible_padding_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    making.see_padding(monkeypatch)
    found = making.models(LocalObjects(tmp_path), LoneDevice(), BF16, "BERT", "digits")

    assert [ok for ok, _ in found.values()] == [False, True]


class Compiler:
    """Counts graphs as torch_xla does: two in the first step, and one more after ``late`` looks."""

    def __init__(self, late: int | None) -> None:
        self._late, self._looks = late, 0

    def count(self) -> int:
        self._looks += 1
        return 2 if self._late is None or self._looks < self._late else 3


# In the second step; and after the checkpoint, when it looks for the third time.
@pytest.mark.parametrize(("late", "ok"), [(None, True), (2, False), (3, False)])
def test_a_late_compilation_is_detected(tmp_path: Path, late: int | None, ok: bool) -> None:
    outcome = checks(tmp_path, count_graphs=Compiler(late).count).graphs()

    assert outcome.ok is ok
    assert outcome.detail.startswith("2 graphs compiled up to the first step")


def test_late_graph_checks_start_where_a_bias_correction_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = checks(tmp_path, count_graphs=lambda: 2)
    made.graphs()
    optimizer = made._run._backend._optimizer._optimizer  # type: ignore[attr-defined]
    steps = {float(state["step"]) for state in optimizer.state.values()}

    # torch's AdamW would give torch_xla the square root of 1 - 0.95 ** 325, which is 1.0 in fp32.
    assert steps == {328.0}
