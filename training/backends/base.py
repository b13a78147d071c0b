"""Protocols between the training loop and a back-end, and between a back-end and a model.

``native`` is plain torch.distributed (gloo on CPUs, TorchNeuron on Trainium2 and later), ``nxd`` is
torch_xla with neuronx_distributed, and ``xla`` is torch_xla alone, for models without tensor
parallelism. All run the same models with the same tensor-parallel plan.
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
"""One micro-batch, as provided by the workload's data."""


WEIGHTS = "weights"
"""Key of a micro-batch whose tokens do not all count the same, fp32 ``[micro_batch, seq_len]``.

Their mean over all sequences of a step is 1, so every mean of losses is one of weighted losses.
"""


def weighted(losses: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Weigh the tokens' losses, ``[micro_batch, seq_len]``, where the micro-batch says how."""
    if isinstance(batch, torch.Tensor) or WEIGHTS not in batch:
        return losses
    return losses * batch[WEIGHTS]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Collect the parameters that are trained, by name; the others are given and stay."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class Network(Protocol):
    """A model whose weights a back-end creates, places, splits and trains."""

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """Build the model on the meta device, without storage, ready to train.

        Split by tensor parallelism over ``mesh``, if there is one.
        """

    def initial_weight(self, name: str, size: torch.Size) -> torch.Tensor:
        """Make the initial value of one whole parameter, fp32 on the host."""

    def initial_part(self, part: WeightPart) -> torch.Tensor:
        """Make, or read, the initial value of a part of a parameter, fp32 on the host."""

    def restore(self, model: nn.Module, device: torch.device) -> None:
        """Restore what was lost in the move from the meta device: ties and buffers."""

    def layers(self, model: nn.Module) -> Iterable[nn.Module]:
        """List the modules that are gathered one by one."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Compute the mean loss of a micro-batch on the model's device."""


class SequenceNetwork(Network, Protocol):
    """A model that several ranks can share, whose loss is a mean over sequences."""

    def losses(self, model: Any, batch: Any) -> torch.Tensor:
        """Compute the mean loss of each sequence of a micro-batch, ``[micro_batch]``."""

    def for_nxd(self) -> NxdNetwork:
        """Return the same model built of neuronx_distributed's modules."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """The part of a weight that a rank computes with."""

    name: str
    """Name of the weight in the whole model."""
    whole: torch.Size
    size: torch.Size
    offsets: tuple[int, ...]
    """Offset of the part in the whole weight."""

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Select the part of the whole weight."""
        assert whole.size() == self.whole, (whole.size(), self.whole)
        return whole[tuple(slice(o, o + n) for o, n in zip(self.offsets, self.size, strict=True))]


class NxdNetwork(Protocol):
    """A rank's part of a model, built of neuronx_distributed's parallel modules."""

    def describe(self) -> str:
        """Tell how the model is divided, for the log."""

    @property
    def recomputed(self) -> Any:
        """NxD's ``activation_checkpoint_config``: what the backward pass computes again."""

    def model(self) -> nn.Module:
        """Build the model on the meta device: NxD's ``model_fn``."""

    def fill(self, module: nn.Module, device: torch.device) -> None:
        """Initialize a module's own parameters: NxD's ``param_init_fn``."""

    def pieces(self) -> dict[torch.Tensor, tuple[WeightPart, ...]]:
        """Map the model's current parameters that are trained to this rank's parts.

        From top to bottom: a fused parameter holds parts of several weights of the whole model.
        """

    def inputs(self, batch: Batch) -> tuple[dict[str, Any], torch.Tensor]:
        """Turn a micro-batch on the device into the model's keyword arguments and labels."""

    @property
    def divides_sequences(self) -> bool:
        """Tell whether norms see parts of the sequences.

        Gradients of their weights, which are marked for NxD, are then still to be summed over the
        ranks of a model, and logits and labels are ``[sequence, batch]``, not the other way.
        """


Score = Callable[[Any, Any], torch.Tensor]
"""Computes a number to sum over an evaluation, from a model and a batch on its device."""


def place(batch: Batch, device: torch.device) -> Any:
    """Copy a micro-batch to the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    return {name: tensor.to(device) for name, tensor in batch.items()}


class Backend(Protocol):
    """One rank's share of the model, its optimizer, and the collectives between ranks.

    Every rank calls every method in the same order. Scalars stay on the device until fetched, so
    that a step that is not logged waits for nothing.
    """

    name: str
    """``native``, ``nxd`` or ``xla``."""
    rank: int
    num_ranks: int
    data_rank: int
    """Index of this rank's data-parallel share; ranks that share a model have the same."""
    tracing_only: bool
    """True if graphs are only extracted: nothing is computed, and no numbers are written."""
    peak_flops: float | None
    """Dense bf16 operations per second of one rank; None if no peak is published (CPUs)."""

    def build(self) -> None:
        """Create the sharded model with its initial weights, and the optimizer."""

    def forward_backward(self, tokens: Any, *, is_last: bool) -> torch.Tensor:
        """Add the gradients of one micro-batch; returns the step's loss so far.

        ``tokens`` comes from the workload's data and is on the host: for a Llama int64
        ``[micro_batch, seq_len + 1]``, where token i predicts token i + 1. After the last
        micro-batch the result is this data rank's mean loss. Gradients are reduced over
        data-parallel ranks only if ``is_last``.
        """

    def clip_and_step(self, learning_rate: float) -> torch.Tensor:
        """Clip, update the weights and drop the gradients; returns the norm before clipping.

        The norm and the last loss may be fetched while the next step is in progress.
        """

    def drop_step(self) -> None:
        """Discard the micro-batches of a step that will not be finished.

        Leaves weights and optimizer state of the last whole step, to be saved; nothing more is
        trained after that.
        """

    def mean_over_data(self, loss: torch.Tensor) -> float:
        """Average over data-parallel ranks, fetched to the host; the same on every rank."""

    def fetch(self, scalar: torch.Tensor) -> float:
        """Fetch a device scalar as a number."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def save(
        self, checkpoints: Checkpoints, step: int, meta: dict[str, Any], *, asynchronous: bool
    ) -> None:
        """Write a checkpoint with master weights and optimizer state.

        Returns when training may change the weights again; ``checkpoints.wait()`` waits for the
        upload.
        """

    def load(self, checkpoints: Checkpoints, info: CheckpointInfo) -> CheckpointInfo:
        """Load weights and optimizer state from a checkpoint; returns the one loaded.

        This is an earlier one if ``info`` is damaged. Any topology may have written it.
        """


class DataParallel(Backend, Protocol):
    """A back-end on which every rank computes with the whole model."""

    def seed(self, number: int) -> None:
        """Seed the randomness of the next micro-batch with ``number``."""

    def evaluate(self, batch: Any, score: Score) -> float:
        """Sum ``score`` over data-parallel ranks, fetched to the host; the same on every rank.

        ``score`` receives the model and the batch on its device; no gradients are computed.
        """


class ModelParallel(Backend, Protocol):
    """A back-end that may split a sequence model over several ranks."""

    def losses_of(self, tokens: Any) -> torch.Tensor:
        """Compute the mean loss of each sequence, ``[micro_batch]``, on the device.

        ``tokens`` are this data rank's, as for ``forward_backward``. Computes no gradients and
        leaves those of a step in progress as they are.
        """
