"""What is decided about a decoder on NeuronX Distributed before anything runs."""

from __future__ import annotations

import pytest

from trainium_catalogue.parameters.layout import Layout, Recompute, activation_bytes
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import GIB, TrainingPlan
from trainium_catalogue.workloads import find_workload


def plan(values: dict[str, Value], ranks: int = 128) -> TrainingPlan:
    return TrainingPlan.from_values(defaults("llama2-7b") | values, ranks)


def defaults(workload: str) -> dict[str, Value]:
    return {item.name: item.default for item in find_workload(workload).parameters}


def layout(workload: str = "llama2-7b", ranks: int = 128, **changed: Value) -> Layout:
    values = defaults(workload) | {name.replace("_", "-"): one for name, one in changed.items()}
    return Layout.choose(values, TrainingPlan.from_values(values, ranks))


def test_llama2_7b_is_divided_fused_and_keeps_its_layers() -> None:
    found = layout()

    assert found == Layout(
        degree=8,
        sequence_parallel=True,
        fused=True,
        flash=True,
        recompute=Recompute.ATTENTION,
    )
    assert found.describe() == (
        "sequences divided, projections fused, flash attention, gated activations are computed "
        "again"
    )
    assert layout(ranks=32) == found


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"document-masks": True}, "document-masks=true"),
        ({"seq-len": 3072}, "seq-len=3072 is no multiple of the 2048 tokens"),
        ({"num-heads": 16, "num-kv-heads": 16}, "heads of 256 are larger than the 128"),
        ({"tensor-parallel": 32}, "a rank has 1 of 32 heads, and the kernel halves them"),
    ],
)
def test_the_kernel_is_taken_where_it_can_be(changed: dict[str, Value], reason: str) -> None:
    found = Layout.choose(defaults("llama2-7b") | changed, plan(changed))
    assert not found.flash
    assert f"eager attention ({reason}" in found.describe()

    with pytest.raises(ValueError, match=f"attention=flash cannot be: {reason}.*attention=auto"):
        plan({"attention": "flash", **changed})
    # What was asked for needs no reason.
    assert "eager attention, " in layout(attention="eager").describe()


def test_a_sequence_that_ranks_cannot_divide_stays_whole() -> None:
    assert not layout(seq_len=4092).sequence_parallel
    assert not layout(sequence_parallel=False).sequence_parallel
    assert not layout("llama-tiny", ranks=8, tensor_parallel=1).sequence_parallel


def test_layers_are_computed_again_where_memory_is_short() -> None:
    assert layout(micro_batch=4).recompute is Recompute.LAYERS
    assert layout(micro_batch=4, recompute="attention").recompute is Recompute.ATTENTION
    assert layout(recompute="layers").recompute is Recompute.LAYERS
    assert layout(activation_checkpointing=False).recompute is Recompute.NOTHING
    # Eager attention has its scores of one layer at a time, not of all.
    eager, flash = layout(attention="eager"), layout()
    assert eager.recompute is Recompute.ATTENTION
    assert 0 < activation_bytes(plan({}), eager) - activation_bytes(plan({}), flash) < GIB
