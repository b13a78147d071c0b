"""The arithmetic of a training run, compared with published figures, and its consistency."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.models.presets import PRESETS, BertShape
from trainium_catalogue.parameters.plan import TrainingPlan
from trainium_catalogue.parameters.training import training_parameters

LLAMA2_7B = {p.name: p.default for p in training_parameters(PRESETS["llama2-7b"])}


def plan(num_ranks: int = 128, **changes: Any) -> TrainingPlan:
    """Plan Llama-2-7B on four trn1.32xlarge, with ``changes`` by parameter name (`_` for `-`)."""
    values = {name.replace("_", "-"): value for name, value in changes.items()}
    return TrainingPlan.from_values({**LLAMA2_7B, **values}, num_ranks)


def test_llama2_7b_parameter_count_matches_publication() -> None:
    """Hugging Face's model card of meta-llama/Llama-2-7b-hf: 6.74 B."""
    assert PRESETS["llama2-7b"].shape.num_parameters == 6_738_415_616


def test_reference_on_four_nodes() -> None:
    """AWS's reference script computes DP = 32 x 4 / 8 and ACC_STEPS = 1024 / 1 / DP."""
    made = plan()

    assert (made.data_parallel, made.accumulation_steps) == (16, 64)
    assert made.tokens_per_step == 4_194_304


def test_model_flops_utilization_is_close_to_what_aws_publishes() -> None:
    """81 sequences/s on 16 nodes: AWS's benchmark page states 30.8%, by its own formula."""
    made = plan(16 * 32)

    peak_flops = INSTANCE_TYPES["trn1.32xlarge"].peak_flops_per_process
    utilization = made.model_flops_utilization(81 * 4096, peak_flops=peak_flops)

    assert utilization == pytest.approx(0.308, abs=0.01)


@pytest.mark.parametrize(
    ("num_ranks", "changes", "message"),
    [
        (4, {}, "tensor-parallel=8 does not divide the 4 ranks of the job; set tensor-parallel=4"),
        (96, {"tensor_parallel": 3}, "tensor-parallel=3 does not divide num-heads=32; set"),
        (
            144,
            {"num_heads": 48, "hidden_size": 6144, "num_kv_heads": 16, "tensor_parallel": 24}
            | {"intermediate_size": 9216, "vocab_size": 48000},
            "tensor-parallel=24 neither divides num-kv-heads=16 nor is a multiple of it; set "
            "tensor-parallel=16",
        ),
        (
            4,
            {"num_kv_heads": 2},
            "tensor-parallel=8 does not divide the 4 ranks of the job; set tensor-parallel=4",
        ),
        (128, {"intermediate_size": 11012}, "does not divide intermediate-size=11012"),
        (128, {"vocab_size": 32001}, "does not divide vocab-size=32001"),
        (
            96,
            {},
            "global-batch=1024 is not a multiple of the 12 sequences processed at a time (12 "
            "data-parallel ranks with micro-batch=1); set global-batch=1032",
        ),
        (128, {"hidden_size": 4100}, "hidden-size=4100 is not a multiple of num-heads=32"),
        (128, {"hidden_size": 32 * 127}, "rotary embeddings need an even one"),
        (128, {"num_kv_heads": 24}, "num-heads=32 is not a multiple of num-kv-heads=24"),
    ],
)
def test_indivisible_settings_are_refused_with_remedy(
    num_ranks: int, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError) as refused:
        plan(num_ranks, **changes)

    assert message in str(refused.value)


@given(
    nodes=st.sampled_from([1, 2, 4, 8, 16, 32]),
    tensor_parallel=st.sampled_from([1, 2, 4, 8, 16, 32]),
    micro_batch=st.sampled_from([1, 2, 4]),
    multiple=st.integers(1, 9),
)
def test_every_plan_computes_the_whole_global_batch(
    nodes: int, tensor_parallel: int, micro_batch: int, multiple: int
) -> None:
    at_once = 32 * nodes // tensor_parallel * micro_batch

    made = plan(
        32 * nodes,
        tensor_parallel=tensor_parallel,
        micro_batch=micro_batch,
        global_batch=at_once * multiple,
    )

    assert made.accumulation_steps == multiple
    assert made.data_parallel * made.micro_batch * made.accumulation_steps == made.global_batch


@given(tensor_parallel=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_ranks_together_hold_whole_model(tensor_parallel: int) -> None:
    made = plan(tensor_parallel=tensor_parallel)

    assert made.parameters_per_rank * tensor_parallel >= made.shape.num_parameters
    held = made.optimizer_parameters_per_rank * made.data_parallel
    assert 0 <= held - made.parameters_per_rank < made.data_parallel


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_every_preset_runs_on_one_and_on_its_node_count(preset: Any) -> None:
    values = {p.name: p.default for p in training_parameters(preset)}

    for num_nodes in (1, preset.default_nodes):
        assert TrainingPlan.from_values(values, 32 * num_nodes).accumulation_steps >= 1


def test_bert_keeps_its_global_batch_on_any_number_of_nodes() -> None:
    values = {p.name: p.default for p in training_parameters(PRESETS["bert"])}
    plans = [TrainingPlan.from_values(values, 32 * num_nodes) for num_nodes in (1, 2, 4)]

    assert {made.global_batch for made in plans} == {16384}
    assert [made.accumulation_steps for made in plans] == [32, 16, 8]


def test_published_bert_throughput_gives_published_utilization() -> None:
    # 3,530 seq/s and 27.5% on one node: trn1_trn1n_nlp_data.csv of aws-neuron-sdk.
    values = {p.name: p.default for p in training_parameters(PRESETS["bert"])}
    made = TrainingPlan.from_values(values, 32)

    found = made.model_flops_utilization(3530 * made.seq_len, peak_flops=95e12)
    assert found == pytest.approx(0.275, abs=0.001)


def test_bert_with_indivisible_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden-size=130 is not a multiple of num-heads=4; all"):
        BertShape(
            vocab_size=8,
            hidden_size=130,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=4,
        )
