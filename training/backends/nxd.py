"""torch_xla with neuronx_distributed: the only way to train on trn1 and trn1n.

Signatures: NxD 0.17 (SDK 2.28), typings/neuronx_distributed. The model is Hugging Face's own, with
the modules of the tensor-parallel plan replaced by NxD's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from training.backends.beat import beating
from training.backends.nxd_model import Builder
from training.backends.nxd_saving import Saver, refuse_other_topology
from training.backends.optimizer import is_decayed
from training.checkpoint.ranks import Ranks

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints
    from training.config import TrainConfig
    from training.device import Device

_NO_CLIPPING = 1e30
"""A limit that no norm reaches: the norm itself is wanted all the same."""
_READERS_AT_ONCE = 8
"""Workers of a node that load a checkpoint at the same time; each holds its file in memory."""
_COMPILES_AT_MOST_S = 4 * 3600.0
"""A first step that takes longer is taken for a hang."""
_LOADS_AT_MOST_S = 3600.0
_UNTIL_STEADY = 2
"""Steps that have all graphs of a job."""


def nxd_config(config: TrainConfig, builder: Builder) -> dict[str, Any]:
    """NxD's own configuration of a run; joins its process groups as a side effect."""
    import neuronx_distributed as nxd
    from neuronx_distributed.utils.model_utils import get_platform_lnc

    return nxd.neuronx_distributed_config(
        tensor_parallel_size=config.plan.tensor_parallel,
        # Decides on trn2 which cores are near each other (parallel_state.py, get_logic_chosen).
        lnc_size=int(get_platform_lnc()),
        optimizer_config={
            "zero_one_enabled": True,
            "grad_clipping": True,
            "max_grad_norm": _limit(config),
        },
        mixed_precision_config={
            "use_master_weights": True,
            "use_fp32_grad_acc": True,
            # Without it a resumed run trains on from the initial weights: the optimizer is loaded
            # first, takes its master weights from the model as it was built, and writes them back
            # with its first step (NxD 0.15 and later, trainer/checkpoint.py, load_checkpoint).
            "use_master_weights_in_ckpt": True,
        },
        activation_checkpoint_config="full" if config.activation_checkpointing else None,
        model_init_config={
            "meta_device_init": True,
            "param_init_fn": builder.fill,
            # All workers of a node at once: each makes only its own part of the weights.
            "sequential_move_factor": 64,
        },
    )


def _limit(config: TrainConfig) -> float:
    return config.max_grad_norm or _NO_CLIPPING


