"""The checkpoints of one run: save asynchronously, find, verify, load and prune."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from training.checkpoint.dcp import METADATA, Reader, Writer, checksums
from training.checkpoint.folders import CheckpointFolders
from training.checkpoint.marker import (
    CheckpointDamaged,
    CheckpointInfo,
    CheckpointUnusable,
)
from training.checkpoint.metadata import read_metadata
from training.core.ranks import Ranks
from training.storage import Objects, StorageError
from trainium_catalogue.contract import CHECKPOINT_MARKER, checkpoint_name

_HEARTBEAT_S = 0.5


def _discard(text: str) -> None:
    """Discard the message."""


class Checkpoints:
    """Checkpoints below ``objects``, in folders ``step-00000010`` with ``complete.json`` inside.

    Every rank has an instance, with its own ``ranks``, and calls the methods marked "All ranks" in
    the same order. ``say`` receives log lines, on rank 0 only; ``report`` is called at least once a
    second during ``wait``, and after every chunk that ``load`` reads; ``guard`` is called on rank 0
    before a save starts and before it is committed, and may raise to prevent it (a lost
    ``RunLock``); ``attached`` returns, on rank 0, small files to include in the checkpoint at
    commit; ``on_saved`` and ``on_failed`` are called on every rank, from the saving thread, before
    ``wait`` returns.

    Size: fp32 weights and AdamW's moments take 12 bytes per parameter, 81 GB for Llama-2-7B: 0.63
    GB for each of 128 ranks, 20 GB per node. After the first asynchronous save, host memory holds a
    second copy (a trn1.32xlarge has 512 GiB); at most 80 MiB of parts per rank are in flight, and
    nothing is written to local disk. At most one save is in progress.
    """

    def __init__(
        self,
        objects: Objects,
        ranks: Ranks,
        *,
        keep_last: int,
        keep_every: int,
        say: Callable[[str], None] = _discard,
        report: Callable[[str], None] = _discard,
        guard: Callable[[], None] = lambda: None,
        attached: Callable[[], Mapping[str, bytes]] = dict,
        on_saved: Callable[[CheckpointInfo], None] = lambda info: None,
        on_failed: Callable[[int, str], None] = lambda step, reason: None,
    ) -> None:
        self._objects, self._ranks, self._report = objects, ranks, report
        self._say = say if self._ranks.is_leader else _discard
        self._folders = CheckpointFolders(
            objects, keep_last=keep_last, keep_every=keep_every, say=self._say
        )
        self._guard, self._on_saved, self._on_failed = guard, on_saved, on_failed
        self._attached = attached
        self._stager = BlockingAsyncStager()
        self._saving: tuple[str, threading.Thread] | None = None
        """Name and thread of the latest save."""

    def latest(self, *, at_most: int | None = None) -> CheckpointInfo | None:
        """All ranks: return the newest complete checkpoint, or None; rank 0 decides.

        Incomplete ones, and those with missing files or wrong sizes, are reported and skipped.
        """
        return self._ranks.agree(lambda: self._folders.newest(at_most=at_most))

    def load(self, state_dict: dict[str, Any], info: CheckpointInfo) -> CheckpointInfo:
        """All ranks: fill ``state_dict`` in place; return the loaded checkpoint.

        This is ``info``, or the newest earlier one with correct checksums; all ranks reject damaged
        ones together. Raises ``CheckpointUnusable`` if none is left or if the state belongs to
        a different model, and ``StorageError`` if storage fails.
        """
        candidate: CheckpointInfo | None = info
        refused = []
        while candidate is not None:
            reason = self._load(state_dict, candidate)
            if reason is None:
                return candidate
            self._say(f"skipping checkpoint {candidate.name}: {reason}")
            self._folders.ignore(candidate.step)
            refused.append(candidate.name)
            candidate = self.latest(at_most=candidate.step)
        raise CheckpointUnusable(
            f"no checkpoint of {self._objects.uri} can be loaded: {', '.join(refused)} "
            f"{'is' if len(refused) == 1 else 'are'} damaged (last reason: {reason}); restore the "
            "files, or start over under another run name"
        )

    def _load(self, state_dict: dict[str, Any], info: CheckpointInfo) -> str | None:
        """Load the checkpoint; return the reason if it is damaged, else None."""
        done = 0

        def count(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            self._report(f"loading {info.name}: {done >> 20} MiB")

        reader = Reader(self._objects.at(info.name), info.files, count)
        try:
            reader.use_metadata(
                self._ranks.agree(lambda: read_metadata(reader.fetch(METADATA), info.files))
            )
            dcp_load(
                state_dict,
                storage_reader=reader,
                process_group=self._ranks.group,
                no_dist=self._ranks.group is None,
            )
        except CheckpointDamaged as error:
            return str(error)
        except CheckpointException as error:
            return _damage(info, error)
        return None

    def attachment(self, info: CheckpointInfo, name: str) -> bytes | None:
        """Read a file attached to the checkpoint; None if there is none or it is damaged."""
        if name not in info.files:
            return None
        try:
            return Reader(self._objects.at(info.name), info.files).fetch(name)
        except CheckpointDamaged as error:
            self._say(f"{name} of checkpoint {info.name} is not used: {error}")
            return None

    def save(
        self,
        state_dict: dict[str, Any],
        step: int,
        meta: Mapping[str, Any],
        *,
        asynchronous: bool,
        copied: bool = False,
    ) -> None:
        """All ranks: save the state after ``step`` optimizer steps, with ``meta`` in the marker.

        Waits for a save still in progress. If asynchronous, returns once the state is copied and
        may change again. A state that is already ``copied`` is not copied again and must not
        change. Never raises storage errors: ``on_failed`` receives the step and the reason. Files
        without a marker do not count as a checkpoint.
        """
        self.wait()
        if asynchronous and not copied:
            state_dict = self._stage(state_dict)
        # Always a thread, so that the waiting caller can keep reporting.
        thread = threading.Thread(
            target=self._save, args=(state_dict, step, meta), name=f"save-{step}", daemon=True
        )
        self._saving = checkpoint_name(step), thread
        thread.start()
        if not asynchronous:
            self.wait()

    def wait(self) -> None:
        """All ranks: wait until the current save is complete everywhere, or has failed."""
        if self._saving is None:
            return
        name, thread = self._saving
        thread.join(_HEARTBEAT_S)
        while thread.is_alive():
            self._report(f"waiting for {name} to be saved")
            thread.join(_HEARTBEAT_S)

    def _stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy to the host, reusing the previous copy's memory, which is faster than allocating.

        The stager's own cache would use pinned memory, which is unavailable on CPUs.
        """
        staged: dict[str, Any] = self._stager.stage(state_dict)
        self._stager.cache_staged_state_dict = True
        self._stager.state_dict_cache = staged
        return staged

    def _save(self, state_dict: dict[str, Any], step: int, meta: Mapping[str, Any]) -> None:
        """Write a checkpoint and call back, on the thread that ``wait`` joins."""
        try:
            self._on_saved(self._write(state_dict, step, meta))
        except (Exception, CheckpointException) as error:
            reason = _reason(error)
            self._say(
                f"checkpoint {checkpoint_name(step)} could not be saved; training continues: "
                f"{reason}"
            )
            self._on_failed(step, reason)

    def _write(
        self, state_dict: dict[str, Any], step: int, meta: Mapping[str, Any]
    ) -> CheckpointInfo:
        ranks, folders = self._ranks, self._folders

        def begin() -> dict[str, str]:
            # List before ``guard`` confirms the lock: files written later by a job that takes over
            # have different ETags, so this job's delayed requests cannot replace them.
            files = folders.list_files(step)
            self._guard()
            return folders.withdraw(step, files)

        def discard() -> None:
            # Best effort: leftovers only cost space. A job that lost the lock must not delete.
            with suppress(Exception):
                self._guard()
                folders.remove(step)

        # Also blocks the other ranks until an earlier attempt's checkpoint is withdrawn.
        replaced = ranks.agree(begin)
        writer = Writer(self._objects.at(checkpoint_name(step)), replaced)
        try:
            dcp_save(
                state_dict,
                storage_writer=writer,
                process_group=ranks.group,
                no_dist=ranks.group is None,
            )
        except CheckpointException:
            # Free the space of the failed save. Every rank has finished writing.
            ranks.agree(discard)
            raise
        gathered = ranks.gather(writer.sums)
        files = {name: known for sums in gathered for name, known in sums.items()}

        def commit() -> CheckpointInfo:
            self._guard()
            folder = self._objects.at(checkpoint_name(step))
            for name, data in self._attached().items():
                etag = replaced.get(name)
                folder.put(name, data, if_absent=etag is None, if_match=etag)
                files[name] = checksums(data)
            if unknown := writer.named - files.keys():
                raise CheckpointDamaged(f"no rank reported writing {min(unknown)}")
            return folders.commit(step, meta, files, replaced)

        info = ranks.agree(commit)
        if ranks.is_leader:
            self._clean(step, replaced.keys() - files.keys() - {CHECKPOINT_MARKER})
        return info

    def _clean(self, step: int, unused: Set[str]) -> None:
        """Delete expired checkpoints and ``unused`` files of ``step``; best effort."""
        try:
            self._guard()
            self._folders.remove(step, unused)
            deleted = self._folders.clean()
        except Exception as error:
            self._say(f"old checkpoints could not be deleted: {_reason(error)}")
            return
        if deleted:
            self._say(f"deleted checkpoints {', '.join(map(checkpoint_name, deleted))}")


def _damage(info: CheckpointInfo, error: CheckpointException) -> str:
    """Describe the damage; if there is none, raise the disk or storage error, or
    ``CheckpointUnusable``.
    """
    causes = [failure[0] for _, failure in sorted(error.failures.items())]
    for cause in causes:
        if isinstance(cause, CheckpointDamaged):
            return str(cause)
    for cause in causes:
        if isinstance(cause, (OSError, StorageError)):
            raise cause from None
    raise CheckpointUnusable(
        f"checkpoint {info.name} does not match the state to load: {_reason(causes[0])}; use "
        "another run name for another model"
    ) from causes[0]


def _reason(error: BaseException) -> str:
    """Describe the error on one line."""
    if isinstance(error, CheckpointException):
        rank, failure = min(error.failures.items())
        return f"rank {rank}: {_reason(failure[0])}"
    text = " ".join(str(error).split())
    return text or type(error).__name__
