"""A program's home folder on its node, with the same path in every attempt.

Programs store absolute paths in checkpoints: if these change, litdata refuses to resume, and
Lightning forgets which checkpoint was best. So the folder is named after the run, whereas the
launcher's scratch folder has a random name.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from training.core.contract import NodeContract
from training.core.processes import find_marked, is_gone, stat_fields
from training.core.progress import ENV_SCRATCH, ENV_SNAPSHOTS
from training.program.settings import HOME_LINK

_OWNER = "launch.json"
_WAIT_S = 10.0
"""Time for a killed launcher's processes to exit; its guardian needs about a second."""
_TICK_S = 0.05


def acquire_home(
    scratch: Path, node: NodeContract, *, shares_machine: bool, heartbeat: Callable[[], None]
) -> Path:
    """Create the folder and link it from ``scratch``; choose another name if it is in use.

    Args:
        shares_machine: True if several nodes run on this machine, so each needs its own folder.
    """
    new_home = scratch / "home-to-be"
    new_home.mkdir(mode=0o700)
    owner = {"pid": os.getpid(), "started": _start_ticks(os.getpid()), "scratch": str(scratch)}
    (new_home / _OWNER).write_text(json.dumps(owner))
    for home in _candidates(node, shares_machine):
        _clear(home, scratch, heartbeat)
        try:
            new_home.rename(home)  # atomic; fails if the target exists
        except OSError:
            continue
        (scratch / HOME_LINK).symlink_to(home)
        return home
    raise AssertionError("unreachable: the candidates are unlimited")


def home_of(scratch: Path) -> Path | None:
    """Return the home folder, if one was acquired."""
    link = scratch / HOME_LINK
    return link.readlink() if link.is_symlink() else None


def _candidates(node: NodeContract, shares_machine: bool) -> Iterator[Path]:
    name = f"trainium-{node.run}" + (f"-node-{node.node_index}" if shares_machine else "")
    for number in count(1):
        yield Path(tempfile.gettempdir()) / (name if number == 1 else f"{name}-{number}")


def _clear(home: Path, scratch: Path, heartbeat: Callable[[], None]) -> None:
    """Move a home folder out of the way if its launch ended without cleaning up.

    Waits for the processes of that launch, and gives up if they do not exit.
    """
    try:
        owner = json.loads((home / _OWNER).read_text())
        pid, started, former_scratch = int(owner["pid"]), owner["started"], str(owner["scratch"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # it does not exist or belongs to no launch
    if not is_gone(pid) and _start_ticks(pid) == started:
        return
    deadline = time.monotonic() + _WAIT_S
    while any(not is_gone(process) for process in _processes_of(former_scratch)):
        if time.monotonic() > deadline:
            return
        heartbeat()
        time.sleep(_TICK_S)
    with suppress(OSError):
        home.rename(scratch / f"former-{home.name}")


def _processes_of(scratch: str) -> list[int]:
    return [*find_marked(ENV_SCRATCH, scratch), *find_marked(ENV_SNAPSHOTS, scratch)]


def _start_ticks(pid: int) -> str | None:
    """Return a process's start time in ticks since boot (proc(5)), to detect a reused PID."""
    fields = stat_fields(pid)
    return None if fields is None else fields[19]
