"""The plan's activation bytes against autograd's saved tensors, in bf16 on a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from training.models.llama.huggingface import decoder_config, whole_model
from trainium_catalogue.models.presets import MODELS, Family, ModelShape
from trainium_catalogue.parameters.layout import Layout, Recompute, activation_bytes
from trainium_catalogue.parameters.plan import TrainingPlan

SEQ_LEN, BATCH = 128, 2


def plan_of(layers: int, *, vocabulary: int = 64) -> TrainingPlan:
    shape = MODELS["qwen3-tiny"].shape
    assert isinstance(shape, ModelShape)
    shape = replace(shape, num_hidden_layers=layers, vocab_size=vocabulary, num_key_value_heads=4)
    return TrainingPlan(
        shape=shape,
        num_ranks=1,
        tensor_parallel=1,
        global_batch=BATCH,
        micro_batch=BATCH,
        seq_len=SEQ_LEN,
    )


def bound(plan: TrainingPlan, attention: str) -> int:
    return activation_bytes(
        plan,
        Layout(
            degree=1,
            sequence_parallel=False,
            fused=False,
            flash=attention == "sdpa",
            recompute=Recompute.NOTHING,
        ),
    )


def saved(plan: TrainingPlan, attention: str) -> int:
    """Measure the bytes that autograd saves for the backward pass, excluding weights."""
    config = decoder_config(plan.shape, seq_len=plan.seq_len, attention=attention)
    model: Any = whole_model(config).to(torch.bfloat16)
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            # Held, so that its address is not reused.
            kept[storage.data_ptr()] = storage
        return tensor

    ids = torch.arange(BATCH * plan.seq_len).reshape(BATCH, -1) % plan.shape.vocab_size
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_layer_uses_no_more_memory_than_planned(attention: str) -> None:
    two, three = plan_of(2), plan_of(3)
    found = saved(three, attention) - saved(two, attention)
    allowed = bound(three, attention) - bound(two, attention)

    assert found <= allowed <= 1.25 * found


def test_qwen3_keeps_its_head_norms() -> None:
    plan = plan_of(2)
    assert isinstance(plan.shape, ModelShape)
    llama = replace(plan, shape=replace(plan.shape, family=Family.LLAMA))
    extra = saved(plan, "sdpa") - saved(llama, "sdpa")

    assert 0 < extra <= bound(plan, "sdpa") - bound(llama, "sdpa")


def test_a_model_with_a_large_vocabulary_uses_no_more_memory_than_planned() -> None:
    plan = plan_of(2, vocabulary=8192)

    # Of the head only the softmax is saved; the rest of the bound is transient.
    assert saved(plan, "sdpa") <= bound(plan, "sdpa")
