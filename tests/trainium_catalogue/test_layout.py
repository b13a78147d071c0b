"""Decisions about a decoder on NeuronX Distributed before it runs."""

from __future__ import annotations

import pytest

from trainium_catalogue.parameters.layout import Layout, Recompute, activation_bytes, check_backend
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import GIB, TrainingPlan
from trainium_catalogue.releases import TorchBackend
from trainium_catalogue.workloads import find_workload


def plan(values: dict[str, Value], ranks: int = 128) -> TrainingPlan:
    return TrainingPlan.from_values(defaults("llama2-7b") | values, ranks)


def defaults(workload: str) -> dict[str, Value]:
    return {item.name: item.default for item in find_workload(workload).parameters}


def layout(workload: str = "llama2-7b", ranks: int = 128, **changed: Value) -> Layout:
    values = defaults(workload) | {name.replace("_", "-"): one for name, one in changed.items()}
    return Layout.choose(values, TrainingPlan.from_values(values, ranks))


def test_llama2_7b_uses_sequence_parallelism_and_fusion() -> None:
    found = layout()

    assert found == Layout(
        degree=8,
        sequence_parallel=True,
        fused=True,
        flash=True,
        recompute=Recompute.ATTENTION,
    )
    assert found.describe() == (
        "sequence parallelism, projections fused, flash attention, gated activations are recomputed"
    )
    assert layout(ranks=32) == found


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"document-masks": True}, "document-masks=true"),
        ({"seq-len": 3072}, "seq-len=3072 is not a multiple of the 2,048 tokens"),
        ({"num-heads": 16, "num-kv-heads": 16}, "the head size of 256 exceeds the kernel's"),
        ({"tensor-parallel": 32}, "a rank has 1 of 32 heads, which the kernel cannot"),
    ],
)
def test_kernel_is_used_where_supported(changed: dict[str, Value], reason: str) -> None:
    found = Layout.choose(defaults("llama2-7b") | changed, plan(changed))
    assert not found.flash
    assert f"eager attention ({reason}" in found.describe()

    with pytest.raises(
        ValueError, match=f"attention=flash is not possible: {reason}.*attention=auto"
    ):
        plan({"attention": "flash", **changed})
    # An explicit setting needs no reason.
    assert "eager attention, " in layout(attention="eager").describe()


def test_indivisible_sequence_is_not_sharded() -> None:
    assert not layout(seq_len=4092).sequence_parallel
    assert not layout(sequence_parallel=False).sequence_parallel
    assert not layout("llama-tiny", ranks=8, tensor_parallel=1).sequence_parallel


def test_layers_are_recomputed_if_memory_is_short() -> None:
    assert layout(micro_batch=4).recompute is Recompute.LAYERS
    assert layout(micro_batch=4, recompute="attention").recompute is Recompute.ATTENTION
    assert layout(recompute="layers").recompute is Recompute.LAYERS
    assert layout(activation_checkpointing=False).recompute is Recompute.NOTHING
    # Eager attention stores the scores of one layer at a time.
    eager, flash = layout(attention="eager"), layout()
    assert eager.recompute is Recompute.ATTENTION
    assert 0 < activation_bytes(plan({}), eager) - activation_bytes(plan({}), flash) < GIB


def test_selective_recomputation_keeps_between_layers_and_all() -> None:
    memory = {
        recompute: activation_bytes(plan({}), layout(recompute=recompute))
        for recompute in ("layers", "selective")
    }
    everything = activation_bytes(plan({}), layout(activation_checkpointing=False))
    assert memory["layers"] < memory["selective"] < everything


@pytest.mark.parametrize(
    ("backend", "name", "value", "remedy"),
    [
        (TorchBackend.XLA, "recompute", "selective", "set recompute=attention or layers"),
        (TorchBackend.XLA, "reshard-after-forward", True, "set reshard-after-forward=false"),
        (TorchBackend.TORCH_NEURON, "recompute", "attention", "set recompute=selective or layers"),
    ],
)
def test_unsupported_backend_feature_is_refused(
    backend: TorchBackend, name: str, value: Value, remedy: str
) -> None:
    check_backend(defaults("llama2-7b"), backend)
    with pytest.raises(ValueError, match=rf"^{name}={str(value).lower()} .*{remedy}"):
        check_backend(defaults("llama2-7b") | {name: value}, backend)
    (other,) = set(TorchBackend) - {backend}
    check_backend(defaults("llama2-7b") | {name: value}, other)
