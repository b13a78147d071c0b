"""The guardian kills a launcher's leftover processes, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.limits import scaled

# A launcher that lives for `life` seconds, with one worker in its own session.
LAUNCHER = """
import os, pathlib, subprocess, sys, time
from training.launcher.guardian import Guardian
scratch, silence, life = pathlib.Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
guardian = Guardian(scratch=scratch, silence_s=silence)
subprocess.Popen(["sleep", "600"], env={**os.environ, "TRAINIUM_SCRATCH": str(scratch)},
                 start_new_session=True, stdout=subprocess.DEVNULL)
print(guardian._pid, flush=True)
end = time.monotonic() + life
while time.monotonic() < end:
    guardian.heartbeat()
    time.sleep(0.05)
guardian.release()
print("released", flush=True)
"""


def start(scratch: Path, *, silence_s: float = 1, life_s: float = 60) -> subprocess.Popen[str]:
    scratch.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(scratch), str(silence_s), str(life_s)],
        stdout=subprocess.PIPE,
        text=True,
    )


def workers(scratch: Path) -> list[int]:
    from training.core.processes import find_marked

    return find_marked("TRAINIUM_SCRATCH", str(scratch))


def wait_until_ended(scratch: Path) -> None:
    deadline = time.monotonic() + scaled(10)
    while (workers(scratch) or scratch.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (workers(scratch), scratch.exists()) == ([], False)


def first_line(launcher: subprocess.Popen[str]) -> str:
    assert launcher.stdout is not None
    line = launcher.stdout.readline()
    time.sleep(0.1)  # the worker's exec has happened, so it can be found
    return line


def test_a_short_freeze_is_tolerated(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    with start(scratch, silence_s=2, life_s=4) as launcher:
        first_line(launcher)
        launcher.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        launcher.send_signal(signal.SIGCONT)
        output = launcher.communicate()[0]

    assert (output, launcher.returncode) == ("released\n", 0)


def test_signals_that_end_launchers_do_not_end_the_guardian(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    with start(scratch) as launcher:
        guardian = int(first_line(launcher))
        os.kill(guardian, signal.SIGTERM)
        launcher.kill()

    wait_until_ended(scratch)


def test_a_killed_guardian_is_replaced(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    with start(scratch) as launcher:
        os.kill(int(first_line(launcher)), signal.SIGKILL)
        time.sleep(1)
        launcher.send_signal(signal.SIGSTOP)

    wait_until_ended(scratch)
    assert launcher.returncode == -signal.SIGKILL


def test_a_frozen_guardian_does_not_delay_an_orderly_exit(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    with start(scratch, life_s=1) as launcher:
        os.kill(int(first_line(launcher)), signal.SIGSTOP)
        output = launcher.communicate(timeout=scaled(20))[0]

    for pid in workers(scratch):
        os.kill(pid, signal.SIGKILL)
    assert (output, launcher.returncode) == ("released\n", 0)
