"""The chunked loss at the output projection, against torch's of all tokens at once."""

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
    monkeypatch.setattr(head_loss, "_MIN_TOKENS", 1)
    monkeypatch.setattr(head_loss, "_CPU_LOGITS", AT_ONCE * VOCABULARY + 1)


class Inputs:
    """Return a projection's inputs, the same in every test."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(7)
        self.states = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
        self.weight = torch.randn(VOCABULARY, HIDDEN, generator=generator).to(dtype)
        self.weight.requires_grad_()
        self.labels = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
        self.weights = torch.rand(TOKENS, generator=generator)

    def torchs(self) -> torch.Tensor:
        """Return each token's loss, from all logits at once."""
        logits = (self.states @ self.weight.t()).float()
        return cross_entropy(logits, self.labels, reduction="none")

    def gradients(self, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.states.grad = self.weight.grad = None
        # As in one of four micro-batches.
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


def test_gradients_in_bf16_are_as_exact_as_torchs() -> None:
    """In a single chunk, as on a device: torch has no sum of chunks."""
    head_loss._CPU_LOGITS = TOKENS * VOCABULARY
    given, exact = Inputs(torch.bfloat16), Inputs(torch.bfloat16)
    exact.states, exact.weight = (
        tensor.detach().float().requires_grad_() for tensor in (given.states, given.weight)
    )

    def errors(of_states: torch.Tensor, of_weight: torch.Tensor) -> list[float]:
        wanted = exact.gradients((exact.torchs() * exact.weights).sum())
        return [
            float((found - other).norm() / other.norm())
            for found, other in zip((of_states, of_weight), wanted, strict=True)
        ]

    ours = errors(
        *given.gradients(
            head_loss.weighted_loss(given.states, given.weight, given.labels, given.weights)
        )
    )
    torchs = errors(*given.gradients((given.torchs() * given.weights).sum()))
    print(ours, torchs)
    for one, other in zip(ours, torchs, strict=True):
        assert 0 < one <= 1.05 * other


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


def test_a_frozen_projection_allocates_no_gradient() -> None:
    given = Inputs()

    def saved(weight: torch.Tensor) -> int:
        loss = head_loss.weighted_loss(given.states, weight, given.labels, given.weights)
        made: Any = loss.grad_fn
        return sum(tensor.numel() for tensor in made.saved_tensors if tensor is not None)

    assert saved(given.weight) == given.states.numel() + given.weight.numel()
    assert saved(given.weight.detach()) == given.states.numel()


def test_the_models_output_is_not_a_view() -> None:
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
    """Otherwise each chunk's time is spent reading the weight and its gradient."""
    monkeypatch.undo()
    parts = head_loss._chunks(
        torch.ones(70, 1), torch.ones(2**16, 1), head_loss._Shard(), torch.zeros(70).long()
    )

    assert [part.rows for part in parts] == [slice(0, 64), slice(64, 128)]
