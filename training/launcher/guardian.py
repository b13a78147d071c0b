"""A second process on each node, which shuts the node down when the launcher cannot.

A launcher that is killed leaves workers behind; one that is frozen (SIGSTOP, a hung kernel call)
would keep the job running, and billed, forever, because Batch waits for the main node. The
guardian runs in its own session, so that signals to the launcher's group do not reach it.
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

log = logging.getLogger(__name__)


class Guardian:
    """The launcher's handle: call ``heartbeat`` often and ``release`` at the end."""

    def __init__(self, *, scratch: Path, silence_s: float) -> None:
        self._scratch = scratch
        self._silence_s = silence_s
        self._clock = HeartbeatClock(silence_s)
        self._pid = 0
        self._pipe = -1

    @classmethod
    def open(cls, *, scratch: Path, silence_s: float) -> Guardian:
        """Start a guardian that ends this node after ``silence_s`` without a heartbeat."""
        guardian = cls(scratch=scratch, silence_s=silence_s)
        guardian._start()
        return guardian

    def _start(self) -> None:
        read_end, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        launcher = os.getpid()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _guard(read_end, launcher, self._scratch, self._silence_s)
            finally:
                os._exit(0)
        os.close(read_end)

    def heartbeat(self) -> None:
        """Report that the launcher is alive; cheap. Replaces a guardian that was killed."""
        if not self._clock.due(time.monotonic()):
            return
        try:
            os.write(self._pipe, b".")
        except BlockingIOError:
            return  # the guardian is frozen, but the launcher is not, so nothing is lost
        except BrokenPipeError:
            os.close(self._pipe)
            os.waitpid(self._pid, 0)
            self._start()

    def release(self) -> None:
        """Report an orderly end of the launcher; returns when the guardian is gone."""
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
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # An inherited write end would hide the launcher's death, an inherited link its peers' loss.
    os.closerange(3, read_end)
    os.closerange(read_end + 1, os.sysconf("SC_OPEN_MAX"))
    strikes = 0
    while True:
        # After a pause of the whole machine both processes wake together, hence a second look.
        ready, _, _ = select.select([read_end], [], [], _CONFIRM_S if strikes else silence_s)
        if ready:
            if not os.read(read_end, 4096):
                break
            strikes = 0
            continue
        strikes += 1
        if strikes == 2:
            signal_quietly(launcher, signal.SIGKILL)
            with contextlib.suppress(OSError):  # the reader of the log may be gone
                log.info(
                    "guardian: the launcher was silent for %g s; this node is killed",
                    silence_s + _CONFIRM_S,
                )
            break
    # First: it must not take what killed workers leave for whole.
    kill_marked(ENV_SNAPSHOTS, str(scratch))
    kill_marked(ENV_SCRATCH, str(scratch))
    shutil.rmtree(scratch, ignore_errors=True)
