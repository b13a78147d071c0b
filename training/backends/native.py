"""Plain torch.distributed: DTensor tensor parallelism, FSDP2 over data-parallel ranks.

The same code runs on CPUs with gloo and on TorchNeuron's device ``neuron``.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from training.backends.base import (
    Batch,
    Network,
    Score,
    SequenceNetwork,
    WeightPart,
    place,
    trainable_parameters,
)
from training.backends.heartbeat import DeviceHeartbeat
from training.backends.optimizers import checkpoint_state, clip, eager_optimizer
from training.core.compilers import node_is_compiling
from training.core.contract import DeviceKind
from training.core.failures import ExplainedError

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints
    from training.core.config import TrainConfig
    from training.core.device import Device

log = logging.getLogger(__name__)

_PRECISION = MixedPrecisionPolicy(
    # fp32 parameters are the master weights; gradients are summed in fp32.
    param_dtype=torch.bfloat16,
    reduce_dtype=torch.float32,
)

FALLBACK_FUNCTIONS = ("clear_op_tracking", "get_fallback_ops")
"""Functions of ``torch_neuronx`` that reset and list the operators that ran on the CPU.

Known from a public copy of its source of April 2026, half a year before the release
(github.com/parmoham-aws/test-repo-parmoham, 98154b8).
"""


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
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config, self._network = config, network
        self._device = torch.device("cpu" if device.kind is DeviceKind.CPU else "neuron")
        # Ranks share compiled graphs, so this one may wait for another one's compiler.
        self._heartbeat = DeviceHeartbeat(report, is_compiling=node_is_compiling)
        self._has_evaluated = False
        self._checks_fallback = self._device.type == "neuron"
        # bf16 arithmetic on CPUs without AMX is 75 times slower than fp32.
        self._mixed = device.kind is not DeviceKind.CPU and config.mixed
        self.rank, self.num_ranks = device.rank, device.num_ranks
        plan = config.plan
        self._tensor_parallel, self._data_parallel = plan.tensor_parallel, plan.data_parallel
        # Adjacent ranks share a model, to keep its collectives within a node.
        self.data_rank = self.rank // self._tensor_parallel
        self._loss: torch.Tensor | None = None
        self._mesh: DeviceMesh | None = None
        if self.num_ranks > 1:
            self._mesh = init_device_mesh(
                self._device.type,
                (self._data_parallel, self._tensor_parallel),
                mesh_dim_names=("data", "tensor"),
            )

    def build(self) -> None:
        """Create the sharded model with its initial weights, and the optimizer."""
        if self._device.type == "cpu":
            _keep_freed_memory()
        with self._waiting():
            self._build()

    def _waiting(self, *, is_first: bool = False) -> AbstractContextManager[None]:
        """Send heartbeats during a call in which the device may compile; a CPU never compiles."""
        if self._device.type == "cpu":
            return nullcontext()
        return self._heartbeat.waiting(is_first=is_first)

    def _evaluating(self) -> AbstractContextManager[None]:
        is_first, self._has_evaluated = not self._has_evaluated, True
        return self._waiting(is_first=is_first)

    def _build(self) -> None:
        network = self._network
        model = network.build(self._submesh("tensor") if self._tensor_parallel > 1 else None)
        if self._device.type == "neuron":
            compile_layers(network.layers(model), "neuron")
        if self._uses_fsdp:
            # While it has no storage: a rank's memory may hold its shards but not the whole model.
            self._shard(model)
        model.to_empty(device=self._device)
        network.restore(model, self._device)
        for name, parameter in model.named_parameters():
            _fill(parameter, name, network.initial_part)
        self._model: nn.Module = model
        self._optimizer = eager_optimizer(trainable_parameters(model).items(), self._config)
        if self._device.type == "neuron":
            import torch_neuronx

            # An update launched before its moments exist can fail ("Tensor not bound",
            # github.com/hokindeng/object-permanence, pwm).
            torch.get_device_module(self._device).synchronize()
            missing = [name for name in FALLBACK_FUNCTIONS if not hasattr(torch_neuronx, name)]
            if not missing:
                # Fallbacks during initialization do not matter.
                torch_neuronx.clear_op_tracking()
                return
            self._checks_fallback = False
            if self.rank == 0:
                log.info(
                    "training: TorchNeuron %s has no %s: operators that it runs on the CPU are not "
                    "reported",
                    torch_neuronx.__version__,
                    " and no ".join(missing),
                )

    @property
    def _uses_fsdp(self) -> bool:
        # Even without data parallelism, FSDP2 is needed to sum the gradients of norm layers
        # over the ranks that share a model.
        return self.num_ranks > 1 or self._mixed

    def _shard(self, model: nn.Module) -> None:
        """Shard optimizer state, gradients and master weights by data rank (ZeRO-2 or ZeRO-3)."""
        policy = _PRECISION if self._mixed else MixedPrecisionPolicy()
        mesh = self._submesh("data")
        # By default weights stay gathered between forward and backward: one all-gather per step, as
        # in ZeRO-1.
        reshard = self._config.plan.reshard_after_forward
        for layer in self._network.layers(model):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)

    def _submesh(self, name: str) -> DeviceMesh:
        if self._mesh is None:
            self._mesh = init_device_mesh(
                self._device.type, (1, 1), mesh_dim_names=("data", "tensor")
            )
        return self._mesh[name]

    def seed(self, number: int) -> None:
        """Seed the random number generator for the next micro-batch with ``number``."""
        torch.manual_seed(number)

    def forward_backward(self, tokens: Batch, *, is_last: bool) -> torch.Tensor:
        """Accumulate the gradients of one micro-batch; return the step's loss so far."""
        if self._uses_fsdp:
            sharded = cast(FSDPModule, self._model)
            sharded.set_requires_gradient_sync(is_last)
            # Otherwise every micro-batch would gather the same weights again. With
            # reshard-after-forward layers do, or the rank would hold them all after the first.
            layers_too = not self._config.plan.reshard_after_forward
            sharded.set_reshard_after_backward(is_last, recurse=layers_too)
        with self._waiting():
            placed = place(tokens, self._device)
            loss = self._network.loss(self._model, placed)
            loss = loss / self._config.plan.accumulation_steps
            loss.backward()  # type: ignore[no-untyped-call]
        part = loss.detach()
        self._loss = part if self._loss is None else self._loss + part
        return self._loss

    def clip_and_step(self, learning_rate: float) -> torch.Tensor:
        """Clip, update the weights and reset the gradients; return the norm before clipping."""
        with self._waiting():
            norm = clip(trainable_parameters(self._model).values(), self._config.max_grad_norm)
            self._optimizer.step(learning_rate)
            if self._checks_fallback:
                self._checks_fallback = False
                self._check_fallback()
        self._heartbeat.step_made()
        self._loss = None
        return norm

    def _check_fallback(self) -> None:
        """Report the first step's CPU fallbacks; fail the job unless they are allowed.

        TorchNeuron silently falls back to the CPU for every operator without a kernel.
        """
        import torch_neuronx

        torch.get_device_module(self._device).synchronize()
        names = sorted(set(torch_neuronx.get_fallback_ops()))
        if not names:
            return
        message = (
            f"TorchNeuron {torch_neuronx.__version__} has no kernel for {', '.join(names)}, which "
            "the first step ran on the CPU"
        )
        if not self._config.cpu_fallback:
            raise ExplainedError(f"{message}; change the model, or allow it with --cpu-fallback")
        if self.rank == 0:
            log.info("training: %s", message)

    def drop_step(self) -> None:
        """Discard the micro-batches of a step that will not be finished."""
        # The gradients so far stay until the process ends; they are not saved.
        self._reshard()

    def _reshard(self) -> None:
        """Reshard weights that a forward pass has gathered.

        Checkpoints consist of the shards.
        """
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @torch.no_grad()
    def losses_of(self, tokens: Batch) -> torch.Tensor:
        """Compute the mean loss of each sequence of a micro-batch, without gradients."""
        with self._evaluating():
            placed = place(tokens, self._device)
            losses = cast(SequenceNetwork, self._network).losses(self._model, placed)
        # Normally the backward pass reshards.
        self._reshard()
        return losses

    @torch.no_grad()
    def evaluate(self, batch: Batch, score: Score) -> float:
        """Sum ``score`` over data-parallel ranks and fetch to the host; the same on every rank."""
        self._model.eval()
        with self._evaluating():
            total = score(self._model, place(batch, self._device))
        self._model.train()
        return self.mean_over_data(total) * self._data_parallel

    def mean_over_data(self, loss: torch.Tensor) -> float:
        """Average over data-parallel ranks and fetch to the host; the same on every rank."""
        if self._data_parallel > 1:
            loss = loss.clone()
            dist.all_reduce(loss, group=self._submesh("data").get_group())
            loss /= self._data_parallel
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
        """Return master weights and moments by parameter name, sharded as on this rank."""
        return checkpoint_state(dict(trainable_parameters(self._model)), self._optimizer)

    def save(
        self, checkpoints: Checkpoints, step: int, meta: dict[str, Any], *, asynchronous: bool
    ) -> None:
        """Write a checkpoint with master weights and optimizer state."""
        checkpoints.save(self.state_dict(), step, meta, asynchronous=asynchronous)

    def load(self, checkpoints: Checkpoints, info: CheckpointInfo) -> CheckpointInfo:
        """Load weights and optimizer state from a checkpoint of any topology."""
        loaded = checkpoints.load(self.state_dict(), info)
        self._optimizer.restore_step(loaded.step)
        return loaded


