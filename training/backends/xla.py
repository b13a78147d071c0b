"""torch_xla without neuronx_distributed: a full replica on every core, gradients all-reduced.

For models that need no tensor parallelism, on trn1 and trn1n; and what the backend with
neuronx_distributed does in the same way. Signatures: torch_xla 2.9, typings/torch_xla.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from training.backends.base import Batch, Network, Score, WeightPart, place
from training.backends.heartbeat import DeviceHeartbeat
from training.backends.optimizers import NamedOptimizer, checkpoint_state, traced_optimizer
from training.core.ranks import Ranks

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints
    from training.core.config import TrainConfig
    from training.core.device import Device

_BUCKET_MIB = 50
"""Bucket size of gradient reduction: torch_xla's default on Neuron for the same call (2.9,
_internal/neuron.py). AWS's guide to environment variables calls 512 faster for BERT on several
nodes, but NxD warns of NaN above 140 MB (trainer.py, P148368176)."""


class XlaRank:
    """What a rank does in the same way with and without neuronx_distributed; see ``Backend``."""

    _device: torch.device

    def __init__(
        self,
        config: TrainConfig,
        device: Device,
        *,
        ranks: Ranks,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config = config
        self.rank, self.num_ranks = device.rank, device.num_ranks
        # neuron_parallel_compile only extracts graphs from such a job; its numbers are invalid.
        self.tracing_only = config.compile_only
        self._heartbeat = DeviceHeartbeat(report)
        self._ranks = ranks

    def _end_graph(self) -> None:
        """Run what has been traced so far as one graph."""
        import torch_xla.core.xla_model as xm

        with self._heartbeat.waiting():
            xm.mark_step()

    def _zero(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float32, device=self._device)

    def drop_step(self) -> None:
        """Do nothing: gradients are not saved, and zeroing them would need another graph."""

    def fetch(self, scalar: torch.Tensor) -> float:
        """Fetch a device scalar as a number, waiting for the device."""
        with self._heartbeat.waiting():
            return float(scalar.cpu().item())

    def barrier(self) -> None:
        """Wait for every rank."""
        self._ranks.gather(None)


class XlaBackend(XlaRank):
    """One rank's share of a run; see ``Backend``.

    With mixed precision the device holds bf16 weights and fp32 master weights, gradients and
    moments: 18 bytes per parameter, 6 of a core's 16 GB for BERT-large.
    """

    name = "xla"

    def __init__(
        self,
        config: TrainConfig,
        device: Device,
        network: Network,
        *,
        ranks: Ranks,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(config, device, ranks=ranks, report=report)
        self._network, self.data_rank = network, device.rank

    def build(self) -> None:
        """Create the model with its initial weights, and the optimizer."""
        import torch_xla.core.xla_model as xm

        self._device = xm.xla_device()
        model = self._network.build(None)
        if self._config.mixed:
            model.to(torch.bfloat16)
        model.to_empty(device=self._device)
        # Tied only after the move to the device, which would have copied each tied parameter.
        self._network.restore(model, self._device)
        self._model = model
        self._weights = dict(model.named_parameters())
        self._masters: dict[str, nn.Parameter] = {}
        for name, weight in self._weights.items():
            whole = self._network.initial_part(WeightPart.entire(name, weight.size()))
            self._masters[name] = nn.Parameter(whole.to(self._device))
            # Never None, so all micro-batches share one graph.
            self._masters[name].grad = torch.zeros_like(self._masters[name])
        self._optimizer = traced_optimizer(self._masters.items(), self._config)
        self._loss = self._zero()
        self._end_graph()
        self._publish_in_separate_graph()

    @torch.no_grad()
    def _publish(self) -> None:
        """Copy master weights to the model's weights."""
        for name, weight in self._weights.items():
            weight.copy_(self._masters[name])

    def _publish_in_separate_graph(self) -> None:
        """Publish in a separate graph, for new and resumed runs alike.

        If it were left pending, the copy would become part of the first micro-batch's graph, but
        only in resumed jobs, and that graph is never compiled ahead of time.
        """
        self._publish()
        self._end_graph()

    def seed(self, number: int) -> None:
        """Seed the random number generator for the next micro-batch with ``number``."""
        import torch_xla.core.xla_model as xm

        # Device data, not a constant of the graph (torch_xla, csrc/xla_graph_executor.cpp).
        xm.set_rng_state(number)

    def forward_backward(self, tokens: Batch, *, is_last: bool) -> torch.Tensor:
        """Accumulate the gradients of one micro-batch; return the step's loss so far."""
        loss = self._network.loss(self._model, place(tokens, self._device))
        loss = loss / self._config.plan.accumulation_steps
        loss.backward()  # type: ignore[no-untyped-call]
        for name, weight in self._weights.items():
            gradient = self._masters[name].grad
            assert gradient is not None and weight.grad is not None
            gradient += weight.grad
            weight.grad = None
        self._loss += loss.detach()
        self._end_graph()
        return self._loss

    def clip_and_step(self, learning_rate: float) -> torch.Tensor:
        """Reduce and clip gradients, update weights; return the norm before clipping."""
        import torch_xla.core.xla_model as xm

        gradients = [p.grad for p in self._masters.values() if p.grad is not None]
        xm.all_reduce_bucketized_gradients(
            gradients,
            scale=1 / self.num_ranks,
            groups=None,
            pin_layout=True,
            bucket_cap_mb=_BUCKET_MIB,
        )
        norm = get_total_norm(gradients)
        if self._config.max_grad_norm > 0:
            clip_grads_with_norm_(self._masters.values(), self._config.max_grad_norm, norm)
        self._optimizer.step(learning_rate)
        self._publish()
        # Not zeroed in place: the caller holds the old tensor.
        self._loss = self._zero()
        self._end_graph()
        self._heartbeat.step_made()
        return norm

    @torch.no_grad()
    def evaluate(self, batch: Batch, score: Score) -> float:
        """Sum ``score`` over data-parallel ranks and fetch to the host; the same on every rank."""
        self._model.eval()
        total = score(self._model, place(batch, self._device))
        self._model.train()
        return self.mean_over_data(total) * self.num_ranks

    def mean_over_data(self, loss: torch.Tensor) -> float:
        """Average over data-parallel ranks and fetch to the host; the same on every rank."""
        import torch_xla.core.xla_model as xm

        part: torch.Tensor = loss / self.num_ranks
        return self.fetch(xm.all_reduce(xm.REDUCE_SUM, part))

    def save(
        self, checkpoints: Checkpoints, step: int, meta: dict[str, Any], *, asynchronous: bool
    ) -> None:
        """Write a checkpoint; each rank copies and writes an equal part of the tensors."""
        # Otherwise there would be two copies of the state on the host.
        checkpoints.wait()
        state = _map(
            {
                name: weight
                for number, (name, weight) in enumerate(self._masters.items())
                if number % self.num_ranks == self.rank
            },
            self._optimizer,
            lambda tensor: tensor.detach().to("cpu", copy=True),
        )
        checkpoints.save(state, step, meta, asynchronous=asynchronous, copied=True)

    def load(self, checkpoints: Checkpoints, info: CheckpointInfo) -> CheckpointInfo:
        """Load weights and optimizer state from a checkpoint of any topology."""
        state = _map(self._masters, self._optimizer, lambda tensor: torch.empty(tensor.size()))
        with self._heartbeat.loading(info.name):
            loaded = checkpoints.load(state, info)
        self._restore(checkpoint_state(dict(self._masters), self._optimizer), state)
        self._publish_in_separate_graph()
        self._optimizer.restore_step(loaded.step)
        return loaded

    @torch.no_grad()
    def _restore(self, mine: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        for name, value in mine.items():
            if isinstance(value, torch.Tensor):
                value.copy_(state[name])
            else:
                self._restore(value, state[name])


def _map(
    weights: Mapping[str, torch.Tensor],
    optimizer: NamedOptimizer,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> dict[str, Any]:
    """Apply ``change`` to each tensor of the checkpoint state of ``weights``."""

    def apply(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        return {name: apply(inner) for name, inner in value.items()}

    result: dict[str, Any] = apply(checkpoint_state(dict(weights), optimizer))
    return result
