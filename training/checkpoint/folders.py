"""The checkpoints of a run as they lie in storage; one process works on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
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
from trainium_catalogue.contract import CHECKPOINT_MARKER, checkpoint_name

_FOLDER = re.compile(r"step-(\d{8,})")
Sizes = dict[str, int]
"""Bytes of a folder's files, by name."""


class Folders:
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
        """Every checkpoint there is, torn ones included, by step."""
        found: dict[int, Sizes] = {}
        for entry in self._objects.list("step-"):
            folder, _, name = entry.key.partition("/")
            if name and (match := _FOLDER.fullmatch(folder)):
                found.setdefault(int(match[1]), {})[name] = entry.size
        return found

    def newest(self, *, at_most: int | None = None) -> CheckpointInfo | None:
        """The newest complete one that has not been refused; says what is wrong with newer ones.

        ``CheckpointUnusable`` when there were complete ones and none is whole any more: whoever
        took that for none would train from the first step again.
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
        """Steps that have a marker and have not been refused."""
        return self._complete_steps(self._listed())

    def _complete_steps(self, listed: Mapping[int, Sizes]) -> set[int]:
        return {
            step
            for step, sizes in listed.items()
            if CHECKPOINT_MARKER in sizes and step not in self._ignored
        }

    def ignore(self, step: int) -> None:
        """Never offer it again."""
        self._ignored.add(step)

    def _examined(self, name: str, sizes: Sizes) -> CheckpointInfo:
        """Its marker; ``CheckpointDamaged`` if it is torn or a file has another size."""
        if CHECKPOINT_MARKER not in sizes:
            raise CheckpointDamaged(f"it is torn: there is no {CHECKPOINT_MARKER}")
        data = self._objects.get(f"{name}/{CHECKPOINT_MARKER}")
        info = CheckpointInfo.parse(data, folder=name)
        _refuse_incomplete(info.files, sizes)
        return info

    def remove(self, step: int) -> None:
        """Delete what there is of a checkpoint, as a killed attempt or a failed save has left it.

        The marker goes before the files, so that it is never complete and wrong.
        """
        self._remove(step, self._listed().get(step, {}))

    def commit(
        self, step: int, meta: Mapping[str, Any], files: Mapping[str, FileSum]
    ) -> CheckpointInfo:
        """Declare the checkpoint complete that consists of ``files``.

        ``CheckpointDamaged`` if they do not lie there as they were written; ``PreconditionFailed``
        if somebody else has completed one of this step meanwhile.
        """
        info = CheckpointInfo(step=step, meta=meta, files=files, time=now_utc())
        _refuse_incomplete(files, self._sizes(info.name))
        marker = f"{info.name}/{CHECKPOINT_MARKER}"
        try:
            # Storage sees to it that of two jobs that both take the run for theirs one wins.
            self._objects.put(marker, info.dump(), if_absent=True)
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
        """Delete what need not be kept; returns its steps."""
        listed = self._listed()
        complete = self._complete_steps(listed)
        gone = checkpoints_to_delete(
            complete=complete,
            torn=set(listed) - complete,
            keep_last=self._keep_last,
            keep_every=self._keep_every,
        )
        for step in gone:
            self._remove(step, listed[step])
        return gone

    def _remove(self, step: int, names: Sizes) -> None:
        folder = checkpoint_name(step)
        if CHECKPOINT_MARKER in names:
            self._objects.delete([f"{folder}/{CHECKPOINT_MARKER}"])
        self._objects.delete(f"{folder}/{name}" for name in names if name != CHECKPOINT_MARKER)


def checkpoints_to_delete(
    *, complete: Collection[int], torn: Collection[int], keep_last: int, keep_every: int
) -> list[int]:
    """Steps whose checkpoints go, oldest first.

    Of the complete ones stay the ``keep_last`` newest and every multiple of ``keep_every`` (0:
    none). Torn ones go once a newer one is complete; a torn one that is the newest of all may
    still be being written.
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
    """``CheckpointDamaged`` unless all ``files`` lie there, and one that says what is where."""
    if METADATA not in files:
        raise CheckpointDamaged(f"{METADATA} is not among its files")
    for name, known in files.items():
        if name not in sizes:
            raise CheckpointDamaged(f"{name} is missing")
        if sizes[name] != known.num_bytes:
            raise CheckpointDamaged(
                f"{name} has {sizes[name]} bytes, {known.num_bytes} were written"
            )
