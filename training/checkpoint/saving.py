"""Saving a checkpoint in torch's format, on a thread beside training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from training.checkpoint.dcp import Writer
from training.checkpoint.errors import CheckpointDamaged, SaveFailed
from training.checkpoint.folders import Folders
from training.checkpoint.marker import CheckpointInfo
from training.checkpoint.pending import Pending
from training.core.ranks import Ranks
from training.storage import Objects
from trainium_catalogue.contract import checkpoint_name

_BEAT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who is told what about checkpoints; see ``Checkpoints``."""

    say: Callable[[str], None]
    report: Callable[[str], None]
    guard: Callable[[], None]
    on_saved: Callable[[CheckpointInfo], None]
    on_failed: Callable[[int, str], None]


class Saver:
    """One save at a time; every rank calls every method in the same order."""

    def __init__(
        self, objects: Objects, ranks: Ranks, folders: Folders, listener: Listener
    ) -> None:
        self._objects, self._ranks, self._folders = objects, ranks, folders
        self._listener = listener
        self._pending: Pending | None = None
        self._stager = BlockingAsyncStager()

    def save(
        self,
        state_dict: dict[str, Any],
        step: int,
        meta: Mapping[str, Any],
        *,
        asynchronous: bool,
        copied: bool,
    ) -> Pending:
        """See ``Checkpoints.save``."""
        began = time.monotonic()
        self.wait()
        pending = Pending(step=step)
        self._pending = pending
        if asynchronous and not copied:
            state_dict = self._staged(state_dict)
        # A thread in either case: whoever waits for it says all the time that it does.
        threading.Thread(
            target=self._save, args=(state_dict, pending, meta), name=f"save-{step}", daemon=True
        ).start()
        if not asynchronous:
            self.wait()
        pending.stall_s = time.monotonic() - began
        return pending

    def wait(self) -> None:
        """See ``Checkpoints.wait``."""
        pending = self._pending
        while pending is not None and not pending.wait(_BEAT_S):
            self._listener.report(f"waiting until {checkpoint_name(pending.step)} is saved")

    def _staged(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy on the host, in the memory of the copy before: new memory costs more to get.

        The stager's own cache would be pinned memory, which there is not on CPUs.
        """
        staged: dict[str, Any] = self._stager.stage(state_dict)
        self._stager.cache_staged_state_dict = True
        self._stager.state_dict_cache = staged
        return staged

    def _save(self, state_dict: dict[str, Any], pending: Pending, meta: Mapping[str, Any]) -> None:
        name, listener = checkpoint_name(pending.step), self._listener
        # Whoever waits for the end must find that the callbacks have been called.
        try:
            info = self._write(state_dict, pending.step, meta)
            listener.on_saved(info)
            pending.complete(info)
        except (Exception, CheckpointException) as error:
            reason = reason_of(error)
            listener.say(f"checkpoint {name} was not saved, training goes on: {reason}")
            try:
                listener.on_failed(pending.step, reason)
            finally:
                pending.fail(SaveFailed(f"checkpoint {name} was not saved: {reason}"))

    def _write(
        self, state_dict: dict[str, Any], step: int, meta: Mapping[str, Any]
    ) -> CheckpointInfo:
        ranks, folders = self._ranks, self._folders

        def begin() -> None:
            # It deletes what another job may have taken over.
            self._listener.guard()
            folders.begin(step)

        def discard() -> None:
            # A failure costs space and nothing else; whoever has lost the run deletes nothing.
            with suppress(Exception):
                self._listener.guard()
                folders.discard(step)

        # Also holds the other ranks back until nothing of an earlier attempt is left.
        ranks.agree(begin)
        writer = Writer(self._objects.at(checkpoint_name(step)))
        try:
            dcp_save(
                state_dict,
                storage_writer=writer,
                process_group=ranks.group,
                no_dist=ranks.group is None,
            )
        except CheckpointException:
            # A full disk stays full otherwise. Every rank has ended its part.
            ranks.agree(discard)
            raise
        gathered = ranks.gather(writer.sums)
        files = {name: known for sums in gathered for name, known in sums.items()}

        def commit() -> CheckpointInfo:
            self._listener.guard()
            if unknown := writer.named - files.keys():
                raise CheckpointDamaged(f"no rank says that it has written {min(unknown)}")
            return folders.commit(step, meta, format="dcp", files=files)

        info = ranks.agree(commit)
        if ranks.is_leader:
            clean(folders, self._listener.say)
        return info


def clean(folders: Folders, say: Callable[[str], None]) -> None:
    """Delete what need not be kept; a failure costs space and nothing else."""
    try:
        gone = folders.clean()
    except Exception as error:
        say(f"old checkpoints could not be deleted: {reason_of(error)}")
        return
    if gone:
        say(f"deleted checkpoints {', '.join(map(checkpoint_name, gone))}")


def reason_of(error: BaseException) -> str:
    """One line."""
    if isinstance(error, CheckpointException):
        rank, failure = min(error.failures.items())
        return f"rank {rank}: {reason_of(failure[0])}"
    text = " ".join(str(error).split())
    return text or type(error).__name__
