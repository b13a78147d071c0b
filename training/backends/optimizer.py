"""AdamW and gradient clipping over parameters that are sharded in different ways."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from training.core.config import Optimizer

if TYPE_CHECKING:
    from training.core.config import TrainConfig

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Of AdamW, as torch names them, and checkpoints."""


def _mesh_of(tensor: torch.Tensor) -> object:
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def is_decayed(name: str) -> bool:
    """Whether weight decay applies: not to norms and biases."""
    return not name.lower().endswith(("norm.weight", "bias"))


class Updates(Protocol):
    """An optimizer, its state kept by the names of the parameters."""

    def step(self, learning_rate: float) -> None:
        """Update the weights; the next micro-batch begins new gradients."""

    def state(self, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """What a checkpoint keeps of it, by kind and name of the parameter."""

    def restore_step(self, step: int) -> None:
        """Count on from ``step`` updates."""


def make_optimizer(parameters: Iterable[tuple[str, torch.Tensor]], config: TrainConfig) -> Updates:
    """The optimizer of a run."""
    if config.optimizer is Optimizer.SGD:
        return Sgd([parameter for _, parameter in parameters])
    return Adam(parameters, config)


class Sgd:
    """Plain gradient descent, which has no state."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = parameters

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update the weights and drop the gradients."""
        for parameter in self._parameters:
            assert parameter.grad is not None
            parameter -= learning_rate * parameter.grad
            parameter.grad = None

    def state(self, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore_step(self, step: int) -> None:
        """Nothing is counted."""


class Adam:
    """torch's AdamW."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.Tensor]],
        config: TrainConfig,
    ) -> None:
        # One group of a kind: operations on lists of DTensors need one mesh, and norms are whole
        # where matrices are split.
        groups: dict[tuple[object, bool], list[torch.Tensor]] = {}
        for name, parameter in parameters:
            groups.setdefault((_mesh_of(parameter), is_decayed(name)), []).append(parameter)
        on_cpu = next(iter(groups.values()))[0].device.type == "cpu"
        self._optimizer = torch.optim.AdamW(
            [
                {"params": members, "weight_decay": config.weight_decay if decayed else 0.0}
                for (_, decayed), members in groups.items()
            ],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.adam_eps,
            # One pass over each parameter where there is such a kernel.
            fused=on_cpu or None,
            foreach=None if on_cpu else True,
        )
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                # Made now, so that a checkpoint can be loaded before the first step.
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(0.0),
                    **{moment: torch.zeros_like(parameter) for moment in MOMENTS},
                }

    def step(self, learning_rate: float) -> None:
        """Update the weights and drop the gradients."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()

    def state(self, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Both moments of every parameter, by its name."""
        state = self._optimizer.state
        return {
            moment: {name: state[parameter][moment] for name, parameter in weights.items()}
            for moment in MOMENTS
        }

    def restore_step(self, step: int) -> None:
        """Count on from ``step`` updates."""
        for state in self._optimizer.state.values():
            state["step"].fill_(float(step))


def clip(parameters: Iterable[torch.Tensor], limit: float) -> torch.Tensor:
    """Scale all gradients so that their common norm is ``limit`` at most (0: measure only).

    Returns the norm before, the same on every rank. torch's ``clip_grad_norm_`` refuses a list
    with gradients of several meshes, and reduces each mesh dimension on its own.
    """
    groups: dict[object, list[torch.Tensor]] = {}
    for parameter in parameters:
        assert parameter.grad is not None
        groups.setdefault((_mesh_of(parameter.grad), _copies(parameter.grad)), []).append(parameter)
    squares: list[torch.Tensor] = []
    for members in groups.values():
        gradients = [_part(p.grad) for p in members if p.grad is not None]
        squares.append(get_total_norm(gradients) ** 2 / _copies(members[0].grad))
    total: torch.Tensor = torch.stack(squares).sum()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(total)
    total = total.sqrt()
    if limit > 0:
        for members in groups.values():
            clip_grads_with_norm_(members, limit, total)
    return total


def _copies(gradient: torch.Tensor | None) -> int:
    """How many ranks hold the same part of a gradient."""
    num_ranks = dist.get_world_size() if dist.is_initialized() else 1
    if not isinstance(gradient, DTensor):
        return num_ranks
    parts = math.prod(
        gradient.device_mesh.size(dimension)
        for dimension, placement in enumerate(gradient.placements)
        if not placement.is_replicate()
    )
    return num_ranks // parts


def _part(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
