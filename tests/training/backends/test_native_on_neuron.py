"""The native backend on the emulated TorchNeuron: the CPU's losses, at a device's cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._functorch import partitioners
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.pretend_neuron import pretend_neuron
from tests.training import ranks
from tests.training.backends.neuron_program import TINY
from training.backends.base import trainable_parameters
from training.backends.native import NativeBackend, compile_layers
from training.core.arguments import parse
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.core.device import EagerDevice
from training.models.llama.data import random_batches
from training.models.llama.network import LlamaNetwork

PROGRAM = Path(__file__).with_name("neuron_program.py")
SAVED = 3


@dataclass(frozen=True, kw_only=True)
class World:
    """A number of ranks and what they show."""

    num_ranks: int
    degrees: tuple[str, ...]
    """Degrees of tensor parallelism."""


WORLDS = {
    "one rank": World(num_ranks=1, degrees=("1",)),
    "dp2 and tp2": World(num_ranks=2, degrees=("1", "2")),
    "tp2 x dp2": World(num_ranks=4, degrees=("2",)),
}
# `make rehearse` trains on four ranks of the emulated device.
_SLOW = ("dp2 and tp2", "tp2 x dp2")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.full if name in _SLOW else ()) for name in WORLDS],
)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return every rank's results, by degree and precision."""
    folder = tmp_path_factory.mktemp("neuron")
    world = WORLDS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        plain, extra = ranks._environment, pretend_neuron(folder)
        patch.setattr(ranks, "_environment", lambda *given: {**plain(*given), **extra})
        return ranks.results_of_ranks(
            PROGRAM,
            *(str(folder), *world.degrees),
            num_ranks=world.num_ranks,
            timeout_s=180,
        )


def trained(cases: Any) -> Iterator[tuple[str, Any]]:
    """Return the runs among a rank's results."""
    return ((name, case) for name, case in cases.items() if "cpu" in case)


def test_losses_and_norms_are_those_of_a_cpu_to_five_digits(found: Any) -> None:
    """In bf16 to three digits: the CPU has a kernel of its own for attention, the device none."""
    for cases in found:
        for name, case in trained(cases):
            if name.endswith("fp32"):
                assert case["neuron"] == pytest.approx(case["cpu"], rel=1e-5)
            else:
                assert case["neuron"][::2] == pytest.approx(case["cpu"][::2], rel=1e-3)
                assert case["neuron"][1::2] == pytest.approx(case["cpu"][1::2], rel=0.03)


def test_a_run_resumes_from_an_asynchronous_save(found: Any) -> None:
    for cases in found:
        for _, case in trained(cases):
            assert case["resumed"] == pytest.approx(case["neuron"][2 * SAVED :], rel=1e-6)


def test_no_step_after_the_second_has_an_operator_that_the_device_would_compile(
    found: Any,
) -> None:
    for cases in found:
        for _, case in trained(cases):
            assert [step["new_signatures"] for step in case["counts"][2:]] == [0, 0, 0]
            assert not any(step["graphs"] for step in case["counts"][2:])


def test_an_unlogged_step_never_waits_for_the_device(found: Any) -> None:
    for cases in found:
        for _, case in trained(cases):
            # After the first step it looks for operators that ran on the CPU. Steps after the save
            # may wait for the checkpoint that is being written.
            assert [step["host_syncs"] for step in case["counts"][:SAVED]] == [1, 0, 0]


def test_blocks_share_one_forward_and_one_backward_graph_without_breaks(found: Any) -> None:
    for cases in found:
        for _, case in trained(cases):
            assert not any(step["graph_breaks"] for step in case["counts"])
            assert [step["graphs"] for step in case["counts"]] == [2, 0, 0, 0, 0]


def test_gradients_equal_one_processes_however_work_is_split(found: Any) -> None:
    for cases in found:
        for name, ways in cases.items():
            if name.endswith("gradients"):
                far = {way: found["far"] for way, found in ways.items()}
                assert max(far.values()) < 2e-5, far


def test_every_collective_of_a_step_is_waited_for(found: Any) -> None:
    for cases in found:
        for name, ways in cases.items():
            if name.endswith("gradients"):
                assert not any(found["unwaited"] for found in ways.values()), ways


def test_selective_recomputation_is_between_all_and_nothing(found: Any) -> None:
    """In operations of the backward graph."""
    for cases in found:
        for name, ways in cases.items():
            if name == "tp2-gradients" and "selective" in ways:
                layers, selective, kept = (
                    ways[way]["graphs"] for way in ("divided", "selective", "kept")
                )
                assert layers[1] > selective[1] > kept[1]


def test_a_cpu_fallback_operator_ends_the_job_unless_allowed(
    found: Any,
) -> None:
    if "fallback" not in found[0]:
        pytest.skip("shown by one rank")
    refused, allowed = found[0]["fallback"]["refused"], found[0]["fallback"]["allowed"]
    assert "has no kernel for aten::_linalg_det" in refused and "--cpu-fallback" in refused
    assert allowed == ""


def test_a_release_that_lists_no_fallback_operators_is_remarked_on(found: Any) -> None:
    if "fallback" not in found[0]:
        pytest.skip("shown by one rank")
    (remark,) = found[0]["fallback"]["remarks"]
    assert "has no get_fallback_ops: operators that it runs on the CPU are not reported" in remark


def test_layers_compile_at_a_high_degree_though_their_attention_counts_as_random(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is sent, so there are no numbers; four heads are shared by eight ranks."""
    monkeypatch.setattr(partitioners, "functionalize_rng_ops", partitioners.functionalize_rng_ops)
    words = (*TINY, "--num-heads=8", "--num-kv-heads=4", "--tensor-parallel=8")
    values = parse(["llama-tiny", *words]).values
    config = replace(TrainConfig.from_values(values, 16), mixed=True)
    network = LlamaNetwork(config)
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=16)
    try:
        device = EagerDevice(DeviceKind.CPU, torch.device("cpu"))
        backend = NativeBackend(config, device, network)
        backend._mixed = True
        backend.build()
        compile_layers(network.layers(backend._model), "aot_eager")
        batch = random_batches(vocab_size=256, seed=1, seq_len=16)
        tokens = batch(config.positions(0, 0, backend.data_rank))
        backend.forward_backward(tokens, is_last=True)
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()

    assert all(weight.grad is not None for weight in trainable_parameters(backend._model).values())
