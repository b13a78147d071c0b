"""The checkpoints of a run in storage, managed by one process."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping, Set
from typing import Any

from training.checkpoint.dcp import METADATA
from training.checkpoint.marker import (
    CheckpointDamaged,
    CheckpointInfo,
    CheckpointUnusable,
    FileSum,
)
from training.storage import Objects, PreconditionFailed
from training.storage.results import now_utc
from trainium_catalogue.contract import CHECKPOINT_MARKER, WITHDRAWN_BYTES, checkpoint_name

_FOLDER = re.compile(r"step-(\d{8,})")
Sizes = dict[str, int]
"""Sizes in bytes of a folder's files, by name."""


class CheckpointFolders:
    """Finds, completes and deletes checkpoints below ``objects``."""

    def __init__(
        self,
        objects: Objects,
        *,
        keep_last: int,
        keep_every: int,
        say: Callable[[str], None],
    ) -> None:
        self._objects, self._say = objects, say
        self._keep_last, self._keep_every = keep_last, keep_every
        self._ignored: set[int] = set()

    def _listed(self) -> dict[int, Sizes]:
        """Find every checkpoint, torn ones included, by step."""
        found: dict[int, Sizes] = {}
        for entry in self._objects.list("step-"):
            folder, _, name = entry.key.partition("/")
            is_withdrawn = name == CHECKPOINT_MARKER and entry.size == WITHDRAWN_BYTES
            if name and not is_withdrawn and (match := _FOLDER.fullmatch(folder)):
                found.setdefault(int(match[1]), {})[name] = entry.size
        return found

    def newest(self, *, at_most: int | None = None) -> CheckpointInfo | None:
        """Find the newest complete one that is not ignored; reports what is wrong with newer ones.

        Raises ``CheckpointUnusable`` when all complete ones have been damaged: returning None would
        make the caller train from the first step again.
        """
        listed = self._listed()
        damaged: list[str] = []
        for step in sorted(listed, reverse=True):
            if step in self._ignored or (at_most is not None and step > at_most):
                continue
            name = checkpoint_name(step)
            try:
                return self._examined(name, listed[step])
            except CheckpointDamaged as error:
                self._say(f"checkpoint {name} is refused: {error}")
                if CHECKPOINT_MARKER in listed[step]:
                    damaged.append(f"{name} ({error})")
        if damaged:
            raise CheckpointUnusable(
                f"no checkpoint of {self._objects.uri} can be loaded; damaged: "
                f"{', '.join(damaged)}; restore the files, or start again under another run name"
            )
        return None

    def complete_steps(self) -> set[int]:
        """Steps that have a marker and are not ignored."""
        return self._complete_steps(self._listed())

    def _complete_steps(self, listed: Mapping[int, Sizes]) -> set[int]:
        return {
            step
            for step, sizes in listed.items()
            if CHECKPOINT_MARKER in sizes and step not in self._ignored
        }

    def ignore(self, step: int) -> None:
        """Never return this checkpoint again."""
        self._ignored.add(step)

    def _examined(self, name: str, sizes: Sizes) -> CheckpointInfo:
        """Read its marker; ``CheckpointDamaged`` if it is torn or a file has the wrong size."""
        if CHECKPOINT_MARKER not in sizes:
            raise CheckpointDamaged(f"it is torn: there is no {CHECKPOINT_MARKER}")
        data = self._objects.get(f"{name}/{CHECKPOINT_MARKER}")
        info = CheckpointInfo.parse(data, folder=name)
        _refuse_incomplete(info.files, sizes)
        return info

    def remove(self, step: int, names: Set[str] | None = None) -> None:
        """Delete files of a checkpoint, all by default, whatever has left them."""
        self._remove(step, self.leftovers(step).keys() if names is None else names)

    def leftovers(self, step: int) -> dict[str, str]:
        """Names and etags of what a killed attempt or a failed save has left of a checkpoint."""
        prefix = f"{checkpoint_name(step)}/"
        return {entry.key.removeprefix(prefix): entry.etag for entry in self._objects.list(prefix)}

    def withdraw(self, step: int, found: Mapping[str, str]) -> dict[str, str]:
        """Make the checkpoint incomplete before its files are replaced; returns their etags.

        A random token replaces the marker, also where there was none. A job that was replaced since
        holds the etag of its own token: it can neither complete the files of its successor nor
        bring back a checkpoint that has been deleted.
        """
        key = f"{checkpoint_name(step)}/{CHECKPOINT_MARKER}"
        etag = found.get(CHECKPOINT_MARKER)
        token = secrets.token_hex(WITHDRAWN_BYTES // 2).encode()
        withdrawn = self._objects.put(key, token, if_absent=etag is None, if_match=etag)
        return {**found, CHECKPOINT_MARKER: withdrawn}

    def commit(
        self,
        step: int,
        meta: Mapping[str, Any],
        files: Mapping[str, FileSum],
        replaced: Mapping[str, str],
    ) -> CheckpointInfo:
        """Mark the checkpoint made of ``files`` complete; ``replaced`` is from ``withdraw``.

        Raises ``CheckpointDamaged`` if they are not in storage as written, ``PreconditionFailed``
        if another job has completed this step meanwhile.
        """
        info = CheckpointInfo(step=step, meta=meta, files=files, time=now_utc())
        _refuse_incomplete(files, self._sizes(info.name))
        marker = f"{info.name}/{CHECKPOINT_MARKER}"
        try:
            # Conditional, so that only one of two jobs that both claim the run wins.
            self._objects.put(marker, info.dump(), if_match=replaced[CHECKPOINT_MARKER])
        except PreconditionFailed:
            raise PreconditionFailed(
                f"another job has completed {info.name} meanwhile; stop one of the two jobs that "
                "train this run"
            ) from None
        self._ignored.discard(step)
        return info

    def _sizes(self, name: str) -> Sizes:
        """Sizes of one folder's files."""
        entries = self._objects.list(f"{name}/")
        return {entry.key.removeprefix(f"{name}/"): entry.size for entry in entries}

    def clean(self) -> list[int]:
        """Delete checkpoints that need not be kept; returns their steps."""
        listed = self._listed()
        complete = self._complete_steps(listed)
        gone = checkpoints_to_delete(
            complete=complete,
            torn=set(listed) - complete,
            keep_last=self._keep_last,
            keep_every=self._keep_every,
        )
        for step in gone:
            self._remove(step, self.leftovers(step).keys())
        return gone

    def _remove(self, step: int, names: Set[str]) -> None:
        # The marker goes first, so that the checkpoint is never complete and wrong.
        folder = checkpoint_name(step)
        if CHECKPOINT_MARKER in names:
            self._objects.delete([f"{folder}/{CHECKPOINT_MARKER}"])
        self._objects.delete(f"{folder}/{name}" for name in names if name != CHECKPOINT_MARKER)


def checkpoints_to_delete(
    *, complete: Collection[int], torn: Collection[int], keep_last: int, keep_every: int
) -> list[int]:
    """Steps whose checkpoints are to be deleted, oldest first.

    The ``keep_last`` newest complete ones and every multiple of ``keep_every`` (0: none) are kept.
    Torn ones go once a newer one is complete; the newest of all, if torn, may still be in progress.
    """
    assert keep_last >= 1, keep_last
    ordered = sorted(complete)
    kept = set(ordered[-keep_last:])
    if keep_every:
        kept |= {step for step in ordered if step % keep_every == 0}
    newest = ordered[-1] if ordered else -1
    old_torn = {step for step in torn if step < newest}
    return sorted((set(ordered) - kept) | old_torn)


def _refuse_incomplete(files: Mapping[str, FileSum], sizes: Sizes) -> None:
    """Raise ``CheckpointDamaged`` unless all ``files``, the metadata among them, are in storage."""
    if METADATA not in files:
        raise CheckpointDamaged(f"{METADATA} is not among its files")
    for name, known in files.items():
        if name not in sizes:
            raise CheckpointDamaged(f"{name} is missing")
        if sizes[name] != known.num_bytes:
            raise CheckpointDamaged(
                f"{name} has {sizes[name]} bytes, {known.num_bytes} were written"
            )
