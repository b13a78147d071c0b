"""When a folder counts as complete, and which of its files are captured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.program.snapshots.kept_nodes import Job, Node, checkpoints, paths, wait_until
from training.program.snapshots.folder import (
    FolderWatch,
    SteadyClock,
    open_for_writing,
    same_content,
    scan,
)
from training.program.snapshots.manifest import is_log, object_key


class _Time(SteadyClock):
    """A clock that a test sets; files still have the machine's times."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


def _grow(path: Path, count: int) -> None:
    with path.open("ab") as file:
        file.write(bytes(count))


def test_a_folder_is_quiescent_once_unchanged_for_long_enough(tmp_path: Path) -> None:
    clock, watch = _Time(), FolderWatch(tmp_path, quiet_s=2.0)
    watch.scan(clock)
    (tmp_path / "a").write_text("x")
    clock.at += 10
    watch.scan(clock)
    assert not watch.is_quiet and watch.changed_at == clock.at
    clock.at += 1.9
    watch.scan(clock)
    assert not watch.is_quiet
    clock.at += 0.2
    watch.scan(clock)
    assert watch.is_quiet and (watch.since, watch.until) == (1010.0, clock.at)


def _save(watch: FolderWatch, clock: _Time, name: str, pauses: tuple[float, ...]) -> list[bool]:
    """Write a file after each pause; return whether the folder counted as complete before each."""
    quiet = []
    for number, pause_s in enumerate(pauses):
        clock.at += pause_s
        watch.scan(clock)
        quiet.append(watch.is_quiet)
        path = watch.root / name / f"{number}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
        watch.scan(clock)
    return quiet


def test_the_quiescence_time_grows_with_pauses_within_a_save(tmp_path: Path) -> None:
    clock, watch = _Time(), FolderWatch(tmp_path, quiet_s=2.0, longest_quiet_s=30.0)
    watch.scan(clock)
    # Nothing is known yet about the first save of its kind.
    assert _save(watch, clock, "step-1", (100, 8, 29)) == [True, False, False]
    assert watch.quiet_s == 30
    assert _save(watch, clock, "other", (100, 29)) == [True, False]
    watch = FolderWatch(tmp_path, quiet_s=2.0, longest_quiet_s=30.0)
    watch.scan(clock)
    _save(watch, clock, "step-9", (100, 8))
    clock.at += 60
    watch.scan(clock)
    assert watch.quiet_s == 12
    assert _save(watch, clock, "step-2", (100, 10, 5)) == [True, False, False]
    assert watch.quiet_s == 15
    _save(watch, clock, "step-3", (100, 50))
    assert watch.quiet_s == 30
    watch.forget_pauses()
    _save(watch, clock, "step-4", (100, 50))
    assert watch.quiet_s == 2


def test_time_between_saves_is_not_a_pause_within_one(tmp_path: Path) -> None:
    clock, watch = _Time(), FolderWatch(tmp_path, quiet_s=2.0, longest_quiet_s=30.0)
    watch.scan(clock)
    for number in range(4):
        _save(watch, clock, f"step-{number}", (20, 1))  # a folder for each
        clock.at += 20
        (tmp_path / "latest.pt").write_text(f"{number}")
        watch.scan(clock)
    assert watch.quiet_s == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a").unlink(),
        lambda folder: (folder / "a").rename(folder / "b"),
        lambda folder: (folder / "a").chmod(0o600),
        lambda folder: os.utime(folder / "a", ns=(1, 1)),
        lambda folder: (folder / "c").mkdir(),
        lambda folder: (folder / "c").symlink_to("a"),
        lambda folder: _grow(folder / "a", 1),
    ],
)
def test_every_change_counts(tmp_path: Path, change: Callable[[Path], object]) -> None:
    clock, watch = _Time(), FolderWatch(tmp_path, quiet_s=2.0)
    (tmp_path / "a").write_text("x")
    watch.scan(clock)
    clock.at += 3
    watch.scan(clock)
    assert watch.is_quiet
    change(tmp_path)
    watch.scan(clock)
    assert not watch.is_quiet


@pytest.mark.parametrize(
    "path",
    ["train.log", "lightning_logs/version_0/metrics.csv", "a.jsonl", "events.out.tfevents.1.x"],
)
def test_logs_do_not_interfere(tmp_path: Path, path: str) -> None:
    assert is_log(path)
    clock, watch = _Time(), FolderWatch(tmp_path, quiet_s=2.0)
    watch.scan(clock)
    name = path.rpartition("/")[2]
    for _ in range(4):
        _grow(tmp_path / name, 100)
        clock.at += 1
        watch.scan(clock)
    assert watch.is_quiet and watch.changed_at == clock.at


def test_a_slowly_growing_file_is_a_log_and_a_checkpoint_is_not(
    tmp_path: Path,
) -> None:
    clock, watch = _Time(), FolderWatch(tmp_path, quiet_s=2.0)
    watch.scan(clock)
    quiet_at = []
    for _ in range(70):
        _grow(tmp_path / "train_output", 100)
        clock.at += 1
        watch.scan(clock)
        if watch.is_quiet:
            quiet_at.append(clock.at)
    assert quiet_at and quiet_at[0] >= 1060
    assert watch.is_log("train_output")
    for _ in range(70):
        _grow(tmp_path / "model.bin", 1_000_000)
        clock.at += 1
        watch.scan(clock)
    assert not watch.is_quiet and not watch.is_log("model.bin")


