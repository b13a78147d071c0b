"""Masked packed documents compute the same as each document alone.

``tests/training/backends/test_native_on_neuron.py`` has several ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from training.datasets.manifest import COUNTED
from training.datasets.text.examples import Packer
from training.models.llama.data import DOCUMENTS, attention_mask, model_inputs, with_documents
from training.models.llama.huggingface import (
    decoder_config,
    initial_weight,
    meta_model,
    restore_buffers,
)
from trainium_catalogue.models.presets import ModelShape

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

EOS = 2
SHAPE = ModelShape(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def documents(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    """Random ids, each document ended by EOS."""
    random = np.random.default_rng(seed)
    return [np.append(random.integers(3, 64, length - 1), EOS) for length in lengths]


def made(attention: str, *, seq_len: int) -> LlamaForCausalLM:
    model = meta_model(decoder_config(SHAPE, seq_len=seq_len, attention=attention))
    model.to_empty(device="cpu")
    restore_buffers(model, torch.device("cpu"))
    for name, parameter in model.named_parameters():
        # Larger than initial weights, so that attention is not nearly uniform.
        value = initial_weight(name, parameter.size(), seed=1)
        parameter.data.copy_(value * (1 if name.endswith("norm.weight") else 10))
    return model


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_a_packed_document_has_the_logits_of_the_document_alone(attention: str) -> None:
    rows = [documents(9, 1, 17, 5, seed=1), documents(20, 12, seed=2)]
    packed = np.stack([np.append(np.concatenate(row), 7) for row in rows]).astype(np.int64)
    model = made(attention, seq_len=32)

    inputs, labels = model_inputs(with_documents(packed, eos_id=EOS), torch.float32)
    found = model(**inputs, use_cache=False).logits

    assert labels.equal(torch.from_numpy(packed[:, 1:]))
    for number, row in enumerate(rows):
        place = 0
        for document in row:
            alone = model(input_ids=torch.from_numpy(document)[None], use_cache=False).logits[0]
            inside = found[number, place : place + len(document)]
            assert (inside - alone).abs().max() < 1e-5
            place += len(document)
        assert place == 32


@given(st.lists(st.lists(st.integers(0, 4), min_size=9, max_size=9), min_size=1, max_size=3))
def test_the_end_of_document_token_belongs_to_the_document(rows: list[list[int]]) -> None:
    found = with_documents(np.array(rows, np.int64), eos_id=EOS)[DOCUMENTS]

    expected = [[row[:place].count(EOS) for place in range(8)] for row in rows]
    assert found.tolist() == expected
    assert found.dtype is torch.int32


TURNS = st.lists(st.sampled_from([EOS, 5, 6]), min_size=1, max_size=5)


@given(st.lists(st.tuples(TURNS, TURNS), min_size=1, max_size=6))
def test_an_example_of_several_turns_is_one_document(
    examples: list[tuple[list[int], list[int]]],
) -> None:
    """Chat templates end each turn with EOS, in the prompt and in the response."""
    packer = Packer(seq_len=16, eos_id=EOS)
    written, numbers = [], []
    for number, (prompt, response) in enumerate(examples):
        counted = np.array([*response, EOS], np.uint32) | COUNTED
        added = packer.add(np.array([*prompt, *counted], np.uint32))
        written.append(added)
        size = len(prompt) + len(counted)
        numbers += [-1] * (len(added) - size) + [number] * size
    written.append(packer.close())
    numbers += [-1] * len(written[-1])
    rows = np.concatenate(written).reshape(-1, 16).astype(np.int64)

    batch = with_documents(np.pad(rows, ((0, 0), (0, 1))), eos_id=EOS, has_responses=True)

    assert batch["tokens"][:, :-1].tolist() == (rows & (COUNTED - 1)).tolist()
    for found, row in zip(batch[DOCUMENTS].tolist(), np.reshape(numbers, (-1, 16)), strict=True):
        assert [(a == b) for a in found for b in found] == [(a == b) for a in row for b in row]


def test_a_mask_in_bf16_is_finite_and_no_row_is_empty() -> None:
    mask = attention_mask(torch.tensor([[0, 0, 1, 1, 2]]), torch.bfloat16)

    assert mask.shape == (1, 1, 5, 5)
    assert mask.isfinite().all() and mask.float().to(torch.bfloat16).isfinite().all()
    assert (mask[0, 0] == 0).int().tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1],
    ]  # fmt: skip


def test_masks_change_training(laptop: Laptop) -> None:
    """About every seventh token ends a document; test_family_runs.py evaluates with masks."""
    for run, masks in (("masked", "true"), ("unmasked", "false")):
        laptop.train(f"--document-masks={masks}", "--max-steps=2", run=run)

    assert abs(laptop.losses("masked")[-1] - laptop.losses("unmasked")[-1]) > 1e-5
