"""The folder that a program lives in on its node, with the same path in every attempt.

Programs keep absolute paths in their checkpoints: litdata refuses to go on with data that have
moved, Lightning forgets which checkpoint was the best. So the folder is named after the run, not
at random as the launcher's scratch folder is.
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
from training.core.processes import is_gone, marked
from training.core.progress import ENV_SCRATCH, ENV_SNAPSHOTS
from training.program.settings import HOME_LINK

_OWNER = "launch.json"
_WAIT_S = 10.0
"""For what a killed launcher has left; its guardian needs about a second to end them."""
_TICK_S = 0.05


def take_home(
    scratch: Path, node: NodeContract, *, shares_machine: bool, heartbeat: Callable[[], None]
) -> Path:
    """Make the folder and link it in ``scratch``; another one if another launch lives there.

    Args:
        shares_machine: Several nodes run on this machine, so each needs a folder of its own.
    """
    made = scratch / "home-to-be"
    made.mkdir(mode=0o700)
    owner = {"pid": os.getpid(), "started": _started(os.getpid()), "scratch": str(scratch)}
    (made / _OWNER).write_text(json.dumps(owner))
    for home in _candidates(node, shares_machine):
        _clear(home, scratch, heartbeat)
        try:
            made.rename(home)  # atomic, and refused where anything is already
        except OSError:
            continue
        (scratch / HOME_LINK).symlink_to(home)
        return home
    raise AssertionError("numbers do not end")


def home_of(scratch: Path) -> Path | None:
    """Find the folder that was taken, if one was."""
    link = scratch / HOME_LINK
    return link.readlink() if link.is_symlink() else None


def _candidates(node: NodeContract, shares_machine: bool) -> Iterator[Path]:
    name = f"trainium-{node.run}" + (f"-node-{node.node_index}" if shares_machine else "")
    for number in count(1):
        yield Path(tempfile.gettempdir()) / (name if number == 1 else f"{name}-{number}")


def _clear(home: Path, scratch: Path, heartbeat: Callable[[], None]) -> None:
    """Move away what a launch has left that ended without removing it."""
    try:
        owner = json.loads((home / _OWNER).read_text())
        pid, started, former = int(owner["pid"]), owner["started"], str(owner["scratch"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # nothing is there, or not a launch's
    if not is_gone(pid) and _started(pid) == started:
        return
    deadline = time.monotonic() + _WAIT_S
    while any(not is_gone(left) for left in _left(former)):
        if time.monotonic() > deadline:
            return
        heartbeat()
        time.sleep(_TICK_S)
    with suppress(OSError):
        home.rename(scratch / f"former-{home.name}")


def _left(former: str) -> list[int]:
    return [*marked(ENV_SCRATCH, former), *marked(ENV_SNAPSHOTS, former)]


def _started(pid: int) -> str | None:
    """Start time of a process in ticks since boot (proc(5)), which tells it from a later one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat[stat.rindex(")") + 2 :].split()[19]
