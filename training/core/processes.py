"""Linux process control: die with the parent, find and end what a launcher started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_NAME = 15
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies (prctl(2), PR_SET_PDEATHSIG)."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:  # it has already died
        os.kill(os.getpid(), signal.SIGKILL)


def start_process(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which dies with this one.

    This one must have a single thread, so that code between fork and exec is safe.
    """
    parent = os.getpid()
    return subprocess.Popen(
        command,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent),
    )


def name_process(name: str) -> None:
    """Set the name shown by ps and top; at most 15 characters."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def forbid_new_privileges() -> None:
    """Keep this process and all it starts from becoming root through setuid programs."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def process_state(pid: int, proc: Path = Path("/proc")) -> str | None:
    """State letter from proc(5) (``R``, ``S``, ``T``, ``Z``, ...), or None if it does not exist."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may itself contain spaces and parentheses.
    return stat[stat.rindex(b")") + 2 :][:1].decode()


def parents(proc: Path = Path("/proc")) -> dict[int, int]:
    """Map every process to its parent."""
    found = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_bytes()
        except OSError:
            continue  # it has ended
        found[int(entry.name)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return found


def is_gone(pid: int) -> bool:
    """Tell if a process has ended, reaped or not."""
    return process_state(pid) in (None, "Z", "X")


def marked(variable: str, value: str, proc: Path = Path("/proc")) -> list[int]:
    """Find processes that were started with ``variable=value`` in their environment.

    torchrun starts workers in sessions of their own, and they outlive a killed torchrun for a
    moment, so neither process group nor parentage finds them all. The marker does.
    """
    needle = f"{variable}={value}".encode()
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # it has ended or belongs to another user
        if needle in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def signal_quietly(pid: int, number: signal.Signals) -> None:
    """Send a signal, ignoring a process that has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill_marked(
    variable: str,
    value: str,
    *,
    within_s: float = 5.0,
    heartbeat: Callable[[], None] = lambda: None,
) -> list[int]:
    """Kill marked processes until none is left; returns those stuck in kernel waits."""
    deadline = time.monotonic() + within_s
    num_empty_scans = 0
    while True:
        left = [pid for pid in marked(variable, value) if not is_gone(pid)]
        # During exec a process briefly has no environment, so look twice.
        num_empty_scans = 0 if left else num_empty_scans + 1
        if num_empty_scans == 2 or time.monotonic() > deadline:
            return left
        for pid in left:
            signal_quietly(pid, signal.SIGKILL)
        heartbeat()
        time.sleep(0.02)
