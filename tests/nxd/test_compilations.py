"""Graphs that torch_xla compiles: as few as possible, none in the middle of a run.

The logged mean over ranks is a small graph in addition to the two of a step. ``--compile`` runs the
same steps as a run, so it compiles what a run needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.nxd import on_cpu
from tests.nxd.compilations import LATE, MODELS, SCHEDULES

pytestmark = pytest.mark.timeout(900)
NAMES = [case.name for case in MODELS]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the counts of one process."""
    folder = tmp_path_factory.mktemp("compilations")
    done = subprocess.run(
        [sys.executable, "-m", "tests.nxd.compilations", str(folder)],
        env=on_cpu.process_environment(folder, lazy=True),
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads((folder / "compilations.json").read_text())
    print(json.dumps(found))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_run_has_two_graphs_and_one_more_for_logged_steps(
    name: str, counts: dict[str, Any]
) -> None:
    logged = 1 if name == "llama" else 0
    assert counts["models"][name]["steps"] == [[2, logged], [0, 0], [0, 0]]


def test_an_unlogged_step_makes_the_host_wait_for_nothing(counts: dict[str, Any]) -> None:
    of_step, of_numbers = counts["models"]["llama"]["fetches"]
    assert (of_step, of_numbers) == (0, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_job_compiles_nothing_new(name: str, counts: dict[str, Any]) -> None:
    found = counts["models"][name]

    assert (found["save"], found["build again"], found["load"]) == (0, 0, 0)
    assert found["steps after a load"] == [[0, 0]] * 3
    assert found["evaluation after a load"] == 0


def test_an_evaluation_is_one_more_graph(counts: dict[str, Any]) -> None:
    found = counts["models"]["llama"]

    assert found["evaluations"] == [1, 0]
    assert found["step after an evaluation"] == [0, 0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_step_of_a_complete_schedule_compiles_another_graph(
    name: str, counts: dict[str, Any]
) -> None:
    assert set(counts["schedules"][name]) <= {1}


def test_the_count_includes_the_extra_graph_of_torchs_adamw(
    counts: dict[str, Any],
) -> None:
    assert LATE + 1 in counts["torch"][1:]
