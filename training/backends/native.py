"""Plain torch.distributed: DTensor tensor parallelism, FSDP2 over data-parallel ranks.

The same code runs on CPUs with gloo and on TorchNeuron's device ``neuron``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from training.backends.base import (
    Batch,
    Network,
    Score,
    SequenceNetwork,
    WeightPart,
    place,
    trained,
)
from training.backends.heartbeat import DeviceHeartbeat
from training.backends.optimizers import checkpoint_state, clip, eager_optimizer
from training.core.contract import DeviceKind

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints
    from training.core.config import TrainConfig
    from training.core.device import Device

_PRECISION = MixedPrecisionPolicy(
    # fp32 parameters are the master weights; gradients are summed in fp32.
    param_dtype=torch.bfloat16,
    reduce_dtype=torch.float32,
)


class NativeBackend:
    """One rank's share of a run; see ``Backend``."""

    name = "native"
    tracing_only = False

    def __init__(
        self,
        config: TrainConfig,
        device: Device,
        network: Network,
        *,
        peak_flops: float | None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config, self._network = config, network
        self._device = torch.device("cpu" if device.kind is DeviceKind.CPU else "neuron")
        # TorchNeuron does not tell when it compiles, which it does in the first steps.
        self._heartbeat = DeviceHeartbeat(report, is_compiling=lambda: False)
        self._has_evaluated = False
        # bf16 arithmetic on CPUs without AMX is 75 times slower than fp32.
        self._mixed = device.kind is not DeviceKind.CPU and config.mixed
        self.rank, self.num_ranks = device.rank, device.num_ranks
        self.peak_flops = peak_flops
        plan = config.plan
        self._degree, self._parts = plan.tensor_parallel, plan.data_parallel
        # Neighbours share a model, so that its collectives stay within a node.
        self.data_rank = self.rank // self._degree
        self._loss: torch.Tensor | None = None
        self._mesh: DeviceMesh | None = None
        if self.num_ranks > 1:
            self._mesh = init_device_mesh(
                self._device.type, (self._parts, self._degree), mesh_dim_names=("data", "tensor")
            )

    def build(self) -> None:
        """Create the sharded model with its initial weights, and the optimizer."""
        if self._device.type == "cpu":
            _keep_freed_memory()
        with self._waiting():
            self._build()

    def _waiting(self, *, is_first: bool = False) -> AbstractContextManager[None]:
        """Report during a call in which the device may compile; a CPU does not."""
        if self._device.type == "cpu":
            return nullcontext()
        return self._heartbeat.waiting(is_first=is_first)

    def _evaluating(self) -> AbstractContextManager[None]:
        is_first, self._has_evaluated = not self._has_evaluated, True
        return self._waiting(is_first=is_first)

    def _build(self) -> None:
        network = self._network
        model = network.build(self._part("tensor") if self._degree > 1 else None)
        model.to_empty(device=self._device)
        network.restore(model, self._device)
        for name, parameter in model.named_parameters():
            _fill(parameter, name, network.initial_part)
        if self._device.type == "neuron" and self._degree == 1:
            # Eager operators cost 55 to 65 us each. Equal layers share a graph; one for the whole
            # model would be broken by FSDP2. Guards on DTensors copy their mesh, which fails on
            # its process group (torch 2.13), so split layers stay eager.
            for layer in network.layers(model):
                layer.compile(backend="neuron", dynamic=False, fullgraph=True)
        if self._shards:
            self._shard(model)
        self._model: nn.Module = model
        self._optimizer = eager_optimizer(trained(model).items(), self._config)

    @property
    def _shards(self) -> bool:
        return self._parts > 1 or self._mixed

    def _shard(self, model: nn.Module) -> None:
        """Shard optimizer state, gradients and master weights over data ranks (ZeRO-2)."""
        policy = _PRECISION if self._mixed else MixedPrecisionPolicy()
        mesh = self._part("data")
        for layer in self._network.layers(model):
            # Weights stay gathered from forward to backward: one all-gather a step, as in ZeRO-1.
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)

    def _part(self, name: str) -> DeviceMesh:
        if self._mesh is None:
            self._mesh = init_device_mesh(
                self._device.type, (1, 1), mesh_dim_names=("data", "tensor")
            )
        return self._mesh[name]

    def seed(self, number: int) -> None:
        """Seed the randomness of the next micro-batch with ``number``."""
        torch.manual_seed(number)

    def forward_backward(self, tokens: Batch, *, is_last: bool) -> torch.Tensor:
        """Add the gradients of one micro-batch; returns the step's loss so far."""
        if self._shards:
            sharded = cast(FSDPModule, self._model)
            sharded.set_requires_gradient_sync(is_last)
            # Otherwise every micro-batch would gather the same weights again.
            sharded.set_reshard_after_backward(is_last)
        with self._waiting(), self._loss_context():
            placed = place(tokens, self._device)
            loss = self._network.loss(self._model, placed)
            loss = loss / self._config.plan.accumulation_steps
            loss.backward()  # type: ignore[no-untyped-call]
        part = _local(loss.detach())
        self._loss = part if self._loss is None else self._loss + part
        return self._loss

    def _loss_context(self) -> AbstractContextManager[None]:
        # No rank ever holds the logits of the whole vocabulary.
        return loss_parallel() if self._degree > 1 else nullcontext()

    def clip_and_step(self, learning_rate: float) -> torch.Tensor:
        """Clip, update the weights and drop the gradients; returns the norm before clipping."""
        with self._waiting():
            norm = clip(trained(self._model).values(), self._config.max_grad_norm)
            self._optimizer.step(learning_rate)
        self._heartbeat.step_made()
        self._loss = None
        return norm

    def drop_step(self) -> None:
        """Discard the micro-batches of a step that will not be finished."""
        # The gradients so far stay until the process ends; they are not saved.
        self._reshard()

    def _reshard(self) -> None:
        """Reduce weights that a forward pass has gathered to the ranks' own parts.

        Checkpoints are made of these parts.
        """
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @torch.no_grad()
    def losses_of(self, tokens: Batch) -> torch.Tensor:
        """Compute the mean loss of each sequence of a micro-batch, without gradients."""
        with self._evaluating(), self._loss_context():
            placed = place(tokens, self._device)
            losses = cast(SequenceNetwork, self._network).losses(self._model, placed)
        # There is no backward pass to do it.
        self._reshard()
        return _local(losses)

    @torch.no_grad()
    def evaluate(self, batch: Batch, score: Score) -> float:
        """Sum ``score`` over data-parallel ranks, fetched to the host; the same on every rank."""
        self._model.eval()
        with self._evaluating():
            found = score(self._model, place(batch, self._device))
        self._model.train()
        return self.mean_over_data(found) * self._parts

    def mean_over_data(self, loss: torch.Tensor) -> float:
        """Average over data-parallel ranks, fetched to the host; the same on every rank."""
        if self._parts > 1:
            loss = loss.clone()
            dist.all_reduce(loss, group=self._part("data").get_group())
            loss /= self._parts
        return self.fetch(loss)

    def fetch(self, scalar: torch.Tensor) -> float:
        """Fetch a device scalar as a number."""
        with self._waiting():
            return float(scalar.item())

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.num_ranks > 1:
            nothing = torch.zeros((), device=self._device)
            dist.all_reduce(nothing)
            nothing.item()

    def state_dict(self) -> dict[str, Any]:
        """Master weights and moments by parameter name, sharded as on this rank."""
        return checkpoint_state(dict(trained(self._model)), self._optimizer)

    def save(
        self, checkpoints: Checkpoints, step: int, meta: dict[str, Any], *, asynchronous: bool
    ) -> None:
        """Write a checkpoint with master weights and optimizer state."""
        checkpoints.save(self.state_dict(), step, meta, asynchronous=asynchronous)

    def load(self, checkpoints: Checkpoints, info: CheckpointInfo) -> CheckpointInfo:
        """Load weights and optimizer state from a checkpoint, whatever topology wrote it."""
        loaded = checkpoints.load(self.state_dict(), info)
        self._optimizer.restore_step(loaded.step)
        return loaded


@torch.no_grad()
def _fill(
    parameter: torch.Tensor, name: str, initial: Callable[[WeightPart], torch.Tensor]
) -> None:
    """Set a parameter, as tensor parallelism has split it, to its initial value."""
    size = parameter.size()
    if not isinstance(parameter, DTensor):
        parameter.copy_(initial(WeightPart(name, size, size, (0,) * len(size))))
        return
    for chunk in parameter.__create_chunk_list__():  # type: ignore[no-untyped-call]
        part = WeightPart(name, size, chunk.sizes, tuple(chunk.offsets))
        parameter.to_local().copy_(initial(part))


def _local(loss: torch.Tensor) -> torch.Tensor:
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


def _keep_freed_memory() -> None:
    """Make glibc, if it is the C library, reuse freed memory instead of returning it.

    Otherwise blocks above 32 MiB, such as logits, are mapped anew and cleared by the kernel in
    every step: half of a step on CPUs (mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD).
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
