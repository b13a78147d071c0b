"""Verify's training data and distance measure."""

from __future__ import annotations

import math

import pytest
import torch

from training.diagnostics.verify.reference import distance
from training.diagnostics.verify.settings import images, sentences, tokens


@pytest.mark.parametrize("make", [tokens, sentences, images])
def test_data_depend_on_their_position_alone(make: object) -> None:
    assert callable(make)
    whole, part = make(range(8)), make(range(5, 8))
    if isinstance(whole, torch.Tensor):
        whole, part = {"": whole}, {"": part}
    for name in whole:
        assert torch.equal(whole[name][5:], part[name])


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
def test_a_missing_or_non_finite_parameter_is_infinitely_far(
    found: dict[str, torch.Tensor],
) -> None:
    assert distance(found, {"a": torch.ones(4)}).value == math.inf


def test_a_gradient_of_pure_rounding_is_not_judged_alone() -> None:
    expected = {"a": torch.ones(4), "key.bias": torch.full((4,), 1e-9)}

    assert distance({**expected, "key.bias": -expected["key.bias"]}, expected).value < 1e-5