def _is_open(node: Node, name: str) -> bool:
    pids = [program.pid for program in node.programs]
    return node.folder / name in open_for_writing([node.folder], pids)


@pytest.mark.parametrize(
    ("how", "writes"),
    [
        ("file = open('a', 'ab')", True),
        ("file = open('a', 'rb')", False),
        (
            "import mmap; f = open('a', 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close()",
            True,
        ),
        (
            "import mmap; f = open('a', 'rb')\n"
            "m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY); f.close()",
            False,
        ),
    ],
)
def test_processes_with_a_writable_file_are_found(local_job: Job, how: str, writes: bool) -> None:
    (node,) = local_job.attempt()
    (node.folder / "a").write_text("content")
    program = node.run(f"{how}\nprint('open', flush=True)\ninput()")
    assert program.stdout is not None and program.stdout.readline() == "open\n"

    assert _is_open(node, "a") == writes


def test_nothing_is_captured_while_a_file_is_open_for_writing(local_job: Job) -> None:
    (node,) = local_job.attempt()
    node.start_snapshots()
    program = node.run(
        "file = open('model.bin', 'wb'); file.write(b'half'); file.flush()\n"
        "print('open', flush=True); input(); file.write(b' whole'); file.close()\n"
        "print('closed', flush=True); input()"
    )
    assert program.stdout is not None and program.stdin is not None
    program.stdout.readline()
    wait_until(lambda: node.report().bytes)
    time.sleep(2.5)  # two intervals, and the quiescence time
    assert not any(paths(local_job.snapshot(number)) for number in local_job.numbers())
    program.stdin.write("\n")
    program.stdin.flush()
    program.stdout.readline()

    snapshot = local_job.wait_for(lambda found: paths(found) == {"model.bin"})
    assert snapshot.size == len(b"half whole")


def test_an_idle_open_file_counts_unless_it_is_mapped(local_job: Job) -> None:
    """Writes through a mapping may be undetected."""
    (node,) = local_job.attempt()
    path = node.folder / "state.bin"
    path.write_text("content")
    os.utime(path, (1, 1))  # long before the first scan
    program = node.run(
        "import mmap; file = open('state.bin', 'r+b'); print('open', flush=True); input()\n"
        "mapped = mmap.mmap(file.fileno(), 0); print('mapped', flush=True); input()"
    )
    assert program.stdout is not None and program.stdin is not None
    program.stdout.readline()
    node.start_snapshots()
    local_job.wait_for(lambda found: paths(found) == {"state.bin"})
    program.stdin.write("\n")
    program.stdin.flush()
    program.stdout.readline()
    node.write("new", "x")
    time.sleep(3)  # three intervals
    assert len(local_job.numbers()) == 1
    program.communicate("\n")
    local_job.wait_for(lambda found: paths(found) == {"state.bin", "new"})


def test_constantly_written_logs_are_captured_as_far_as_written(
    local_job: Job,
) -> None:
    (node,) = local_job.attempt(keep=100)
    node.start_snapshots()
    program = node.run(
        "import time\n"
        "file = open('train.log', 'w')\n"
        "open('latest.pt', 'w').write('whole')\n"
        "for n in range(10**6):\n"
        "    file.write(f'{n:07d}\\n'); file.flush(); time.sleep(0.01)"
    )
    local_job.wait_for(lambda found: "latest.pt" in paths(found))
    first = len(local_job.numbers())
    wait_until(lambda: len(local_job.numbers()) > first or local_job.numbers()[-1] > first)
    program.kill()

    (entry,) = [e for e in local_job.newest().files if e.path == "train.log"]
    lines = local_job.snapshots.get(object_key(entry.sha256)).splitlines()
    assert [int(line) for line in lines if len(line) == 7] == list(range(len(lines)))


def test_a_file_modified_during_upload_is_copied_the_next_time(
    local_job: Job,
) -> None:
    (node,) = local_job.attempt(mib_per_s=10.0)
    node.start_snapshots()
    # Uploading it takes longer than the program's pauses.
    program = node.run(
        """
import os, time
for stamp in range(1000):
    with open("model.bin", "wb") as file:
        for _ in range(40):
            file.write(f"{stamp:08d}".encode() * 131072)
    time.sleep(2.5)
"""
    )
    snapshot = local_job.wait_for(lambda found: "model.bin" in paths(found), 60)
    program.kill()

    data = local_job.snapshots.get(object_key(snapshot.files[0].sha256))
    assert len(data) == 40 * 2**20 and data == data[:8] * (len(data) // 8)


def test_a_large_and_an_empty_file_round_trip(local_job: Job) -> None:
    local_job.run({"large": bytes(40_000_000), "empty": b""})

    (other,) = local_job.restored()
    assert checkpoints(other) == {"large": bytes(40_000_000), "empty": b""}


def test_a_scan_notices_a_modified_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    seen = scan(tmp_path)["a"]
    assert same_content(seen, (tmp_path / "a").stat())
    os.link(tmp_path / "a", tmp_path / "b")
    assert same_content(seen, (tmp_path / "b").stat())
    (tmp_path / "a").write_text("y")
    assert not same_content(seen, (tmp_path / "b").stat())
