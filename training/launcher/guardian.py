"""A watchdog on each node that kills the node's processes when the launcher cannot.

A killed launcher leaves workers behind; a frozen one (SIGSTOP, a hung system call) keeps the job
running, and billed, forever, because Batch waits for the main node. The guardian runs in its own
session, out of reach of signals to the launcher's process group.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from training.core.heartbeat import HeartbeatClock
from training.core.processes import kill_marked, name_process, signal_quietly
from training.core.progress import ENV_SCRATCH, ENV_SNAPSHOTS

_CONFIRM_S = 1.0
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger(__name__)


class Guardian:
    """The launcher's handle: call ``heartbeat`` often and ``release`` at the end."""

    def __init__(self, *, scratch: Path, silence_s: float) -> None:
        """Start a guardian that kills the node's processes if heartbeats stop for ``silence_s``."""
        self._scratch = scratch
        self._silence_s = silence_s
        self._clock = HeartbeatClock(silence_s)
        self._start()

    def _start(self) -> None:
        read_end, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        launcher = os.getpid()
        sys.stdout.flush()
        # Block these signals: one could kill the guardian before it ignores them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _guard(read_end, launcher, self._scratch, self._silence_s)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
        os.close(read_end)

    def heartbeat(self) -> None:
        """Send a rate-limited heartbeat; restart a killed guardian."""
        if not self._clock.due(time.monotonic()):
            return
        try:
            os.write(self._pipe, b".")
        except BlockingIOError:
            return  # harmless: the guardian is frozen, not the launcher
        except BrokenPipeError:
            os.close(self._pipe)
            os.waitpid(self._pid, 0)
            self._start()

    def release(self) -> None:
        """Report an orderly exit of the launcher and wait for the guardian to exit."""
        os.close(self._pipe)
        for _ in range(200):
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                return
            select.select([], [], [], 0.01)
        signal_quietly(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _guard(read_end: int, launcher: int, scratch: Path, silence_s: float) -> None:
    """Watch the launcher; runs in the forked process."""
    os.setsid()
    name_process("guardian")
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    # Close the inherited write end, which would hide the launcher's death from the guardian, and
    # inherited sockets, which would hide it from the peers.
    os.closerange(3, read_end)
    os.closerange(read_end + 1, os.sysconf("SC_OPEN_MAX"))
    strikes = 0
    while True:
        # Check twice: when a paused machine resumes, both processes wake at the same time.
        ready, _, _ = select.select([read_end], [], [], _CONFIRM_S if strikes else silence_s)
        if ready:
            if not os.read(read_end, 4096):
                break
            strikes = 0
            continue
        strikes += 1
        if strikes == 2:
            signal_quietly(launcher, signal.SIGKILL)
            with contextlib.suppress(OSError):  # the log's reader may have exited
                log.info(
                    "guardian: the launcher sent no heartbeat for %g s; killing this node's "
                    "processes",
                    silence_s + _CONFIRM_S,
                )
            break
    # Kill the snapshot process first, so that it never copies files that killed workers left
    # incomplete.
    kill_marked(ENV_SNAPSHOTS, str(scratch))
    kill_marked(ENV_SCRATCH, str(scratch))
    shutil.rmtree(scratch, ignore_errors=True)
