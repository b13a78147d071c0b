"""Optimizers for a device whose operations are recorded, compiled and cached: torch_xla's.

torch_xla makes a constant of the graph of each number that is 0 or 1, and one parameter of numbers
that are equal (2.9, csrc/tensor.cpp, ``IsSpecialScalar``; csrc/xla_graph_executor.cpp,
``GetDeviceData``). torch's AdamW gives it the learning rate and the bias corrections as numbers.
So whenever one of them becomes 1.0 in fp32, or equal to another, the update is a new graph, in the
middle of a run: in step 9,903 of Llama-2-7B's schedule. Here what changes from step to step
goes to the device as a tensor of one dimension, which is always data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from training.backends.optimizer import MOMENTS, is_decayed
from training.core.config import Optimizer

if TYPE_CHECKING:
    from training.core.config import TrainConfig


class AdamW(torch.optim.Optimizer):
    """Decoupled weight decay (Loshchilov and Hutter, 2019), numerically torch's AdamW.

    The moments exist from the beginning, so that the first update is the graph of all others.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self.updates = 0
        """Made so far."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {moment: torch.zeros_like(parameter) for moment in MOMENTS}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        self.updates += 1
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            kept, rate, root = _as_data(
                [
                    1.0 - group["lr"] * group["weight_decay"],
                    group["lr"] / (1.0 - beta1**self.updates),
                    math.sqrt(1.0 - beta2**self.updates),
                ],
                parameters[0].device,
            )
            for parameter in parameters:
                first, second = (self.state[parameter][moment] for moment in MOMENTS)
                gradient = parameter.grad
                first.lerp_(gradient, 1.0 - beta1)
                second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
                spread = second.sqrt().div_(root).add_(group["eps"])
                parameter.mul_(kept).sub_(first.div(spread).mul_(rate))


class Sgd(torch.optim.Optimizer):
    """Plain gradient descent, which has no state."""

    def __init__(self, params: Any, *, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            (rate,) = _as_data([group["lr"]], parameters[0].device)
            for parameter in parameters:
                parameter.sub_(parameter.grad * rate)


def _as_data(numbers: list[float], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Numbers on the device, in fp32, none of which is a constant there."""
    return torch.tensor(numbers, dtype=torch.float32).to(device).unbind()


class TracedUpdates:
    """See ``Updates``: one of the above over parameters that have names."""

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]], config: TrainConfig) -> None:
        self._optimizer: AdamW | Sgd
        named = list(parameters)
        if config.optimizer is Optimizer.SGD:
            self._optimizer = Sgd([p for _, p in named], lr=config.learning_rate)
        else:
            self._optimizer = adamw(named, config)

    def step(self, learning_rate: float) -> None:
        """Update the weights, and make the gradients 0."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        # Never None: the next micro-batch is the graph of all others.
        self._optimizer.zero_grad(set_to_none=False)

    def state(self, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The moments of every parameter, by its name; nothing without any."""
        if isinstance(self._optimizer, Sgd):
            return {}
        state = self._optimizer.state
        return {
            moment: {name: state[parameter][moment] for name, parameter in weights.items()}
            for moment in MOMENTS
        }

    def restore_step(self, step: int) -> None:
        """Count on from ``step`` updates."""
        if isinstance(self._optimizer, AdamW):
            self._optimizer.updates = step


def adamw(named: Iterable[tuple[str, torch.Tensor]], config: TrainConfig) -> AdamW:
    """The optimizer of a run."""
    return AdamW(groups_by_decay(named, config), **adamw_settings(config))


def groups_by_decay(
    named: Iterable[tuple[str, torch.Tensor]], config: TrainConfig
) -> list[dict[str, Any]]:
    """Parameters that weight decay applies to, and those that it does not."""
    groups: dict[bool, list[torch.Tensor]] = {}
    for name, parameter in named:
        groups.setdefault(is_decayed(name), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": config.weight_decay if decayed else 0.0}
        for decayed, parameters in groups.items()
    ]


def adamw_settings(config: TrainConfig) -> dict[str, Any]:
    """What ``AdamW`` is made with, beside its groups."""
    return {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.adam_eps,
    }
