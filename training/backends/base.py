"""What the training loop asks of an accelerator: one protocol, three implementations.

``native`` is plain torch.distributed (gloo on CPUs, TorchNeuron on Trainium2 and later), ``nxd``
is torch_xla with neuronx_distributed, and ``xla`` torch_xla alone, for models that need no tensor
parallelism. Each runs the same models, with the same tensor-parallel plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints
    from training.models.network import Score


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
    """Which data-parallel share this rank computes; the ranks of one model share it."""
    tracing_only: bool
    """Graphs are extracted and nothing is computed: numbers mean nothing, and none are written."""
    peak_flops: float | None
    """Of one rank, dense bf16, per second; None where no peak is published (CPUs)."""

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

        Of this data rank's ``tokens``, as ``forward_backward`` takes them. No gradients are
        computed, and those of a step that has begun stay as they are.
        """
