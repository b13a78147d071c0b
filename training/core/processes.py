"""Linux process control: die with the parent, find and kill a launcher's processes."""

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
_prctl = ctypes.CDLL(None, use_errno=True).prctl
"""Looked up at import: between fork and exec another thread may hold the loader's lock."""


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies (prctl(2), PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:  # it is already dead
        os.kill(os.getpid(), signal.SIGKILL)


def start_process(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in its own session; it dies with this process.

    Safe with other threads, such as those that access the bucket: between fork and exec the child
    only makes the system calls of ``die_with_parent``, which take no locks.
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
    _prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def forbid_new_privileges() -> None:
    """Prevent this process and its descendants from gaining root through setuid programs."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def stat_fields(pid: int, proc: Path = Path("/proc")) -> list[str] | None:
    """Return the fields of proc(5)'s stat from the state on; None if there is no such process."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may itself contain spaces and parentheses.
    return stat[stat.rindex(b")") + 2 :].decode().split()


def parents(proc: Path = Path("/proc")) -> dict[int, int]:
    """Map the ID of every process to that of its parent."""
    stats = {pid: stat_fields(pid, proc) for pid in _pids(proc)}
    return {pid: int(fields[1]) for pid, fields in stats.items() if fields is not None}


def _pids(proc: Path) -> list[int]:
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]


def descendants(pid: int, parent_of: Mapping[int, int]) -> list[int]:
    """Return the IDs of all descendants of a process, given every process's parent."""
    processes = [pid]
    for process in processes:  # grows during iteration
        processes += [child for child, parent in parent_of.items() if parent == process]
    return processes[1:]


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    fields = stat_fields(pid)
    return fields is None or fields[0] in ("Z", "X")


def find_marked(variable: str, value: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the IDs of the processes started with ``variable=value`` in their environment.

    Process groups and parents would not identify all of them, because torchrun starts each worker
    in its own session and workers briefly outlive a killed torchrun.
    """
    needle = f"{variable}={value}".encode()
    pids = []
    for pid in _pids(proc):
        try:
            environment = (proc / str(pid) / "environ").read_bytes()
        except OSError:
            continue  # it has ended or belongs to another user
        if needle in environment.split(b"\0"):
            pids.append(pid)
    return pids


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
    """Kill marked processes for up to ``within_s``; return those that remain, if any."""
    deadline = time.monotonic() + within_s
    num_empty_scans = 0
    while True:
        remaining = [pid for pid in find_marked(variable, value) if not is_gone(pid)]
        # During exec a process briefly has no environment, so scan twice.
        num_empty_scans = 0 if remaining else num_empty_scans + 1
        if num_empty_scans == 2 or time.monotonic() > deadline:
            return remaining
        for pid in remaining:
            signal_quietly(pid, signal.SIGKILL)
        heartbeat()
        time.sleep(0.02)
