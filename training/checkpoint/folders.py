"""The checkpoints of a run as they lie in storage; one process works on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from training.checkpoint.dcp import METADATA
from training.checkpoint.errors import CheckpointDamaged, CheckpointUnusable
from training.checkpoint.marker import CheckpointInfo, now
from training.checkpoint.retention import superfluous
from training.checkpoint.streams import FileSum
from training.storage import Objects, PreconditionFailed
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
        self._refused: set[int] = set()

    def listed(self) -> dict[int, Sizes]:
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
        listed = self.listed()
        damaged: list[str] = []
        for step in sorted(listed, reverse=True):
            if step in self._refused or (at_most is not None and step > at_most):
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

    def complete(self) -> set[int]:
        """Steps of which there is a marker, and that have not been refused."""
        return {
            step
            for step, sizes in self.listed().items()
            if CHECKPOINT_MARKER in sizes and step not in self._refused
        }

    def refuse(self, step: int) -> None:
        """Never offer it again."""
        self._refused.add(step)

    def _examined(self, name: str, sizes: Sizes) -> CheckpointInfo:
        """Its marker; ``CheckpointDamaged`` if it is torn or a file has another size."""
        if CHECKPOINT_MARKER not in sizes:
            raise CheckpointDamaged(f"it is torn: there is no {CHECKPOINT_MARKER}")
        data = self._objects.get(f"{name}/{CHECKPOINT_MARKER}")
        info = CheckpointInfo.parse(data, folder=name)
        _refuse_incomplete(info.files, sizes)
        return info

    def begin(self, step: int) -> Objects:
        """Make room for a new checkpoint; returns where its files go.

        A checkpoint of the same step, left by an attempt that was killed or refused as damaged,
        goes first: marker before files, so that it is never complete and wrong.
        """
        self._remove(step, self.listed().get(step, {}))
        return self._objects.at(checkpoint_name(step))

    def commit(
        self,
        step: int,
        meta: Mapping[str, Any],
        *,
        format: str,
        files: Mapping[str, FileSum],
    ) -> CheckpointInfo:
        """Declare the checkpoint complete that consists of ``files``.

        ``CheckpointDamaged`` if they do not lie there as they were written; ``PreconditionFailed``
        if somebody else has completed one of this step since ``begin``.
        """
        info = CheckpointInfo(step=step, format=format, time=now(), meta=meta, files=files)
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
        self._refused.discard(step)
        return info

    def _sizes(self, name: str) -> Sizes:
        """Of one folder's files."""
        entries = self._objects.list(f"{name}/")
        return {entry.key.removeprefix(f"{name}/"): entry.size for entry in entries}

    def clean(self) -> list[int]:
        """Delete what need not be kept; returns the steps of it."""
        listed = self.listed()
        complete = {
            step
            for step, sizes in listed.items()
            if CHECKPOINT_MARKER in sizes and step not in self._refused
        }
        gone = superfluous(
            complete=complete,
            torn=set(listed) - complete,
            keep_last=self._keep_last,
            keep_every=self._keep_every,
        )
        for step in gone:
            self._remove(step, listed[step])
        return gone

    def discard(self, step: int) -> None:
        """Remove what a failed save has left."""
        self._remove(step, self.listed().get(step, {}))

    def _remove(self, step: int, names: Sizes) -> None:
        folder = checkpoint_name(step)
        if CHECKPOINT_MARKER in names:
            self._objects.delete([f"{folder}/{CHECKPOINT_MARKER}"])
        self._objects.delete(f"{folder}/{name}" for name in names if name != CHECKPOINT_MARKER)


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
