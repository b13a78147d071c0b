"""AdamW, plain gradient descent and clipping for parameters sharded in different ways.

On CPUs AdamW is torch's own. Devices that compile and cache operations use the traced optimizers of
this module, which pass all values that change between steps as a one-dimensional tensor.

torch_xla turns every scalar 0 or 1 into a constant of the graph, and equal scalars into a single
parameter (2.9, csrc/tensor.cpp, ``IsSpecialScalar``; csrc/xla_graph_executor.cpp,
``GetDeviceData``). torch's AdamW passes the learning rate and the bias corrections as scalars. So
whenever one of them rounds to 1.0 in fp32 or equals another, the update becomes a new graph in the
middle of a run, as in step 9,903 of Llama-2-7B's schedule. Tensors are always data. TorchNeuron has
the same problem: it compiles each eager operator for its shapes, and for its scalars unless it
converts them to tensors (github.com/parmoham-aws/test-repo-parmoham, 98154b8,
python_ops/torch_mlir/README.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from training.core.config import Optimizer

if TYPE_CHECKING:
    from training.core.config import TrainConfig

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's moments, as torch and checkpoints name them."""


def _mesh_of(tensor: torch.Tensor) -> object:
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def is_decayed(name: str) -> bool:
    """Return whether weight decay applies to a parameter: all but norms and biases."""
    return not name.lower().endswith(("norm.weight", "bias"))


class NamedOptimizer:
    """An optimizer whose state is keyed by parameter name."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, is_traced: bool = False) -> None:
        self._optimizer, self._is_traced = optimizer, is_traced

    def step(self, learning_rate: float) -> None:
        """Update the weights and reset the gradients."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        # Never None when tracing, so that all micro-batches share one graph.
        self._optimizer.zero_grad(set_to_none=not self._is_traced)

    def state(self, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Collect the moments of every parameter, by kind and name, if there are any."""
        states = self._optimizer.state
        if not states:
            return {}
        return {
            moment: {name: states[parameter][moment] for name, parameter in weights.items()}
            for moment in MOMENTS
        }

    def restore_step(self, step: int) -> None:
        """Continue counting from ``step`` updates."""
        if isinstance(self._optimizer, TracedAdamW):
            self._optimizer.updates = step
            return
        for state in self._optimizer.state.values():
            state["step"].fill_(float(step))


def checkpoint_state(weights: dict[str, Any], optimizer: NamedOptimizer) -> dict[str, Any]:
    """Assemble the contents of a checkpoint, the same for every backend."""
    state = optimizer.state(weights)
    return {"model": weights, "optimizer": state} if state else {"model": weights}


def adamw_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the arguments of AdamW other than its parameter groups."""
    return {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.adam_eps,
    }


def eager_optimizer(
    parameters: Iterable[tuple[str, torch.Tensor]], config: TrainConfig
) -> NamedOptimizer:
    """Create a run's optimizer for eager execution."""
    named = list(parameters)
    if config.optimizer is Optimizer.SGD:
        return NamedOptimizer(TracedSgd([p for _, p in named], lr=config.learning_rate))
    groups, settings = groups_by_decay(named, config), adamw_settings(config)
    if named[0][1].device.type == "cpu":
        return NamedOptimizer(_cpu_adamw(groups, settings))
    return NamedOptimizer(ForeachAdamW(groups, **settings))


def traced_optimizer(
    parameters: Iterable[tuple[str, torch.Tensor]], config: TrainConfig
) -> NamedOptimizer:
    """Create a run's optimizer for tracing."""
    if config.optimizer is Optimizer.SGD:
        sgd = TracedSgd([p for _, p in parameters], lr=config.learning_rate)
        return NamedOptimizer(sgd, is_traced=True)
    adamw = TracedAdamW(groups_by_decay(parameters, config), **adamw_settings(config))
    return NamedOptimizer(adamw, is_traced=True)


def _cpu_adamw(groups: list[dict[str, Any]], settings: dict[str, Any]) -> torch.optim.AdamW:
    """Create torch's AdamW for a CPU, in one pass over each parameter."""
    optimizer = torch.optim.AdamW(groups, **settings, fused=True)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # Created now, so that a checkpoint can be loaded before the first step.
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                **{moment: torch.zeros_like(parameter) for moment in MOMENTS},
            }
    return optimizer


