"""The pretend TorchNeuron: asked for or absent, what it refuses, what it counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import scaled
from tests.support.pretend_neuron import ROOT, pretend_neuron
from tests.training import ranks

REFUSED = Path(__file__).with_name("refused_program.py")
COMPOSITE = "cpu:gloo,neuron:neuron"

BEFORE = {
    "touched before the group": "AssertionError: Neuron runtime should not be initialized before",
    "used in a fork": "RuntimeError: RuntimeError: Cannot re-initialize Neuron runtime in forked",
}
AFTER = {
    "another rank's device": "ValueError: Device index",
    "a device that nobody has": "ValueError: Device index 7 is out of range",
    "host and device": "RuntimeError: Expected all tensors to be on the same device",
    "host tensor in a collective": "RuntimeError: No backend type associated with device type cpu",
    "64-bit sum": "TypeError: a reduction of torch.int64",
    "unequal splits": "NotImplementedError: Only even split sizes are supported",
    "unequal gathering": "NotImplementedError: Only even split sizes are supported",
    "objects": "RuntimeError: all_gather_object on a neuron group",
    "barrier of some ranks": "NotImplementedError: Barrier is implemented only for default group",
    "dynamic shapes": "BackendCompilerFailed: backend='neuron' raised:\nRuntimeError: Dynamic shap",
    "a second runtime": "AssertionError: a second Neuron runtime in one process",
}


def on_ranks(folder: Path, num_ranks: int, **more: str) -> list[dict[str, Any]]:
    """Answers of the program that does what is refused."""
    with pytest.MonkeyPatch.context() as patch:
        plain = ranks._environment
        extra = {**pretend_neuron(folder), **more}
        patch.setattr(ranks, "_environment", lambda *given: {**plain(*given), **extra})
        return ranks.results_of_ranks(REFUSED, num_ranks=num_ranks)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(tmp_path_factory.mktemp("neuron"), 2)


@pytest.mark.parametrize("what", AFTER)
def test_what_the_device_refuses_is_refused_on_every_rank(
    answers: list[dict[str, Any]], what: str
) -> None:
    for answer in answers:
        assert answer[what].startswith(AFTER[what])


def test_a_runtime_that_is_up_refuses_a_process_group_and_a_fork(tmp_path: Path) -> None:
    (answer,) = on_ranks(tmp_path, 1, BEFORE="1")
    for what, words in BEFORE.items():
        assert answer[what].startswith(words)


def test_gloo_beside_it_takes_host_tensors_objects_and_barriers(tmp_path: Path) -> None:
    """So torch.distributed sends them to gloo, and device tensors still not."""
    for answer in on_ranks(tmp_path, 2, BACKEND=COMPOSITE):
        taken = {what for what, words in answer.items() if words == "done"}
        assert taken == {"host tensor in a collective", "objects", "barrier of some ranks"}


def python(folder: Path, asked: str, program: str) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program)
    return subprocess.run(
        [sys.executable, str(file)],
        env={"PATH": os.environ["PATH"], **pretend_neuron(folder, asked)},
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


def test_it_is_absent_until_it_is_asked_for(tmp_path: Path) -> None:
    ended = python(tmp_path, "", "import torch; print(hasattr(torch, 'neuron'))")
    assert ended.stdout.split() == ["False"]
    refused = python(tmp_path, "yes", "import torch")
    assert "TRAINIUM_PRETEND_NEURON=yes: set 1, or report" in refused.stderr


PROGRAM = """
import torch
weight = torch.ones(4, device="neuron", requires_grad=True)
for number in range(3):
    loss = (weight * (number + 1.0)).sum()
    loss.backward()
    print(loss.item())
compiled = torch.compile(lambda x: x.exp() + 1, backend="neuron", dynamic=False, fullgraph=True)
compiled(weight).sum().backward()
"""


def test_it_reports_new_operators_host_syncs_copies_and_graphs_by_line(tmp_path: Path) -> None:
    ended = python(tmp_path, "report", PROGRAM)
    assert ended.stdout.split() == ["4.0", "8.0", "12.0"]
    place = tmp_path / "program.py"
    assert f"3 x _local_scalar_dense at {place}:7" in ended.stderr
    assert "2 compiled graphs" in ended.stderr
    assert "0 graph breaks" in ended.stderr
    # A number that differs in every step.
    assert f"3 x aten::mul at {place}:5" in ended.stderr


def test_no_image_contains_it() -> None:
    """The build context holds no emulator."""
    recipes = [ROOT / ".dockerignore", *(p for p in (ROOT / "docker").rglob("*") if p.is_file())]
    assert not [recipe for recipe in recipes if "emulators" in recipe.read_text(errors="replace")]
