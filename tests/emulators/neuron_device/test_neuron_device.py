"""The emulated TorchNeuron: activation, refusals and counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.limits import scaled
from tests.support.pretend_neuron import ROOT, pretend_neuron
from tests.training import ranks
from trainium_emulators.neuron_device.rules import check_type_and_size

REFUSED = Path(__file__).with_name("refused_program.py")
ACCEPTED = {
    "sum scaled by a factor",
    "functional sum",
    "32-bit broadcast",
    "broadcast over garbage",
    "channels_last clone",
    "8-bit floats of the device",
    "8-bit floats at rest",
    "compiled sum over a mesh",
    "metrics of graphs",
}
COMPOSITE = "cpu:gloo,neuron:neuron"

BEFORE = {
    "device before the group": "AssertionError: Neuron runtime should not be initialized before",
    "memory's size before the group": "AssertionError: Neuron runtime should not be initialized",
    "device in a fork": "RuntimeError: RuntimeError: Cannot re-initialize Neuron runtime in forked",
}
AFTER = {
    "another rank's device": "ValueError: Device index",
    "nonexistent device": "ValueError: Device index 7 is out of range",
    "operands on host and device": "RuntimeError: Expected all tensors to be on the same device",
    "host tensor in a collective": "RuntimeError: No backend type associated with device type cpu",
    "64-bit sum": "TypeError: allreduce of torch.int64",
    "64-bit gathering": "TypeError: allgather of torch.int64",
    "64-bit floats": "TypeError: allgather of torch.float64",
    "64-bit broadcast": "TypeError: broadcast of torch.int64",
    "empty sum": "RuntimeError: tensors cannot be empty",
    "empty gathering": "ValueError: tensors cannot have zero size in dimension 0",
    "product": "RuntimeError: allreduce: unsupported reduce operation 'PRODUCT'",
    "scattered product": "RuntimeError: reduce_scatter_base: unsupported reduce operation",
    "sum of infinity": "RuntimeError: warned: allreduce of infinity",
    "sending": "RuntimeError: warned: ",
    "receiving from any rank": "NotImplementedError: recv_any_source",
    "channels_last": "RuntimeError: aten::contiguous: Neuron tensors only support contiguous",
    "conversion to channels_last": "RuntimeError: aten::_to_copy: Neuron tensors only support",
    "8-bit floats": "ValueError: Unsupported PyTorch dtype: torch.float8_e4m3fn",
    "compilation mode": "RuntimeError: warned: Neuron backend does not support mode='max-autotune'",
    "member not in the source": "RuntimeError: warned: torch.neuron.get_rng_state_all",
    "unequal splits": "NotImplementedError: Only even split sizes are supported",
    "unequal gathering": "NotImplementedError: Only even split sizes are supported",
    "objects": "RuntimeError: warned: all_gather_object on a neuron group",
    "sums scaled by two factors": "NotImplementedError: premultiplied sums by [0.25, 0.5]",
    "barrier of a subgroup": "NotImplementedError: Barrier is implemented only for default group",
    "dynamic shapes": "BackendCompilerFailed: backend='neuron' raised:\nRuntimeError: Dynamic shap",
    "second runtime in one process": "AssertionError: a second Neuron runtime in one process",
}


def on_ranks(folder: Path, num_ranks: int, **more: str) -> list[dict[str, Any]]:
    """Errors printed by the program of refused operations."""
    with pytest.MonkeyPatch.context() as patch:
        plain = ranks._environment
        extra = {**pretend_neuron(folder), **more}
        patch.setattr(ranks, "_environment", lambda *given: {**plain(*given), **extra})
        return ranks.results_of_ranks(REFUSED, num_ranks=num_ranks)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(tmp_path_factory.mktemp("neuron"), 2)


@pytest.mark.parametrize("what", sorted(ACCEPTED))
def test_device_accepts(answers: list[dict[str, Any]], what: str) -> None:
    assert [answer[what] for answer in answers] == ["done", "done"]


def test_compiled_collective_needs_a_mesh(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert "replica id not seen in replica groups" in answer["compiled sum over a new group"]


@pytest.mark.parametrize("what", AFTER)
def test_device_refusals_apply_on_every_rank(answers: list[dict[str, Any]], what: str) -> None:
    for answer in answers:
        assert answer[what].startswith(AFTER[what])


def test_started_runtime_refuses_process_group_and_fork(tmp_path: Path) -> None:
    (answer,) = on_ranks(tmp_path, 1, BEFORE="1")
    for what, words in BEFORE.items():
        assert answer[what].startswith(words)


def test_core_of_another_process_is_refused(tmp_path: Path) -> None:
    first, second = (answer["shared core"] for answer in on_ranks(tmp_path, 2, CORE="0"))
    assert first == "done"
    assert second.startswith("RuntimeError: NEURON_RT_VISIBLE_CORES=0 is set in several processes")


def test_collective_of_gigabytes_is_warned_about() -> None:
    """As the rule alone, without memory for such a tensor."""
    with pytest.warns(UserWarning, match=r"allreduce of 5\.0 GB may fail"):
        check_type_and_size([torch.empty(1_250_000_000, device="meta")], "allreduce")


def test_gloo_group_accepts_host_tensors_objects_and_barriers(tmp_path: Path) -> None:
    """So torch.distributed sends them to gloo, but not device tensors."""
    for answer in on_ranks(tmp_path, 2, BACKEND=COMPOSITE):
        taken = {what for what, words in answer.items() if words == "done"}
        assert taken - ACCEPTED == {
            "host tensor in a collective",
            "objects",
            "barrier of a subgroup",
        }


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


def test_device_is_absent_by_default(tmp_path: Path) -> None:
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


# tests/training/backends/test_native_on_neuron.py reads the same counts.
@pytest.mark.full
def test_report_lists_operators_syncs_copies_and_graphs_by_line(tmp_path: Path) -> None:
    ended = python(tmp_path, "report", PROGRAM)
    assert ended.stdout.split() == ["4.0", "8.0", "12.0"]
    place = tmp_path / "program.py"
    assert f"3 x _local_scalar_dense at {place}:7" in ended.stderr
    assert "compiled graphs: 2" in ended.stderr
    assert "graph breaks: 0" in ended.stderr
    # A number that differs in every step.
    assert f"3 x aten::mul at {place}:5" in ended.stderr


FOR_LIBRARIES = """
import copy, io, torch
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
file, tensor = io.BytesIO(), torch.arange(6.0).reshape(2, 3)
torch.save({"whole": tensor, "row": tensor[1]}, file)
file.seek(0)
loaded = torch.load(file, map_location="neuron:0")
loaded["whole"].mul_(2)
print(loaded["row"].device.type, loaded["row"].tolist())
print(loaded["row"].untyped_storage().data_ptr() == loaded["whole"].untyped_storage().data_ptr())
staged = StateDictStager().stage({name: tensor + 0 for name, tensor in loaded.items()})
print(staged["whole"].device.type, staged["whole"].tolist(), staged["row"].tolist())
print(torch.ones(2, device="neuron").resize_(5).shape, torch.ones(2).is_pinned())
torch.manual_seed(3)
state, first, host = torch.neuron.get_rng_state(), torch.rand(3, device="neuron"), torch.rand(3)
torch.manual_seed(3)
print(len(state), torch.equal(torch.rand(3), host))
torch.neuron.set_rng_state(state)
print(torch.equal(torch.rand(3, device="neuron"), first))

