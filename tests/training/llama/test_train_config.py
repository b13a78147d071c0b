"""Schedule, data positions and refusals of the configuration; deterministic weights."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.backends.optimizers import is_decayed
from training.core.config import TrainConfig
from training.models.llama.huggingface import decoder_config, initial_weight, meta_model
from training.models.llama.parallel import split_modules, tensor_parallel_plan
from trainium_catalogue.models.presets import LLAMA_PRESETS
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.workloads import WORKLOADS

FIRST_WEIGHTS = [-0.002576436, 0.018411633, -0.005666399, 0.019853739]


def config(*, num_ranks: int = 2, **values: Value) -> TrainConfig:
    """Return llama-tiny's configuration, with changes."""
    named = {name.replace("_", "-"): value for name, value in values.items()}
    defaults = {p.name: p.default for p in WORKLOADS["llama-tiny"].parameters}
    return TrainConfig.from_values({**defaults, **named}, num_ranks)


def test_the_rate_rises_to_its_peak_and_falls_to_zero() -> None:
    found = config(lr=1.0, warmup_steps=4, max_steps=12)

    rates = [found.learning_rate_at(step) for step in range(1, 14)]

    falling = [eighths / 8 for eighths in range(7, -1, -1)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, *falling])


@given(warmup=st.integers(0, 50), steps=st.integers(1, 100), peak=st.floats(1e-6, 1.0))
def test_the_rate_is_never_negative_nor_above_its_peak(
    warmup: int, steps: int, peak: float
) -> None:
    found = config(lr=peak, warmup_steps=warmup, max_steps=steps)

    rates = [found.learning_rate_at(step) for step in range(1, steps + 1)]

    assert all(0 < rate <= peak * (1 + 1e-12) for rate in rates)


@given(
    data_parallel=st.sampled_from([1, 2, 4, 8]),
    micro_batch=st.sampled_from([1, 2, 4]),
    step=st.integers(0, 1000),
)
def test_the_ranks_of_a_step_share_its_positions_without_gap_or_overlap(
    data_parallel: int, micro_batch: int, step: int
) -> None:
    found = config(num_ranks=2 * data_parallel, micro_batch=micro_batch)
    plan = found.plan

    positions = [
        position
        for rank, micro in itertools.product(range(data_parallel), range(plan.accumulation_steps))
        for position in found.positions(step, micro, rank)
    ]

    assert positions == list(range(step * plan.global_batch, (step + 1) * plan.global_batch))


def test_a_job_ends_after_its_own_or_the_runs_steps() -> None:
    assert config(max_steps=10).last_step(4) == 10
    assert config(max_steps=10, steps_this_run=3).last_step(4) == 7
    assert config(max_steps=10, steps_this_run=30).last_step(4) == 10


def test_an_indivisible_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="global-batch=6 is not a multiple of the 4 sequences"):
        config(num_ranks=4, micro_batch=2, global_batch=6)


def test_weights_are_the_same_on_every_topology_and_differ_by_name_and_seed() -> None:
    size = torch.Size((8, 6))
    one = initial_weight("a.weight", size, seed=1)

    assert torch.equal(one, initial_weight("a.weight", size, seed=1))
    assert not torch.equal(one, initial_weight("b.weight", size, seed=1))
    assert not torch.equal(one, initial_weight("a.weight", size, seed=2))
    assert torch.equal(initial_weight("layernorm.weight", size, seed=1), torch.ones(size))


def test_weights_have_the_references_standard_deviation() -> None:
    weight = initial_weight("a.weight", torch.Size((500, 500)), seed=1)

    assert float(weight.std()) == pytest.approx(0.02, rel=0.02)
    assert float(weight.mean()) == pytest.approx(0, abs=2e-4)


def test_the_first_weights_never_change() -> None:
    # Comparing runs across versions depends on them.
    weight = initial_weight("model.embed_tokens.weight", torch.Size((4, 8)), seed=12349)

    assert weight.flatten()[:4].tolist() == pytest.approx(FIRST_WEIGHTS, abs=1e-8)


def test_the_plan_splits_every_matrix() -> None:
    preset = LLAMA_PRESETS["llama-tiny"]
    model = meta_model(decoder_config(preset.shape, seq_len=preset.seq_len))

    split = {name for name, _, _ in split_modules(model, tensor_parallel_plan(model.config))}

    matrices = {n.removesuffix(".weight") for n, p in model.named_parameters() if p.dim() == 2}
    assert split == matrices


def test_norms_and_biases_do_not_decay() -> None:
    names = ("model.norm.weight", "model.layers.0.input_layernorm.weight", "a.q_proj.bias")

    assert not any(is_decayed(name) for name in names)
    assert is_decayed("model.layers.0.self_attn.q_proj.weight")
    assert is_decayed("model.embed_tokens.weight")
