"""The native back-end on the pretend TorchNeuron: the CPU's losses, at a device's price."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.pretend_neuron import pretend_neuron
from tests.training import ranks
from training.backends import heartbeat
from training.backends.heartbeat import DeviceHeartbeat

PROGRAM = Path(__file__).with_name("neuron_program.py")
SAVED = 3
WORLDS = {1: ("1",), 2: ("1", "2"), 4: ("2",)}
"""Degrees of tensor parallelism by ranks: one rank, dp2 and tp2, and tp2 x dp2."""


@pytest.fixture(
    scope="module",
    # The smaller worlds have each kind of parallelism by itself.
    params=[1, 2, pytest.param(4, marks=pytest.mark.full)],
    ids=lambda count: f"{count}-ranks",
)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What every rank of a world has found, by degree and precision."""
    folder = tmp_path_factory.mktemp("neuron")
    with pytest.MonkeyPatch.context() as patch:
        plain, extra = ranks._environment, pretend_neuron(folder)
        patch.setattr(ranks, "_environment", lambda *given: {**plain(*given), **extra})
        return ranks.results_of_ranks(
            PROGRAM, str(folder), *WORLDS[request.param], num_ranks=request.param, timeout_s=180
        )


def test_losses_and_norms_are_those_of_a_cpu_to_five_digits(found: Any) -> None:
    """In bf16 to three digits: the CPU has a kernel of its own for attention, the device none."""
    for cases in found:
        for name, case in cases.items():
            if name.endswith("fp32"):
                assert case["neuron"] == pytest.approx(case["cpu"], rel=1e-5)
            else:
                assert case["neuron"][::2] == pytest.approx(case["cpu"][::2], rel=1e-3)
                assert case["neuron"][1::2] == pytest.approx(case["cpu"][1::2], rel=0.03)


def test_a_run_resumes_from_what_was_saved_while_it_went_on(found: Any) -> None:
    for cases in found:
        for case in cases.values():
            assert case["resumed"] == pytest.approx(case["neuron"][2 * SAVED :], rel=1e-6)


def test_no_step_after_the_second_has_an_operator_that_the_device_would_compile(
    found: Any,
) -> None:
    for cases in found:
        for case in cases.values():
            assert [step["new_signatures"] for step in case["counts"][2:]] == [0, 0, 0]
            assert not any(step["graphs"] for step in case["counts"][2:])


def test_a_step_that_is_not_logged_never_waits_for_the_device(found: Any) -> None:
    for cases in found:
        for case in cases.values():
            assert not any(step["host_syncs"] for step in case["counts"])


def test_blocks_are_graphs_without_breaks_where_a_rank_has_whole_ones(found: Any) -> None:
    for cases in found:
        for name, case in cases.items():
            assert not any(step["graph_breaks"] for step in case["counts"])
            eager, compiled = name.startswith("tp2"), case["counts"][0]["graphs"]
            assert (compiled == 0) is eager


def test_the_first_two_steps_report_while_they_compile_and_first_evaluations_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the launcher would take a compilation of ten minutes for a hang."""
    monkeypatch.setattr("training.core.heartbeat._HEARTBEAT_S", 0.01)
    reports: list[str] = []
    beats = DeviceHeartbeat(reports.append, is_compiling=lambda: False)

    def reported(**kind: bool) -> bool:
        reports.clear()
        with beats.waiting(**kind):
            time.sleep(0.2)
        return bool(reports)

    for _ in range(heartbeat._UNTIL_STEADY):
        assert reported()
        beats.step_made()
    assert not reported()
    assert reported(is_first=True)
