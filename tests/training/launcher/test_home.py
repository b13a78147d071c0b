"""A program's folder: the same path in every attempt, never one in use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.nodes import CPU_NODE
from training.core.progress import ENV_SCRATCH
from training.launcher.home import acquire_home, home_of

NODE = replace(CPU_NODE, run="my-run", node_index=1, num_nodes=2)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a machine's folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def launch(machine: Path, *, shares_machine: bool = False) -> tuple[Path, Path]:
    """Start a launch; return its scratch folder and home."""
    scratch = Path(tempfile.mkdtemp(dir=machine))
    home = acquire_home(scratch, NODE, shares_machine=shares_machine, heartbeat=lambda: None)
    return scratch, home


def end(scratch: Path) -> None:
    """End a launch cleanly."""
    home = home_of(scratch)
    assert home is not None
    shutil.rmtree(home)


def record_owner(home: Path, pid: int, scratch: Path) -> None:
    """Record that another process's launch, long ended, made the folder."""
    owner = {"pid": pid, "started": "1", "scratch": str(scratch)}
    (home / "launch.json").write_text(json.dumps(owner))


@pytest.fixture
def sleeper(machine: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker that outlives its launcher."""
    former = str(machine / "former")
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
        env={**os.environ, ENV_SCRATCH: former},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_the_next_attempt_has_the_same_path_and_none_of_the_files(machine: Path) -> None:
    scratch, home = launch(machine)
    assert home == machine / "trainium-my-run"
    assert home.stat().st_mode & 0o777 == 0o700
    (home / "code").mkdir()
    end(scratch)

    _, again = launch(machine)

    assert again == home
    assert not (again / "code").exists()


def test_leftovers_of_a_killed_launcher_are_moved_away(machine: Path) -> None:
    _, home = launch(machine)
    (home / "code").mkdir()
    record_owner(home, os.getpid(), machine / "former")  # a later process with the same PID

    _, again = launch(machine)

    assert again == home
    assert not (again / "code").exists()


def test_a_home_is_not_reused_before_a_killed_launchers_workers_exit(
    machine: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    _, home = launch(machine)
    record_owner(home, os.getpid(), machine / "former")
    scratch = Path(tempfile.mkdtemp(dir=machine))

    again = acquire_home(scratch, NODE, shares_machine=False, heartbeat=sleeper.kill)

    assert again == home
    assert sleeper.poll() is not None


def test_two_launches_at_a_time_have_two_folders(machine: Path) -> None:
    _, first = launch(machine)
    scratch, second = launch(machine)
    end(scratch)
    _, third = launch(machine)

    assert first.name == "trainium-my-run"
    assert second.name == third.name == "trainium-my-run-2"


def test_nodes_that_share_a_machine_have_their_own_folders(machine: Path) -> None:
    _, home = launch(machine, shares_machine=True)

    assert home.name == "trainium-my-run-node-1"


@pytest.mark.parametrize("is_link", [False, True])
def test_files_of_no_launch_are_left_alone(machine: Path, is_link: bool) -> None:
    theirs = machine / ("theirs" if is_link else "trainium-my-run")
    theirs.mkdir()
    (theirs / "file").touch()
    if is_link:
        (machine / "trainium-my-run").symlink_to(theirs)

    _, home = launch(machine)

    assert home.name == "trainium-my-run-2"
    assert (machine / "trainium-my-run" / "file").exists()
