"""Processes of a launch are found and killed in any session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from tests.support.limits import scaled
from training.core.processes import find_marked, is_gone, kill_marked, signal_quietly, stat_fields


def sleeper(**env: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"]
    process = subprocess.Popen(
        command, env=os.environ | env, start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()  # exec has happened, so its environment is its own
    return process


def test_no_new_privileges_applies_to_child_processes() -> None:
    code = """\
from training.core.processes import forbid_new_privileges
forbid_new_privileges()
import subprocess
subprocess.run(["grep", "NoNewPrivs", "/proc/self/status"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["NoNewPrivs:", "1"]


def test_marked_processes_are_found_in_other_sessions_and_killed_even_if_frozen() -> None:
    mark = uuid.uuid4().hex
    with sleeper(MARK=mark) as ours, sleeper(MARK=f"{mark}0") as other:
        ours.send_signal(signal.SIGSTOP)
        found = find_marked("MARK", mark)
        left = kill_marked("MARK", mark)
        spared = other.poll() is None
        other.kill()

    assert (found, left) == ([ours.pid], [])
    assert ours.returncode == -signal.SIGKILL
    assert spared


def test_a_zombie_counts_as_exited() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + scaled(10)
    while not is_gone(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)

    assert stat_fields(process.pid) is not None
    process.wait()
    assert is_gone(process.pid)


def test_a_name_with_parentheses_does_not_break_state_parsing(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_bytes(b"7 (a) R (b) T 1 7 7 0")

    assert stat_fields(7, tmp_path) == ["T", "1", "7", "7", "0"]


def test_signalling_an_exited_process_is_not_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass

    signal_quietly(process.pid, signal.SIGTERM)
