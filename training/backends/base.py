"""Protocols of backends (used by the training loop) and of models (used by backends).

``native`` is plain torch.distributed (gloo on CPUs, TorchNeuron on Trainium2 and later), ``nxd`` is
torch_xla with neuronx_distributed, and ``xla`` is torch_xla alone, for models without tensor
parallelism. ``native`` and ``nxd`` run the same models with the same tensor-parallel plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints

Batch = torch.Tensor | Mapping[str, torch.Tensor]
"""One micro-batch, as provided by the workload's data."""


WEIGHTS = "weights"
"""Key of the per-token loss weights in a micro-batch, fp32 ``[micro_batch, seq_len]``.

Their mean over all sequences of a step is 1, so the mean of weighted losses is a weighted mean.
"""


def weight_losses(losses: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Apply the micro-batch's loss weights, if any, to ``losses``, ``[micro_batch, seq_len]``."""
    if isinstance(batch, torch.Tensor) or WEIGHTS not in batch:
        return losses
    return losses * batch[WEIGHTS]


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are not frozen, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class Network(Protocol):
    """A model whose weights a backend creates, places, splits and trains."""

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """Build the model on the meta device, ready to train.

        If there is a ``mesh``, the model is split over it by tensor parallelism.
        """

    def initial_part(self, part: WeightPart) -> torch.Tensor:
        """Create or read the initial value of part of a parameter, fp32 on the host."""

    def restore(self, model: nn.Module, device: torch.device) -> None:
        """Restore tied weights and buffers, which are lost on the move from the meta device."""

    def layers(self, model: nn.Module) -> Iterable[nn.Module]:
        """List the modules whose weights are gathered one at a time."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Compute the mean loss of a micro-batch on the model's device."""


@runtime_checkable
class SequenceNetwork(Network, Protocol):
    """A model that several ranks can share, whose loss is a mean over sequences."""

    def losses(self, model: Any, batch: Any) -> torch.Tensor:
        """Compute the mean loss of each sequence of a micro-batch, ``[micro_batch]``."""

    def for_nxd(self) -> NxdNetwork:
        """Return the same model, built from neuronx_distributed's modules."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """The part of a weight that a rank computes with."""

    name: str
    """Name of the weight in the whole model."""
    whole: torch.Size
    size: torch.Size
    offsets: tuple[int, ...]
    """Offset of the part in the whole weight."""

    @staticmethod
    def entire(name: str, size: torch.Size) -> WeightPart:
        """Return the part that is the whole weight."""
        return WeightPart(name, size, size, (0,) * len(size))

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Select this part from the whole weight."""
        assert whole.size() == self.whole, (whole.size(), self.whole)
        return whole[tuple(slice(o, o + n) for o, n in zip(self.offsets, self.size, strict=True))]


class NxdNetwork(Protocol):
    """A rank's part of a model, built from neuronx_distributed's parallel modules."""

    def describe(self) -> str:
        """Describe how the model is sharded, for the log."""

    @property
    def recomputed(self) -> Any:
        """NxD's ``activation_checkpoint_config``: the modules that the backward pass recomputes."""

    def model(self) -> nn.Module:
        """Build the model on the meta device: NxD's ``model_fn``."""

    def fill(self, module: nn.Module, device: torch.device) -> None:
        """Initialize a module's own parameters: NxD's ``param_init_fn``."""

    def pieces(self) -> dict[torch.Tensor, tuple[WeightPart, ...]]:
        """Map the model's trainable parameters to this rank's weight parts.

        The parts are ordered from top to bottom: a fused parameter holds parts of several weights.
        """

    def inputs(self, batch: Batch) -> tuple[dict[str, Any], torch.Tensor]:
        """Turn a micro-batch on the device into the model's keyword arguments and labels."""

    @property
    def sequence_parallel(self) -> bool:
        """True under sequence parallelism, where norm layers receive parts of the sequences.

        The gradients of the norm weights, which are marked for NxD, must then be summed over
        tensor-parallel ranks; logits and labels are ``[sequence, batch]`` instead of
        ``[batch, sequence]``.
        """


Score = Callable[[Any, Any], torch.Tensor]
"""Computes a value, summed over an evaluation, from a model and a batch on its device."""


def place(batch: Batch, device: torch.device) -> Any:
    """Copy a micro-batch to the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    return {name: tensor.to(device) for name, tensor in batch.items()}


class Backend(Protocol):
    """One rank's share of the model, its optimizer, and the collectives between ranks.

    Every rank calls every method in the same order. Scalars stay on the device until fetched, so a
    step that is not logged never blocks.
    """

    name: str
    """``native``, ``nxd`` or ``xla``."""
    rank: int
    num_ranks: int
    data_rank: int
    """This rank's index among data-parallel ranks; ranks that share a model have the same index."""
    tracing_only: bool
    """True if graphs are only extracted: nothing is computed, and no metrics are written."""

    def build(self) -> None:
        """Create the sharded model with its initial weights, and the optimizer."""

    def forward_backward(self, tokens: Any, *, is_last: bool) -> torch.Tensor:
        """Accumulate the gradients of one micro-batch; return the step's loss so far.

        ``tokens`` comes from the workload's data and is on the host: for Llama, int64
        ``[micro_batch, seq_len + 1]``, where token i predicts token i + 1. After the last
        micro-batch the result is this data-parallel rank's mean loss. Gradients are reduced over
        data-parallel ranks only if ``is_last``.
        """

    def clip_and_step(self, learning_rate: float) -> torch.Tensor:
        """Clip gradients, update weights and zero the gradients; return the norm before clipping.

        The norm and the last loss may be fetched while the next step is in progress.
        """

    def drop_step(self) -> None:
        """Discard the micro-batches of a step that will not be finished.

        Leaves the weights and optimizer state of the last complete step, to be saved; no training
        follows.
        """

    def mean_over_data(self, loss: torch.Tensor) -> float:
        """Average over data-parallel ranks and fetch to the host; the same on every rank."""

    def fetch(self, scalar: torch.Tensor) -> float:
        """Fetch a device scalar as a number."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def save(
        self, checkpoints: Checkpoints, step: int, meta: dict[str, Any], *, asynchronous: bool
    ) -> None:
        """Write a checkpoint with master weights and optimizer state.

        Returns as soon as training may change the weights; ``checkpoints.wait()`` waits for the
        upload.
        """

    def load(self, checkpoints: Checkpoints, info: CheckpointInfo) -> CheckpointInfo:
        """Load weights and optimizer state from a checkpoint; return the one loaded.

        Falls back to an earlier one if ``info`` is damaged. Works across topologies.
        """


class DataParallel(Backend, Protocol):
    """A backend on which every rank computes with the whole model."""

    def seed(self, number: int) -> None:
        """Seed the random number generator for the next micro-batch with ``number``."""

    def evaluate(self, batch: Any, score: Score) -> float:
        """Sum ``score`` over data-parallel ranks and fetch to the host; the same on every rank.

        ``score`` receives the model and the batch on its device; no gradients are computed.
        """


class ModelParallel(Backend, Protocol):
    """A backend that may split a sequence model over several ranks."""

    def losses_of(self, tokens: Any) -> torch.Tensor:
        """Compute each sequence's mean loss on the device, ``[micro_batch]``, without gradients.

        ``tokens`` are this data-parallel rank's, as for ``forward_backward``. Gradients of a step
        in progress are unchanged.
        """
