"""Optimizers whose graph is the same in every step, compared with torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from training.backends.optimizers import TracedAdamW, TracedSgd, traced_optimizer
from training.core.arguments import parse
from training.core.config import TrainConfig

LLAMA = TrainConfig.from_values(parse(["llama2-7b"]).values, 32)
BERT = TrainConfig.from_values(parse(["bert"]).values, 64)
SETTINGS: dict[str, Any] = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8}
Step = Callable[[int, float], None]


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the device operators with all constants."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, tuple[object, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        numbers = [value for value in (*args, *(kwargs or {}).values()) if _is_number(value)]
        self.seen.append((str(func), tuple(numbers)))
        return func(*args, **(kwargs or {}))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


@contextmanager
def operations() -> Iterator[list[tuple[str, tuple[object, ...]]]]:
    mode = Operations()
    with mode:
        yield mode.seen


def parameter() -> torch.nn.Parameter:
    generator = torch.Generator().manual_seed(5)
    made = torch.nn.Parameter(torch.randn(7, 3, generator=generator))
    made.grad = torch.randn(7, 3, generator=generator)
    return made


def ours() -> Step:
    optimizer = TracedAdamW([parameter()], **SETTINGS, weight_decay=0.01)

    def step(number: int, rate: float) -> None:
        optimizer.updates = number - 1
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    return step


def asked(step: Step, number: int, config: TrainConfig) -> list[tuple[str, tuple[object, ...]]]:
    with operations() as seen:
        step(number, config.learning_rate_at(number))
    return seen


# Where torch's bias corrections, as numbers of fp32, become 1.0: found on torch_xla's CPU device.
@pytest.mark.parametrize(("config", "number"), [(LLAMA, 2), (LLAMA, 9903), (BERT, 12211)])
def test_no_constant_of_an_update_depends_on_the_step(config: TrainConfig, number: int) -> None:
    step = ours()
    assert asked(step, number, config) == asked(step, 1, config)


def test_plain_sgd_has_no_such_constant_either() -> None:
    optimizer = TracedSgd([parameter()], lr=0.3)
    with operations() as first:
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 1.0
    with operations() as second:
        optimizer.step()

    assert first == second


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_torchs_adamw(weight_decay: float) -> None:
    mine, reference = parameter(), parameter()
    optimizers = [
        TracedAdamW([mine], **SETTINGS, weight_decay=weight_decay),
        torch.optim.AdamW([reference], **SETTINGS, weight_decay=weight_decay, foreach=False),
    ]
    generator = torch.Generator().manual_seed(6)
    for number in range(1, 100):
        gradient = torch.randn(7, 3, generator=generator)
        for weight, optimizer in zip((mine, reference), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, number / 30)
            optimizer.step()

    torch.testing.assert_close(mine, reference, rtol=2e-5, atol=2e-6)
    for moment in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(
            optimizers[0].state[mine][moment], optimizers[1].state[reference][moment]
        )


def test_gradients_are_zeroed_in_place() -> None:
    weight = parameter()
    before = weight.grad
    traced_optimizer([("w.weight", weight)], LLAMA).step(0.1)

    assert weight.grad is before
    assert before is not None and not before.any()