class TracedAdamW(torch.optim.Optimizer):
    """Decoupled weight decay (Loshchilov and Hutter, 2019), numerically equal to torch's AdamW.

    The moments exist from the start, so the first update has the same graph as all others.
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
        """Number of updates so far."""
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
            numbers = _as_data(
                [
                    1.0 - group["lr"] * group["weight_decay"],
                    group["lr"] / (1.0 - beta1**self.updates),
                    math.sqrt(1.0 - beta2**self.updates),
                ],
                parameters[0].device,
            )
            self._update(parameters, group, *numbers)

    def _update(
        self,
        parameters: list[Any],
        group: dict[str, Any],
        decay: torch.Tensor,
        step_size: torch.Tensor,
        sqrt_correction: torch.Tensor,
    ) -> None:
        beta1, beta2 = group["betas"]
        for parameter in parameters:
            first, second = (self.state[parameter][moment] for moment in MOMENTS)
            gradient = parameter.grad
            first.lerp_(gradient, 1.0 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            denominator = second.sqrt().div_(sqrt_correction).add_(group["eps"])
            parameter.mul_(decay).sub_(first.div(denominator).mul_(step_size))


class ForeachAdamW(TracedAdamW):
    """The same update as a dozen foreach operators, since each operator is slow on eager devices.

    On trn2 a step over 662 tensors took 126 ms with foreach and 1,324 ms one by one
    (github.com/hokindeng/object-permanence, pwm).
    """

    def _update(
        self,
        parameters: list[Any],
        group: dict[str, Any],
        decay: torch.Tensor,
        step_size: torch.Tensor,
        sqrt_correction: torch.Tensor,
    ) -> None:
        beta1, beta2 = group["betas"]
        gradients = [parameter.grad for parameter in parameters]
        firsts, seconds = (
            [self.state[parameter][moment] for parameter in parameters] for moment in MOMENTS
        )
        torch._foreach_lerp_(firsts, gradients, 1.0 - beta1)
        torch._foreach_mul_(seconds, beta2)
        torch._foreach_addcmul_(seconds, gradients, gradients, 1.0 - beta2)
        denominators = torch._foreach_sqrt(seconds)
        torch._foreach_div_(denominators, sqrt_correction)
        torch._foreach_add_(denominators, group["eps"])
        changes = torch._foreach_div(firsts, denominators)
        torch._foreach_mul_(changes, step_size)
        torch._foreach_mul_(parameters, decay)
        torch._foreach_sub_(parameters, changes)


class TracedSgd(torch.optim.Optimizer):
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
            (learning_rate,) = _as_data([group["lr"]], parameters[0].device)
            for parameter in parameters:
                parameter.sub_(parameter.grad * learning_rate)


def _as_data(numbers: list[float], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Pass scalars to the device as fp32 data, never as constants of the graph."""
    return torch.tensor(numbers, dtype=torch.float32).to(device).unbind()


def groups_by_decay(
    named: Iterable[tuple[str, torch.Tensor]], config: TrainConfig
) -> list[dict[str, Any]]:
    """Group parameters by whether weight decay applies, and by their mesh.

    Foreach operators on DTensors need a single mesh, and norms are replicated where matrices are
    split.
    """
    groups: dict[tuple[object, bool], list[torch.Tensor]] = {}
    for name, parameter in named:
        groups.setdefault((_mesh_of(parameter), is_decayed(name)), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": config.weight_decay if decayed else 0.0}
        for (_, decayed), parameters in groups.items()
    ]


def clip(parameters: Iterable[torch.Tensor], limit: float) -> torch.Tensor:
    """Scale all gradients so that their total norm is at most ``limit`` (0: measure only).

    Returns the previous norm, the same on every rank. torch's ``clip_grad_norm_`` rejects a list
    with gradients of several meshes, and reduces each mesh dimension separately.
    """
    groups: dict[object, list[torch.Tensor]] = {}
    for parameter in parameters:
        assert parameter.grad is not None
        groups.setdefault((_mesh_of(parameter.grad), _copies(parameter.grad)), []).append(parameter)
    squares: list[torch.Tensor] = []
    for members in groups.values():
        gradients = [_part(p.grad) for p in members if p.grad is not None]
        squares.append(get_total_norm(gradients, foreach=True) ** 2 / _copies(members[0].grad))
    total: torch.Tensor = torch.stack(squares).sum()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(total)
    total = total.sqrt()
    if limit > 0:
        for members in groups.values():
            clip_grads_with_norm_(members, limit, total)
    return total


def _copies(gradient: torch.Tensor | None) -> int:
    """Count the ranks that hold the same part of a gradient."""
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
