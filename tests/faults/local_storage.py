"""Local-disk errors injected below ``LocalObjects``, and the plan that both storages read."""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training.storage.local import LocalObjects

ENV_PLAN = "FAULTS_PLAN"
ENV_NODE = "FAULTS_NODE"


def is_hit(plan: Path, key: str, node: str, number: int) -> str | None:
    """Return the kind of fault for a request, if any."""
    try:
        faults = json.loads(plan.read_text())
    except (OSError, ValueError):
        return None
    now = time.monotonic()
    for fault in faults:
        if (
            now < fault["until_s"]
            and fnmatch.fnmatchcase(key, fault["keys"])
            and fault["node"] in ("", node)
            and number % 10 < fault["tenths"]
        ):
            return str(fault["kind"])
    return None


def install() -> None:
    """Apply the plan to ``LocalObjects`` of this process and its forks."""
    new_file: Any = LocalObjects._new_file
    found: Any = LocalObjects._convert_missing
    count = iter(range(1 << 62))

    def meet(key: str) -> None:
        plan = os.environ.get(ENV_PLAN)
        if plan and is_hit(Path(plan), key, os.environ.get(ENV_NODE, ""), next(count)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), key)

    @contextmanager
    def faulty_file(self: LocalObjects, target: Path) -> Iterator[Path]:
        meet(str(target))
        with new_file(self, target) as part:
            yield part

    @contextmanager
    def faulty_find(self: LocalObjects, key: str) -> Iterator[None]:
        meet(str(self._path(key)))
        with found(self, key):
            yield

    LocalObjects._new_file = faulty_file  # type: ignore[method-assign]
    LocalObjects._convert_missing = faulty_find  # type: ignore[method-assign]
