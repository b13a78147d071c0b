"""The loss at the output projection, part by part, against torch's of all tokens at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from training.models.llama import head_loss

TOKENS, HIDDEN, VOCABULARY = 23, 8, 50
AT_ONCE = 5
"""Tokens; the last part has fewer."""


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_loss, "_LEAST_TOKENS", 1)
    monkeypatch.setattr(head_loss, "_AT_ONCE", AT_ONCE * VOCABULARY + 1)


class Inputs:
    """Of a projection, the same in every test."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(7)
        self.states = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
        self.weight = torch.randn(VOCABULARY, HIDDEN, generator=generator).to(dtype)
        self.weight.requires_grad_()
        self.labels = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
        self.weights = torch.rand(TOKENS, generator=generator)

    def torchs(self) -> torch.Tensor:
        """Each token's loss, of all logits at once."""
        logits = (self.states @ self.weight.t()).float()
        return cross_entropy(logits, self.labels, reduction="none")

    def gradients(self, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.states.grad = self.weight.grad = None
        # As of one of four micro-batches.
        (loss / 4).backward()  # type: ignore[no-untyped-call]
        assert self.states.grad is not None and self.weight.grad is not None
        return self.states.grad, self.weight.grad


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-6), (torch.bfloat16, 0.01)])
def test_loss_and_gradients_are_torchs(dtype: torch.dtype, share: float) -> None:
    given = Inputs(dtype)
    loss = head_loss.weighted_loss(given.states, given.weight, given.labels, given.weights)
    found = given.gradients(loss)

    wanted = (given.torchs() * given.weights).sum()
    expected = given.gradients(wanted)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert (one - other).abs().max() <= share * other.abs().max()


def test_each_tokens_loss_is_torchs() -> None:
    given = Inputs()
    found = head_loss.token_losses(given.states, given.weight, given.labels)

    assert not found.requires_grad
    assert found.tolist() == pytest.approx(given.torchs().tolist(), rel=1e-5)


def test_a_frozen_projection_passes_gradients_on() -> None:
    given = Inputs()
    loss = head_loss.weighted_loss(given.states, given.weight.detach(), given.labels, given.weights)
    loss.backward()  # type: ignore[no-untyped-call]
    found = given.states.grad
    given.gradients(4 * (given.torchs() * given.weights).sum())

    assert found is not None and given.states.grad is not None
    assert torch.allclose(found, given.states.grad, atol=1e-6)


def test_a_frozen_projection_costs_no_memory_for_a_gradient() -> None:
    given = Inputs()

    def saved(weight: torch.Tensor) -> int:
        loss = head_loss.weighted_loss(given.states, weight, given.labels, given.weights)
        made: Any = loss.grad_fn
        return sum(tensor.numel() for tensor in made.saved_tensors if tensor is not None)

    assert saved(given.weight) == given.states.numel() + given.weight.numel()
    assert saved(given.weight.detach()) == given.states.numel()


def test_what_the_model_returns_is_no_view() -> None:
    """FSDP2 warns of one on every rank."""
    states = torch.randn(2, 3, HIDDEN)[:, :]
    late = head_loss.LateProjection(HIDDEN, VOCABULARY, bias=False)

    assert states._is_view() and not late(states)._is_view()
    assert torch.equal(late(states), states)


def test_extreme_logits_have_finite_losses() -> None:
    given = Inputs()
    with torch.no_grad():
        given.states *= 1e4
    loss = head_loss.weighted_loss(given.states, given.weight, given.labels, given.weights)

    assert torch.isfinite(loss)
    assert loss.item() == pytest.approx((given.torchs() * given.weights).sum().item(), rel=1e-5)


def test_a_large_vocabulary_does_not_make_parts_of_few_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise each part's time goes into reading the weight and its gradient."""
    monkeypatch.undo()
    rows = [
        rows for rows, _ in head_loss._log_probabilities(torch.ones(70, 1), torch.ones(2**16, 1))
    ]

    assert rows == [slice(0, 64), slice(64, 128)]
