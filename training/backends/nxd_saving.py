"""Checkpoints in neuronx_distributed's own format, made complete as all others are."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from training.checkpoint import CheckpointUnusable
from trainium_catalogue.contract import checkpoint_name

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints
    from training.checkpoint.ranks import Ranks
    from trainium_catalogue.plan import TrainingPlan

_WRITERS_AT_ONCE = 32
"""Workers of a node that copy their part to the host at the same time: all."""


def refuse_other_topology(info: CheckpointInfo, plan: TrainingPlan) -> None:
    """``CheckpointUnusable`` unless the checkpoint was written by ranks arranged as these.

    NxD's files are one rank's each: weights by tensor-parallel rank, master weights and moments by
    data-parallel rank too.
    """
    if info.format != "nxd":
        raise CheckpointUnusable(
            f"checkpoint {info.name} has format {info.format}, and NxD reads only its own; "
            "continue on the kind of device that wrote it, or use another run name"
        )
    for name, mine in (
        ("tensor_parallel", plan.tensor_parallel),
        ("data_parallel", plan.data_parallel),
    ):
        theirs = info.meta.get(name)
        if theirs != mine:
            raise CheckpointUnusable(
                f"checkpoint {info.name} was written with {name.replace('_', '-')}={theirs}, this "
                f"job has {mine}; NxD's optimizer state fits only the same: submit with the same "
                "number of nodes, instance type and tensor-parallel"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """One save under way."""

    checkpoints: Checkpoints
    step: int
    meta: Mapping[str, Any]


class Saver:
    """Saves with NxD, and completes with a marker once every rank's upload has ended.

    NxD writes ``<folder>/{model,optim}/dp_rank_XX_tp_rank_YY_pp_rank_00.pt``, one file a rank. Its
    own uploads repeat what S3 throttles (checkpoint_storage.py, retry_with_jitter). All ranks call
    every method in the same order.
    """

    def __init__(self, ranks: Ranks, *, asynchronous: bool) -> None:
        self._ranks = ranks
        # NxD decides at the first save of a process and keeps to it (checkpoint.py, g_iostate).
        self._asynchronous = asynchronous
        self._save: _Save | None = None

    @property
    def ended(self) -> bool:
        """Whether a save is under way and this rank has nothing more to write for it."""
        return self._save is not None and self._error(wait=False) is not None

    def save(
        self,
        checkpoints: Checkpoints,
        step: int,
        meta: Mapping[str, Any],
        *,
        model: Any,
        optimizer: Any,
    ) -> None:
        """Begin a save; the one before is completed first."""
        import neuronx_distributed as nxd
        from neuronx_distributed.trainer.checkpoint import CheckpointIOState

        self.wait()
        # No rank writes before the folder is empty.
        uri = self._ranks.agree(lambda: checkpoints.begin(step))
        self._save = _Save(checkpoints=checkpoints, step=step, meta=meta)
        nxd.save_checkpoint(
            uri.rstrip("/").rpartition("/")[0],
            tag=checkpoint_name(step),
            model=model,
            optimizer=optimizer,
            num_workers=_WRITERS_AT_ONCE,
            # One file a rank: with torch_xla's serialisation it would be one a tensor, 110,000.
            use_xser=False,
            # Ours decide what is kept.
            num_kept_ckpts=None,
            async_save=self._asynchronous,
        )
        # Else every process would rendezvous once more as it ends, when the group has gone.
        atexit.unregister(CheckpointIOState.wait_all)

    def wait(self) -> None:
        """Wait for the save under way, if any, and complete it."""
        if self._save is not None:
            self._error(wait=True)
            self.complete()

    def complete(self) -> None:
        """Write the marker, or give the save up if any rank's upload has failed."""
        import neuronx_distributed as nxd
        from neuronx_distributed.trainer import checkpoint as nxd_checkpoint

        save, self._save = self._save, None
        if save is None:
            return
        errors = [error for error in self._ranks.gather(self._error(wait=True)) if error]
        if errors:
            # NxD would raise on the rank that failed and leave the others waiting for it.
            nxd_checkpoint.g_iostate = None
            self._ranks.agree(lambda: save.checkpoints.abandon(save.step, errors[0]))
            return
        nxd.finalize_checkpoint()
        self._ranks.agree(lambda: save.checkpoints.commit(save.step, save.meta))

    def _error(self, *, wait: bool) -> str | None:
        """What this rank's upload ended with, "" for nothing; None while it goes on."""
        from neuronx_distributed.trainer import checkpoint as nxd_checkpoint

        state = nxd_checkpoint.g_iostate
        assert state is not None
        # There is none where this rank has nothing to write, or where saves are synchronous.
        task = state._save_task if self._asynchronous else None
        if task is None:
            return ""
        if not wait and not task.done():
            return None
        error = task.exception()
        return "" if error is None else f"rank {self._ranks.rank}: {error or type(error).__name__}"