# A model as libraries copy it: with its gradients, and a shared weight that stays shared.
model = torch.nn.Sequential(torch.nn.Linear(2, 2, device="neuron"))
model.append(model[0])
model(torch.ones(1, 2, device="neuron")).sum().backward()
copied = copy.deepcopy(model)
weight = copied[0].weight
with torch.no_grad():
    model[0].weight.zero_()
print(weight is copied[1].weight, isinstance(weight, torch.nn.Parameter), weight.requires_grad,
      weight.device.type, torch.equal(weight.grad, model[0].weight.grad), bool(weight.any()))
import torch_neuronx
torch_neuronx.synchronize()
print(torch.neuron.max_memory_allocated(), torch_neuronx.max_memory_reserved(first.device))
print(len(torch.neuron.memory_summary()) > 0, torch.neuron.get_device_properties().total_memory)
"""


def test_device_has_functions_used_by_libraries(tmp_path: Path) -> None:
    """The Hugging Face libraries load to it, compare storages, pad and pin; DTensor seeds it, DCP
    stages it."""
    ended = python(tmp_path, "1", FOR_LIBRARIES)
    assert ended.stdout.splitlines() == [
        "neuron [6.0, 8.0, 10.0]",
        "True",
        "cpu [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]] [6.0, 8.0, 10.0]",
        "torch.Size([5]) True",
        "16 True",
        "True",
        "True True True neuron True True",
        "0 0",
        f"True {24 << 30}",
    ], ended.stderr


def test_no_image_contains_emulated_device() -> None:
    """The build context holds no emulator."""
    recipes = [ROOT / ".dockerignore", *(p for p in (ROOT / "docker").rglob("*") if p.is_file())]
    assert not [recipe for recipe in recipes if "emulators" in recipe.read_text(errors="replace")]
