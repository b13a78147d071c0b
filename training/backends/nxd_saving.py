"""Checkpoints in neuronx_distributed's own format, made complete as all others are."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.checkpoint import CheckpointUnusable
from training.objects import StorageError
from trainium_catalogue.contract import checkpoint_name

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo, Checkpoints
    from training.checkpoint.ranks import Ranks
    from trainium_catalogue.plan import TrainingPlan

_WRITERS_AT_ONCE = 32
"""Workers of a node that copy their part to the host at the same time: all."""
_SHARED_MEMORY = Path("/dev/shm")
_BETWEEN_LOOKS_S = 0.5


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
    task: Future[Any] | None
    """This rank's upload; None where it has nothing to write."""
    buffers: Path

    @property
    def ended(self) -> bool:
        """Whether this rank has nothing more to write."""
        return self.task is None or self.task.done()

    def error(self, rank: int) -> str:
        """What the upload ended with, for which it waits; "" for nothing."""
        error = None if self.task is None else self.task.exception()
        return "" if error is None else f"rank {rank}: {error or type(error).__name__}"


class Saver:
    """Saves with NxD, and completes with a marker once every rank's upload has ended.

    NxD writes ``<folder>/{model,optim}/dp_rank_XX_tp_rank_YY_pp_rank_00.pt``, one file a rank. Its
    own uploads repeat what S3 throttles (checkpoint_storage.py, retry_with_jitter). All ranks call
    every method in the same order.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._save: _Save | None = None

    @property
    def ended(self) -> bool:
        """Whether a save is under way and this rank has nothing more to write for it."""
        return self._save is not None and self._save.ended

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
        from neuronx_distributed.trainer import checkpoint as nxd_checkpoint
        from neuronx_distributed.trainer import checkpoint_storage as nxd_storage

        self.wait()
        try:
            # No rank writes before the folder is empty.
            uri = self._ranks.agree(lambda: checkpoints.begin(step))
        except (StorageError, OSError) as error:
            self._abandon(checkpoints, step, str(error))
            return
        # NxD writes a rank's file here first, and leaves it behind when its upload fails
        # (checkpoint_storage.py, upload_stream_to_file).
        buffers = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=_SHARED_MEMORY))
        nxd_storage.SHM_PATH = str(buffers)
        nxd.save_checkpoint(
            uri.rstrip("/").rpartition("/")[0],
            tag=checkpoint_name(step),
            model=model,
            optimizer=optimizer,
            # Loading asks whether there is any, and S3 tells a role that may list only some
            # prefixes 403 instead of 404 of what is not there: NxD takes that for an error.
            user_content={"step": step},
            num_workers=_WRITERS_AT_ONCE,
            # One file a rank: with torch_xla's serialisation it would be one a tensor, 110,000.
            use_xser=False,
            # Always: who wants to wait does so here, where it can be said.
            async_save=True,
        )
        state = nxd_checkpoint.g_iostate
        assert state is not None
        # The rest is done here. NxD would write its "done" again with the next save, look for
        # torn checkpoints to delete, and raise on the rank that failed while the others wait.
        nxd_checkpoint.g_iostate = None
        # Else every process would rendezvous once more as it ends, when the group has gone.
        atexit.unregister(nxd_checkpoint.CheckpointIOState.wait_all)
        self._save = _Save(
            checkpoints=checkpoints, step=step, meta=meta, task=state._save_task, buffers=buffers
        )

    def wait(self) -> None:
        """Wait for the save under way, if any, and complete it."""
        if self._save is None:
            return
        # All ranks hear the same answer, so all leave together.
        while not all(self._ranks.gather(self.ended)):
            self._save.checkpoints.waiting(self._save.step)
            time.sleep(_BETWEEN_LOOKS_S)
        self.complete()

    def complete(self) -> None:
        """Write the marker, or give the save up if any rank's upload has failed."""
        save, self._save = self._save, None
        if save is None:
            return
        errors = [error for error in self._ranks.gather(save.error(self._ranks.rank)) if error]
        shutil.rmtree(save.buffers, ignore_errors=True)
        try:
            if not errors:
                self._ranks.agree(lambda: save.checkpoints.commit(save.step, save.meta))
        except (StorageError, OSError) as error:
            errors.append(str(error))
        if errors:
            self._abandon(save.checkpoints, save.step, errors[0])

    def _abandon(self, checkpoints: Checkpoints, step: int, reason: str) -> None:
        self._ranks.agree(lambda: checkpoints.abandon(step, reason))
