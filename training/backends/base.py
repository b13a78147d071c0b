"""Protocols: what the training loop asks of a back-end, and a back-end of a model.

``native`` is plain torch.distributed (gloo on CPUs, TorchNeuron on Trainium2 and later), ``nxd``
is torch_xla with neuronx_distributed, and ``xla`` torch_xla alone, for models that need no tensor
parallelism. Each runs the same models, with the same tensor-parallel plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints

Batch = torch.Tensor | Mapping[str, torch.Tensor]
"""One micro-batch, as the workload's data gives it."""


class Network(Protocol):
    """A model whose weights a back-end makes, places, splits and trains."""

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """The model without storage, on the meta device, ready to train.

        Split by tensor parallelism over ``mesh``, where there is one.
        """

    def initial_weight(self, name: str, size: torch.Size) -> torch.Tensor:
        """The whole of one parameter as training begins, fp32 on the host."""

    def restore(self, model: nn.Module, device: torch.device) -> None:
        """Make again what the move from the meta device has lost: ties, and buffers."""

    def layers(self, model: nn.Module) -> Iterable[nn.Module]:
        """The modules that are gathered one by one."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Mean loss of a micro-batch that is on the model's device."""


class SequenceNetwork(Network, Protocol):
    """A model whose loss is a mean over sequences, and that several ranks can share."""

    def losses(self, model: Any, batch: Any) -> torch.Tensor:
        """Mean loss of each sequence of a micro-batch, ``[micro_batch]``."""

    def for_nxd(self) -> NxdNetwork:
        """The same model in neuronx_distributed's modules."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """The part of one weight that a rank computes with."""

    name: str
    """Its name in the whole model."""
    whole: torch.Size
    size: torch.Size
    offsets: tuple[int, ...]
    """Its beginning in the whole."""


class NxdNetwork(Protocol):
    """A rank's part of a model, made of neuronx_distributed's parallel modules."""

    def model(self) -> nn.Module:
        """The model on the meta device: what NxD calls ``model_fn``."""

    def fill(self, module: nn.Module, device: torch.device) -> None:
        """Give a module's own parameters their values: what NxD calls ``param_init_fn``."""

    def pieces(self) -> dict[torch.Tensor, WeightPart]:
        """This rank's part of every parameter of the model, as it is now."""

    def inputs(self, batch: Batch) -> tuple[dict[str, Any], torch.Tensor]:
        """Keyword arguments of the model and its labels, of a micro-batch on its device."""


Score = Callable[[Any, Any], torch.Tensor]
"""A number to sum up in an evaluation, from a model and a batch on its device."""


def place(batch: Batch, device: torch.device) -> Any:
    """Copy a micro-batch to the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    return {name: tensor.to(device) for name, tensor in batch.items()}


class Backend(Protocol):
    """One rank's share of the model, its optimizer and the collectives between the ranks.

    Every rank calls every method in the same order. Scalars stay on the device until they are
    fetched, so that a step that is not logged waits for nothing.
    """

    name: str
    """``native``, ``nxd`` or ``xla``."""
    rank: int
    num_ranks: int
    data_rank: int
    """Number of the data-parallel share this rank computes; the ranks of one model share it."""
    tracing_only: bool
    """Graphs are extracted and nothing is computed: numbers mean nothing, and none are written."""
    peak_flops: float | None
    """Dense bf16 operations of one rank per second; None where no peak is published (CPUs)."""

    def build(self) -> None:
        """Make the sharded model with its initial weights, and the optimizer."""

    def forward_backward(self, tokens: Any, *, is_last: bool) -> torch.Tensor:
        """Add the gradients of one micro-batch; returns the step's loss so far.

        ``tokens`` is what the workload's data gives, on the host: for a Llama int64
        ``[micro_batch, seq_len + 1]``, of which token i predicts i + 1. After the last micro-batch
        it is this data rank's mean loss. Gradients are reduced over data-parallel ranks only when
        ``is_last``.
        """

    def clip_and_step(self, learning_rate: float) -> torch.Tensor:
        """Clip, update the weights and drop the gradients; returns the norm before clipping.

        It and the last loss may be fetched while the next step is being made.
        """

    def drop_step(self) -> None:
        """Forget the micro-batches of a step that will not be finished.

        Weights and optimizer state are those of the last whole step, to be saved; after that
        nothing more is trained.
        """

    def mean_over_data(self, loss: torch.Tensor) -> float:
        """Average over data-parallel ranks, fetched; the same on every rank."""

    def fetch(self, scalar: torch.Tensor) -> float:
        """A device scalar as a number."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def save(
        self, checkpoints: Checkpoints, step: int, meta: dict[str, Any], *, asynchronous: bool
    ) -> None:
        """Write a checkpoint with master weights and optimizer state.

        Returns when training may change the weights again; ``checkpoints.wait()`` when the upload
        is complete.
        """

    def load(self, checkpoints: Checkpoints, info: CheckpointInfo) -> CheckpointInfo:
        """Replace weights and optimizer state by a checkpoint's; returns the one they now hold.

        That is an earlier one where ``info`` is damaged; whatever topology wrote it.
        """


class DataParallel(Backend, Protocol):
    """A back-end on which every rank holds the whole model while it computes."""

    def seed(self, number: int) -> None:
        """Make what is random in the next micro-batch a function of ``number``."""

    def evaluate(self, batch: Any, score: Score) -> float:
        """Sum over data-parallel ranks of ``score``, fetched; the same on every rank.

        ``score`` is given the model and the batch on its device; gradients are not computed.
        """


class ModelParallel(Backend, Protocol):
    """A back-end that may split a model of sequences over several ranks."""

    def losses_of(self, tokens: Any) -> torch.Tensor:
        """Mean loss of each sequence of a micro-batch, ``[micro_batch]``, on the device.

        ``tokens`` are this data rank's, as ``forward_backward`` takes them. No gradients are
        computed, and those of a step that has begun stay as they are.
        """