def compile_layers(layers: Iterable[nn.Module], backend: str) -> None:
    """Compile layers in place, including their recomputation, without saving RNG states."""
    from torch._functorch import partitioners

    # torch.compile would save RNG states for recomputed attention, which counts as random
    # because of its dropout, regardless of ``preserve_rng_state`` (2.13,
    # ``TagActivationCheckpoint``). With tensor parallelism it confuses such a state with the mesh
    # saved alongside it: "expected all tensors_saved_with_vc_check to be Tensors". TorchNeuron's
    # public copy of April 2026 is unaffected, because it decomposes attention first
    # (neuron_dynamo_backend/decompositions.py).
    partitioners.functionalize_rng_ops = lambda joint, forward, backward, *_: (forward, backward)
    # Compiled, because eager operators cost 55 to 65 us each. Layer by layer, because identical
    # layers share a graph, and FSDP2 would break up a graph of the whole model.
    for layer in layers:
        layer.compile(backend=backend, dynamic=False, fullgraph=True)


@torch.no_grad()
def _fill(
    parameter: torch.Tensor, name: str, initial: Callable[[WeightPart], torch.Tensor]
) -> None:
    """Set this rank's part of a parameter to its initial value."""
    size = parameter.size()
    if not isinstance(parameter, DTensor):
        parameter.copy_(initial(WeightPart.entire(name, size)))
        return
    for chunk in parameter.__create_chunk_list__():  # type: ignore[no-untyped-call]
        part = WeightPart(name, size, chunk.sizes, tuple(chunk.offsets))
        parameter.to_local().copy_(initial(part))


# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


def _keep_freed_memory() -> None:
    """Make glibc, if present, reuse freed memory instead of returning it to the kernel.

    Otherwise the kernel maps and clears blocks above 32 MiB, such as logits, in every step, which
    takes half of a step on CPUs (mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD).
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
