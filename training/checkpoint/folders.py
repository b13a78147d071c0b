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
    MarkedFile,
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

    def _list(self) -> dict[int, Sizes]:
        """Return the files of every checkpoint, including torn ones, by step."""
        files: dict[int, Sizes] = {}
        for entry in self._objects.list("step-"):
            folder, _, name = entry.key.partition("/")
            is_withdrawn = name == CHECKPOINT_MARKER and entry.size == WITHDRAWN_BYTES
            if name and not is_withdrawn and (match := _FOLDER.fullmatch(folder)):
                files.setdefault(int(match[1]), {})[name] = entry.size
        return files

    def newest(self, *, at_most: int | None = None) -> CheckpointInfo | None:
        """Return the newest complete checkpoint that is not ignored; report skipped ones.

        Raises ``CheckpointUnusable`` if all complete ones are damaged: returning None would make
        the caller start over from the first step.
        """
        listed = self._list()
        damaged: list[str] = []
        for step in sorted(listed, reverse=True):
            if step in self._ignored or (at_most is not None and step > at_most):
                continue
            name = checkpoint_name(step)
            try:
                return self._examine(name, listed[step])
            except CheckpointDamaged as error:
                self._say(f"skipping checkpoint {name}: {error}")
                if CHECKPOINT_MARKER in listed[step]:
                    damaged.append(f"{name} ({error})")
        if damaged:
            raise CheckpointUnusable(
                f"no checkpoint of {self._objects.uri} can be loaded; damaged: "
                f"{', '.join(damaged)}; restore the files, or start over under another run name"
            )
        return None

    def complete_steps(self) -> set[int]:
        """Return the steps that have a marker and are not ignored."""
        return self._complete_steps(self._list())

    def _complete_steps(self, listed: Mapping[int, Sizes]) -> set[int]:
        return {
            step
            for step, sizes in listed.items()
            if CHECKPOINT_MARKER in sizes and step not in self._ignored
        }

    def ignore(self, step: int) -> None:
        """Never return this checkpoint again."""
        self._ignored.add(step)

    def _examine(self, name: str, sizes: Sizes) -> CheckpointInfo:
        """Read the marker; raise ``CheckpointDamaged`` if it or a file is missing or invalid."""
        if CHECKPOINT_MARKER not in sizes:
            raise CheckpointDamaged(f"it is incomplete: there is no {CHECKPOINT_MARKER}")
        data = self._objects.get(f"{name}/{CHECKPOINT_MARKER}")
        info = CheckpointInfo.parse(data, folder=name)
        _refuse_incomplete(info.files, sizes)
        return info

    def remove(self, step: int, names: Set[str] | None = None) -> None:
        """Delete files of a checkpoint, complete or not; all of them by default."""
        names = self.list_files(step).keys() if names is None else names
        # Delete the marker first, so the checkpoint never looks complete with files missing.
        folder = checkpoint_name(step)
        if CHECKPOINT_MARKER in names:
            self._objects.delete([f"{folder}/{CHECKPOINT_MARKER}"])
        self._objects.delete(f"{folder}/{name}" for name in names if name != CHECKPOINT_MARKER)

    def list_files(self, step: int) -> dict[str, str]:
        """Return the ETag of every file of a checkpoint, complete or not, by name."""
        prefix = f"{checkpoint_name(step)}/"
        return {entry.key.removeprefix(prefix): entry.etag for entry in self._objects.list(prefix)}

    def withdraw(self, step: int, files: Mapping[str, str]) -> dict[str, str]:
        """Mark the checkpoint incomplete before its files are replaced; return their ETags.

        A random token takes the marker's place, whether or not there was one. A job that is later
        replaced only has the ETag of its own token, so it can neither complete its successor's
        files nor restore a deleted checkpoint.
        """
        key = f"{checkpoint_name(step)}/{CHECKPOINT_MARKER}"
        etag = files.get(CHECKPOINT_MARKER)
        token = secrets.token_hex(WITHDRAWN_BYTES // 2).encode()
        withdrawn = self._objects.put(key, token, if_absent=etag is None, if_match=etag)
        return {**files, CHECKPOINT_MARKER: withdrawn}

    def commit(
        self,
        step: int,
        meta: Mapping[str, Any],
        files: Mapping[str, MarkedFile],
        replaced: Mapping[str, str],
    ) -> CheckpointInfo:
        """Write the marker, which lists ``files``; ``replaced`` comes from ``withdraw``.

        Raises ``CheckpointDamaged`` if the files are not in storage as written, and
        ``PreconditionFailed`` if another job has since completed this step.
        """
        info = CheckpointInfo(step=step, meta=meta, files=files, time=now_utc())
        entries = self._objects.list(f"{info.name}/")
        sizes = {entry.key.removeprefix(f"{info.name}/"): entry.size for entry in entries}
        _refuse_incomplete(files, sizes)
        marker = f"{info.name}/{CHECKPOINT_MARKER}"
        try:
            # Conditional, so that only one of two competing jobs wins.
            self._objects.put(marker, info.dump(), if_match=replaced[CHECKPOINT_MARKER])
        except PreconditionFailed:
            raise PreconditionFailed(
                f"another job completed {info.name} while this one was saving it; stop one of the "
                "two jobs that train this run"
            ) from None
        self._ignored.discard(step)
        return info

    def clean(self) -> list[int]:
        """Delete expired checkpoints; return their steps."""
        listed = self._list()
        complete = self._complete_steps(listed)
        expired = checkpoints_to_delete(
            complete=complete,
            torn=set(listed) - complete,
            keep_last=self._keep_last,
            keep_every=self._keep_every,
        )
        for step in expired:
            self.remove(step)
        return expired


def checkpoints_to_delete(
    *, complete: Collection[int], torn: Collection[int], keep_last: int, keep_every: int
) -> list[int]:
    """Return the steps of checkpoints to delete, oldest first.

    Retains the ``keep_last`` newest complete ones and every multiple of ``keep_every`` (0: none).
    Torn ones are deleted once a newer one is complete; until then the save may be in progress.
    """
    assert keep_last >= 1, keep_last
    ordered = sorted(complete)
    kept = set(ordered[-keep_last:])
    if keep_every:
        kept |= {step for step in ordered if step % keep_every == 0}
    newest = ordered[-1] if ordered else -1
    old_torn = {step for step in torn if step < newest}
    return sorted((set(ordered) - kept) | old_torn)


def _refuse_incomplete(files: Mapping[str, MarkedFile], sizes: Sizes) -> None:
    """Raise ``CheckpointDamaged`` unless all ``files``, including the metadata, are in storage."""
    if METADATA not in files:
        raise CheckpointDamaged(f"{METADATA} is not among its files")
    for name, known in files.items():
        if name not in sizes:
            raise CheckpointDamaged(f"{name} is missing")
        if sizes[name] != known.bytes:
            raise CheckpointDamaged(
                f"{name} has {sizes[name]} bytes, but {known.bytes} were written"
            )