class NxdBackend:
    """One rank's share of a run; see ``Backend``."""

    name = "nxd"
    checkpoint_format = "nxd"
    data_rank: int
    """NxD decides it, in ``build``."""

    def __init__(
        self,
        config: TrainConfig,
        device: Device,
        *,
        peak_flops: float | None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config, self._report = config, report
        self.rank, self.num_ranks = device.rank, device.num_ranks
        self.peak_flops = peak_flops
        # neuron_parallel_compile runs such a job only to see its graphs; the numbers are void.
        self.tracing_only = config.compile_only
        self._steps = 0
        self._ranks = Ranks()
        self._saver = Saver(self._ranks)

    def _patience(self) -> contextlib.AbstractContextManager[None]:
        """While graphs are compiled, which may take an hour and says nothing."""
        if self._steps >= _UNTIL_STEADY:
            return contextlib.nullcontext()
        return beating(self._report, "compiling graphs", at_most_s=_COMPILES_AT_MOST_S)

    def build(self) -> None:
        """Make the sharded model with its initial weights, and the optimizer."""
        with self._patience():
            self._build()

    def _build(self) -> None:
        import neuronx_distributed as nxd
        import torch_xla.core.xla_model as xm
        from neuronx_distributed.parallel_layers import parallel_state

        config = self._config
        builder = Builder(config)
        settings = nxd_config(config, builder)
        self.data_rank = parallel_state.get_data_parallel_rank()
        self._device = xm.xla_device()
        self._model = nxd.initialize_parallel_model(settings, builder.model)
        groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        for name, parameter in self._model.named_parameters():
            groups[is_decayed(name)].append(parameter)
        self._optimizer = nxd.initialize_parallel_optimizer(
            settings,
            torch.optim.AdamW,
            [
                {"params": parameters, "weight_decay": config.weight_decay if decayed else 0.0}
                for decayed, parameters in groups.items()
            ],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.adam_eps,
            # One operation for all tensors would be one that XLA does not know.
            foreach=False,
            # NxD does not pass its max_grad_norm on (trainer.py, initialize_optimizer_from_class);
            # torch_xla's ZeroRedundancyOptimizer takes this one, and would take 1.0 without it.
            max_norm=_limit(config),
        )
        self._optimizer.zero_grad()
        self._loss = self._zero()
        xm.mark_step()

    def _zero(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float32, device=self._device)

    def forward_backward(self, tokens: torch.Tensor, *, is_last: bool) -> torch.Tensor:
        """Add the gradients of one micro-batch; returns the step's loss so far."""
        import torch_xla.core.xla_model as xm
        from neuronx_distributed.parallel_layers import parallel_cross_entropy

        placed = tokens.to(self._device)
        logits = self._model(input_ids=placed[:, :-1], use_cache=False).logits
        # fp32, for the sum over the vocabulary; and a copy, which NxD's function overwrites.
        losses = parallel_cross_entropy(logits.float(), placed[:, 1:])
        loss = losses.mean() / self._config.plan.accumulation_steps
        # The optimizer reduces over data-parallel ranks once, in its step.
        loss.backward()  # type: ignore[no-untyped-call]
        self._loss += loss.detach()
        # Every micro-batch is the same graph: the first, the last and all between.
        with self._patience():
            xm.mark_step()
        return self._loss

    def clip_and_step(self, learning_rate: float) -> torch.Tensor:
        """Clip, update the weights and drop the gradients; returns the norm before clipping."""
        import torch_xla.core.xla_model as xm

        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        norm: torch.Tensor = self._optimizer.grad_norm.detach()
        self._optimizer.zero_grad()
        # The old one has been handed out.
        self._loss = self._zero()
        with self._patience():
            xm.mark_step()
        self._steps += 1
        return norm

    def mean_over_data(self, loss: torch.Tensor) -> float:
        """Average over data-parallel ranks, fetched; the same on every rank."""
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

    def fetch(self, scalar: torch.Tensor) -> float:
        """A device scalar as a number; waits for the device."""
        with self._patience():
            return float(scalar.cpu().item())

    def any_rank(self, flag: bool) -> bool:
        """Whether any rank says so; the hosts ask each other, the devices go on.

        Called once a step, it is also where a checkpoint whose upload has ended is completed.
        """
        votes = self._ranks.gather((flag, self._saver.ended))
        if all(ended for _, ended in votes):
            self._saver.complete()
        return any(wanted for wanted, _ in votes)

    def barrier(self) -> None:
        """Wait for every rank."""
        self._ranks.gather(None)

    def save(
        self, checkpoints: Checkpoints, step: int, meta: dict[str, Any], *, asynchronous: bool
    ) -> None:
        """Write a checkpoint with master weights and optimizer state, in NxD's format."""
        self._saver.save(checkpoints, step, meta, model=self._model, optimizer=self._optimizer)
        if not asynchronous:
            self._saver.wait()

    def load(self, checkpoints: Checkpoints, info: CheckpointInfo) -> CheckpointInfo:
        """Replace weights and optimizer state by a checkpoint's, of the same topology."""
        import neuronx_distributed as nxd

        refuse_other_topology(info, self._config.plan)
        with beating(self._report, f"loading {info.name}", at_most_s=_LOADS_AT_MOST_S):
            nxd.load_checkpoint(
                checkpoints.uri,
                tag=info.name,
                model=self._model,
                optimizer=self._optimizer,
                num_workers=_READERS_AT_ONCE,
                strict=True,
            )
        return info
