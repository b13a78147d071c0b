"""What verify trains on, on which ranks, and how it measures distances."""

from __future__ import annotations

import math

import pytest
import torch

from training.checks.verify.reference import distance
from training.checks.verify.settings import bert_config_for, config_for, images, sentences, tokens
from trainium_catalogue.parameters.verify import default_degree


@pytest.mark.parametrize(
    ("num_ranks", "degree"), [(1, 1), (2, 2), (4, 4), (12, 4), (32, 8), (64, 8), (96, 8), (128, 8)]
)
def test_the_degree_is_that_of_llama2_7b_where_ranks_allow(num_ranks: int, degree: int) -> None:
    plan = config_for(num_ranks).plan

    assert default_degree(num_ranks) == plan.tensor_parallel == degree
    # The same batch everywhere, in two micro-batches where a rank has an even share.
    assert plan.global_batch == 96
    assert plan.accumulation_steps == (1 if 96 // plan.data_parallel % 2 else 2)


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8])
def test_any_degree_that_divides_the_ranks_trains_the_same_model(tensor_parallel: int) -> None:
    plan = config_for(32, tensor_parallel).plan

    assert (plan.tensor_parallel, plan.shape) == (tensor_parallel, config_for(1).plan.shape)


def test_any_number_of_ranks_shares_the_berts_batch() -> None:
    assert {bert_config_for(n).plan.accumulation_steps for n in (1, 2, 40, 128)} == {4}


@pytest.mark.parametrize("make", [tokens, sentences, images])
def test_data_depend_on_their_position_alone(make: object) -> None:
    assert callable(make)
    whole, part = make(range(8)), make(range(5, 8))
    if isinstance(whole, torch.Tensor):
        whole, part = {"": whole}, {"": part}
    for name in whole:
        assert torch.equal(whole[name][5:], part[name])


def test_tokens_follow_from_the_one_before_the_last() -> None:
    found = tokens(range(400))
    kinds = found // 16
    follow = ((kinds[:, :-2] + 1) % 32 == kinds[:, 2:]).float().mean()

    assert 0.86 < float(follow) < 0.92
    assert (int(found.min()), int(found.max())) == (0, 511)
    # Every tensor-parallel rank of eight has tokens of its own.
    assert set((found // 64).flatten().tolist()) == set(range(8))


def test_sentences_have_padding_that_is_not_predicted() -> None:
    batch = sentences(range(64))
    lengths = batch["attention_mask"].sum(1)
    real = batch["labels"] != -100

    assert lengths.min() == 10 and lengths.max() == 16
    assert set(real.sum(1).tolist()) == {3}
    assert (batch["positions"][real].view(-1, 3).max(1).values < lengths).all()
    assert set(batch["next_sentence_label"].tolist()) == {0, 1}


def test_a_distance_names_the_worst_parameter() -> None:
    expected = {"a": torch.ones(4), "b": torch.full((4,), 2.0)}
    found = {"a": torch.ones(4), "b": torch.full((4,), 2.2)}

    assert distance(found, expected).name == "b"
    assert distance(found, expected).value == pytest.approx(0.1)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"a": torch.ones(3)},
        {"a": torch.full((4,), math.nan)},
        {"a": torch.ones(4), "b": torch.ones(1)},
    ],
)
def test_a_parameter_that_is_not_there_or_no_number_is_infinitely_far(
    found: dict[str, torch.Tensor],
) -> None:
    assert distance(found, {"a": torch.ones(4)}).value == math.inf


def test_a_gradient_that_is_nothing_but_rounding_is_not_judged_by_itself() -> None:
    expected = {"a": torch.ones(4), "key.bias": torch.full((4,), 1e-9)}

    assert distance({**expected, "key.bias": -expected["key.bias"]}, expected).value < 1e-5
