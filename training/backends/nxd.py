"""torch_xla with neuronx_distributed, the only way to shard a model on trn1 and trn1n.

Signatures: NxD 0.17 (SDK 2.28), typings/neuronx_distributed. The model is Hugging Face's, with the
modules of the tensor-parallel plan replaced by NxD's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from training.backends.base import Batch, NxdNetwork, SequenceNetwork, place, weight_losses
from training.backends.nxd_shards import Shards
from training.backends.optimizers import TracedAdamW, adamw_settings, groups_by_decay
from training.backends.xla import XlaRank
from training.core.ranks import Ranks
from trainium_catalogue.parameters.plan import refuse_shared_heads

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints
    from training.core.config import TrainConfig
    from training.core.device import Device

log = logging.getLogger(__name__)

_NO_CLIPPING = 1e30
"""A limit that no norm reaches; without clipping NxD does not compute the norm."""


def nxd_config(config: TrainConfig, network: NxdNetwork) -> dict[str, Any]:
    """Build NxD's configuration of a run; as a side effect, create its process groups."""
    import neuronx_distributed as nxd
    from neuronx_distributed.utils.model_utils import get_platform_lnc

    return nxd.neuronx_distributed_config(
        tensor_parallel_size=config.plan.tensor_parallel,
        # On trn2, determines which cores are adjacent (parallel_state.py, get_logic_chosen).
        lnc_size=int(get_platform_lnc()),
        optimizer_config={
            "zero_one_enabled": True,
            "grad_clipping": True,
            "max_grad_norm": _limit(config),
        },
        mixed_precision_config={
            "use_master_weights": True,
            "use_fp32_grad_acc": True,
            # For NxD's own checkpoints, which are unused; False would cause a warning.
            "use_master_weights_in_ckpt": True,
        },
        activation_checkpoint_config=network.recomputed,
        # Only NxD's optimizer reads it.
        sequence_parallel=network.sequence_parallel,
        model_init_config={
            "meta_device_init": True,
            "param_init_fn": network.fill,
            # All of a node's workers in parallel, since each creates only its own weights.
            "sequential_move_factor": 64,
        },
    )


def _limit(config: TrainConfig) -> float:
    return config.max_grad_norm or _NO_CLIPPING


class NxdBackend(XlaRank):
    """One rank's share of a run; see ``Backend``."""

    name = "nxd"
    data_rank: int
    """Assigned by NxD in ``build``."""

    def __init__(
        self,
        config: TrainConfig,
        device: Device,
        network: SequenceNetwork,
        *,
        ranks: Ranks,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        plan = config.plan
        refuse_shared_heads(plan.tensor_parallel, plan.shape.num_key_value_heads)
        super().__init__(config, device, ranks=ranks, report=report)
        self._network = network.for_nxd()

    def build(self) -> None:
        """Create the sharded model with its initial weights, and the optimizer."""
        with self._heartbeat.waiting():
            self._build()
        self._publish()

    def _build(self) -> None:
        import neuronx_distributed as nxd
        import torch_xla.core.xla_model as xm
        from neuronx_distributed.parallel_layers import parallel_state

        config, network = self._config, self._network
        if self.rank == 0:
            log.info("training: NeuronX Distributed with %s", network.describe())
        settings = nxd_config(config, network)
        self.data_rank = parallel_state.get_data_parallel_rank()
        self._device = xm.xla_device()
        self._model = nxd.initialize_parallel_model(settings, network.model)
        pieces = network.pieces()
        self._optimizer = nxd.initialize_parallel_optimizer(
            settings,
            TracedAdamW,
            # All weights of a fused parameter are matrices.
            groups_by_decay(((held[0].name, weight) for weight, held in pieces.items()), config),
            **adamw_settings(config),
            # NxD does not forward its max_grad_norm (trainer.py, initialize_optimizer_from_class);
            # torch_xla's ZeroRedundancyOptimizer uses this value, and defaults to 1.0.
            max_norm=_limit(config),
        )
        self._shards = Shards(self._optimizer.optimizer, pieces)
        self._shards.make_gradients()
        self._loss = self._zero()
        xm.mark_step()

    def _publish(self) -> None:
        """Publish master weights to all ranks in a separate graph, for new and resumed runs alike.

        If it were left pending, the copy would become part of the first micro-batch's graph, but
        only in resumed jobs, and that graph is never compiled ahead of time.
        """
        self._shards.publish()
        self._end_graph()

    def forward_backward(self, tokens: Batch, *, is_last: bool) -> torch.Tensor:
        """Accumulate the gradients of one micro-batch; return the step's loss so far."""
        loss = self._token_losses(tokens).mean() / self._config.plan.accumulation_steps
        # The optimizer reduces gradients over data-parallel ranks once, in its step.
        loss.backward()  # type: ignore[no-untyped-call]
        self._loss += loss.detach()
        # All micro-batches, including the first and last, share one graph.
        self._end_graph()
        return self._loss

    def _token_losses(self, tokens: Batch) -> torch.Tensor:
        """Compute the loss of every token of a micro-batch, fp32 ``[micro_batch, seq_len]``."""
        from neuronx_distributed.parallel_layers import parallel_cross_entropy

        placed = place(tokens, self._device)
        inputs, labels = self._network.inputs(placed)
        logits = self._model(**inputs, use_cache=False).logits
        # fp32 for the sum over the vocabulary; also a copy, since NxD's function works in place.
        losses = parallel_cross_entropy(logits.float(), labels)
        return weight_losses(losses.t() if self._network.sequence_parallel else losses, placed)

    @torch.no_grad()
    def losses_of(self, tokens: Batch) -> torch.Tensor:
        """Compute the mean loss of each sequence of a micro-batch, without gradients."""
        losses = self._token_losses(tokens).mean(1)
        # All evaluated micro-batches share one graph.
        self._end_graph()
        return losses

    def clip_and_step(self, learning_rate: float) -> torch.Tensor:
        """Clip, update the weights and reset the gradients; return the norm before clipping."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        norm: torch.Tensor = self._optimizer.grad_norm.detach()
        self._optimizer.zero_grad()
        # Not zeroed in place: the caller holds the old tensor.
        self._loss = self._zero()
        self._end_graph()
        self._heartbeat.step_made()
        return norm

    def mean_over_data(self, loss: torch.Tensor) -> float:
        """Average over data-parallel ranks and fetch to the host; the same on every rank."""
        import torch_xla.core.xla_model as xm
        from neuronx_distributed.parallel_layers import parallel_state

        part: torch.Tensor = loss / self._config.plan.data_parallel
        mean = xm.all_reduce(
            xm.REDUCE_SUM,
            part,
            groups=parallel_state.get_data_parallel_replica_groups(),
            pin_layout=False,
        )
        return self.fetch(mean)

    def save(
        self, checkpoints: Checkpoints, step: int, meta: dict[str, Any], *, asynchronous: bool
    ) -> None:
        """Write a checkpoint with master weights and optimizer state."""
        # Otherwise there would be two copies of the state on the host.
        checkpoints.wait()
        with self._heartbeat.waiting():
            state = self._shards.copy()
        checkpoints.save(state, step, meta, asynchronous=asynchronous, copied=True)

    def load(self, checkpoints: Checkpoints, info: CheckpointInfo) -> CheckpointInfo:
        """Load weights and optimizer state from a checkpoint of any topology."""
        with self._heartbeat.loading(info.name):
            state = self._shards.empty()
            loaded = checkpoints.load(state, info)
            self._shards.restore(state, step=loaded.step)
        self._publish()
        return loaded
