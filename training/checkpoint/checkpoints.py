"""The checkpoints of one run: saved beside training, found, verified, loaded, thinned out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from training.checkpoint.dcp import Reader
from training.checkpoint.errors import CheckpointDamaged, CheckpointUnusable
from training.checkpoint.folders import Folders
from training.checkpoint.marker import CheckpointInfo
from training.checkpoint.pending import Pending
from training.checkpoint.saving import Listener, Saver, reason_of
from training.core.ranks import Ranks
from training.storage import Objects


def _quiet(text: str) -> None:
    """Say nothing."""


class Checkpoints:
    """Checkpoints below ``objects``, in folders ``step-00000010`` with ``complete.json`` inside.

    Every rank makes one at the same point of its program and calls the methods that say "all
    ranks" in the same order. ``say`` gets lines for the log, on rank 0 only; ``report`` is called
    at least every second while something is waited for; ``guard`` is called on rank 0 before a
    save begins and before it becomes complete, and may raise to prevent it (a lost ``RunLock``);
    ``on_saved`` and ``on_failed`` are called on every rank, from the thread that saves, and then
    ``wait`` returns.

    Size: fp32 weights and AdamW's moments are 12 bytes a parameter, 81 GB for Llama-2-7B: 0.65 GB
    for each of 128 ranks, 20 GB a node. From the first asynchronous save on, that is held once
    more in host memory (a trn1.32xlarge has 512 GiB); 80 MiB a rank of parts are under way at most,
    and nothing goes to a local disk. There is one save under way at most.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        keep_last: int,
        keep_every: int,
        say: Callable[[str], None] = _quiet,
        report: Callable[[str], None] = _quiet,
        guard: Callable[[], None] = lambda: None,
        on_saved: Callable[[CheckpointInfo], None] = lambda info: None,
        on_failed: Callable[[int, str], None] = lambda step, reason: None,
    ) -> None:
        self._objects, self._report = objects, report
        self._ranks = Ranks()
        self._say = say if self._ranks.is_leader else _quiet
        self._folders = Folders(objects, keep_last=keep_last, keep_every=keep_every, say=self._say)
        self._listener = Listener(
            say=self._say, report=report, guard=guard, on_saved=on_saved, on_failed=on_failed
        )
        self._saver = Saver(objects, self._ranks, self._folders, self._listener)

    @property
    def uri(self) -> str:
        """Of the folder that the checkpoints are in."""
        return self._objects.uri

    def latest(self, *, at_most: int | None = None) -> CheckpointInfo | None:
        """All ranks: the newest complete checkpoint, or None; rank 0 decides.

        Torn ones, and ones with files missing or of another size, are named and passed over.
        """
        return self._ranks.agree(lambda: self._folders.newest(at_most=at_most))

    def load(self, state_dict: dict[str, Any], info: CheckpointInfo) -> CheckpointInfo:
        """All ranks: fill ``state_dict`` in place; returns the checkpoint that it now holds.

        That is ``info``, or the newest one before it whose checksums are right: damaged ones are
        named and refused by all ranks together. ``CheckpointUnusable`` if none is left, or if the
        state is of another model; storage's own errors if it cannot be read at all.
        """
        wanted: CheckpointInfo | None = info
        refused = []
        while wanted is not None:
            reason = self._load(state_dict, wanted)
            if reason is None:
                return wanted
            self._say(f"checkpoint {wanted.name} is refused: {reason}")
            self._folders.refuse(wanted.step)
            refused.append(wanted.name)
            wanted = self.latest(at_most=wanted.step)
        raise CheckpointUnusable(
            f"no checkpoint of {self._objects.uri} can be loaded: {', '.join(refused)} "
            f"{'is' if len(refused) == 1 else 'are'} damaged (last reason: {reason}); restore the "
            "files, or start again under another run name"
        )

    def _load(self, state_dict: dict[str, Any], info: CheckpointInfo) -> str | None:
        """Why it is damaged; None when it was loaded."""
        done = 0

        def count(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            self._report(f"loading {info.name}: {done >> 20} MiB")

        reader = Reader(self._objects.at(info.name), info.files, count)
        try:
            reader.use_metadata(self._ranks.agree(reader.fetch_metadata))
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

    def save(
        self,
        state_dict: dict[str, Any],
        step: int,
        meta: Mapping[str, Any],
        *,
        asynchronous: bool,
        copied: bool = False,
    ) -> Pending:
        """All ranks: save the state after ``step`` optimizer steps, with ``meta`` in the marker.

        Asynchronous: returns when the state is copied, so that it may change again; one that is
        ``copied`` already nobody else may change, and it is not copied once more. A save that is
        still under way is waited for first. It never raises for storage: ``on_failed`` hears the
        step and the reason, and what was written is removed.
        """
        return self._saver.save(state_dict, step, meta, asynchronous=asynchronous, copied=copied)

    def wait(self) -> None:
        """All ranks: return when the save under way is complete everywhere, or has failed."""
        self._saver.wait()


def _damage(info: CheckpointInfo, error: CheckpointException) -> str:
    """Why the checkpoint is damaged; raises anything else that has kept it from being loaded."""
    causes = [failure[0] for _, failure in sorted(error.failures.items())]
    for cause in causes:
        if isinstance(cause, CheckpointDamaged):
            return str(cause)
    for cause in causes:
        if isinstance(cause, OSError):
            raise cause from None
    raise CheckpointUnusable(
        f"checkpoint {info.name} does not fit the state to load: {reason_of(causes[0])}; use "
        "another run name for another model"
    ) from causes[0]
