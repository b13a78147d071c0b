"""Every complete snapshot equals the state of the complete job at some instant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.limits import scaled
from tests.training.program.snapshots import stamping
from tests.training.program.snapshots.kept_nodes import Job, Node, wait_until
from training.program.snapshots.manifest import EntryKind, JobSnapshot, SnapshotEntry, object_key

_PROGRAM = Path(stamping.__file__).read_text()


def _stamp(job: Job, entry: SnapshotEntry) -> int:
    """Return a file's stamp, found in every line, or its first one for a partial file."""
    data = job.snapshots.get(object_key(entry.sha256))
    stamps = set(re.findall(rb"(\d{8})\n", data))
    assert len(stamps) == 1 and len(data) == 200_000 // 9 * 9, f"{entry.path} is torn: {stamps}"
    return int(stamps.pop())


def _stamps(job: Job, snapshot: JobSnapshot) -> dict[str, int]:
    return {entry.path: _stamp(job, entry) for entry in snapshot.files}


def _slow_rounds(journals: Sequence[Path], limit_s: float) -> set[int]:
    """Return rounds in which the machine, not the program, paused so long that it looked idle."""
    lines = [line.split() for journal in journals for line in journal.read_text().splitlines()]
    return {int(stamp) for stamp, longest_s in lines if float(longest_s) > limit_s}


def _check_sets(job: Job, snapshot: JobSnapshot, slow: set[int]) -> None:
    found = _stamps(job, snapshot)
    assert not [path for path in found if path.endswith((".tmp", ".part"))], found
    folders = {path.rpartition("/")[0] for path in found}
    for folder in folders:
        inside = {path: stamp for path, stamp in found.items() if path.rpartition("/")[0] == folder}
        if slow.intersection({*inside.values(), max(inside.values()) + 1}):
            continue
        assert len(set(inside.values())) == 1, f"mixed in {snapshot.number}: {found}"
        assert {path.rpartition("/")[2] for path in inside} == set(stamping.NAMES), found
        if folder.startswith("step-"):
            assert set(inside.values()) == {int(folder.removeprefix("step-"))}
    assert not {"whole.part", "whole.old"} & folders or slow, folders
    for entry in snapshot.entries:
        if entry.kind is EntryKind.LINK:
            assert entry.path == "last" and (entry.target in folders or slow), found


def _run(job: Job, nodes: Sequence[Node], seed: int, rounds: int, pauses: str) -> list[Path]:
    meeting = job.folder / f"meeting-{job.attempts}"
    meeting.mkdir()
    journals = [meeting / f"journal-{node.settings.node}" for node in nodes]
    for node in nodes:
        node.start_snapshots()
    programs = [
        node.run(
            _PROGRAM,
            *(node.folder, journal, seed, node.settings.node, len(nodes), rounds, pauses),
        )
        for node, journal in zip(nodes, journals, strict=True)
    ]
    for program in programs:
        assert program.wait(scaled(120)) == 0
    return journals


@pytest.mark.timeout(300)
def test_no_style_of_saving_is_captured_in_the_middle(local_job: Job) -> None:
    (node,) = local_job.attempt(every_s=2.0, keep=1000)
    journals = _run(local_job, [node], seed=0, rounds=12, pauses="0,0.3,1.5,2.2")
    node.end()
    assert node.wait().failure is None

    slow = _slow_rounds(journals, node.settings.quiet_s / 2)
    numbers = local_job.numbers()
    assert len(numbers) >= 2
    for number in numbers:
        _check_sets(local_job, local_job.snapshot(number), slow)


@pytest.mark.timeout(300)
def test_shards_of_two_nodes_and_their_metadata_belong_to_one_save(local_job: Job) -> None:
    nodes = local_job.attempt(2, every_s=2.0, keep=1000)
    journals = _run(local_job, nodes, seed=1, rounds=6, pauses="0.1,2.5,4")
    for node in nodes:
        node.end()
    for node in nodes:
        assert node.wait().failure is None

    slow = _slow_rounds(journals, nodes[0].settings.quiet_s / 2)
    numbers = local_job.numbers()
    assert len(numbers) >= 2
    for number in numbers:
        found = _stamps(local_job, local_job.snapshot(number))
        if slow.intersection({*found.values(), max(found.values(), default=0) + 1}):
            continue
        assert len(set(found.values())) <= 1, f"torn in {number}: {found}"
        assert set(found) in (set(), {f"sharded/{x}" for x in ("shard-0", "shard-1", "metadata")})


def test_a_constantly_replaced_file_is_kept_consistent(local_job: Job) -> None:
    (node,) = local_job.attempt(every_s=1.0, keep=1000)
    node.start_snapshots()
    program = node.run(
        """
import os, time
stamp = 0
while True:
    stamp += 1
    with open("latest.partial", "wb") as file:
        file.write(f"{stamp:08d}\\n".encode() * (200_000 // 9))
    os.replace("latest.partial", "latest.pt")
    time.sleep(0.02)
"""
    )
    wait_until(lambda: len(local_job.numbers()) >= 2, 30)
    program.kill()
    program.wait()

    for number in local_job.numbers():
        found = _stamps(local_job, local_job.snapshot(number))
        assert set(found) <= {"latest.pt"}


def test_two_files_that_are_replaced_without_a_pause_are_not_mixed(local_job: Job) -> None:
    (node,) = local_job.attempt(every_s=1.0)
    node.start_snapshots()
    program = node.run(
        """
import time
stamp = 0
print("started", flush=True)
while True:
    stamp += 1
    for name in ("a", "b"):
        with open(name, "w") as file:
            file.write(str(stamp))
        time.sleep(0.02)
"""
    )
    assert program.stdout is not None and program.stdout.readline()
    wait_until(lambda: node.report().last_change_at is not None)
    first = node.report().last_change_at
    assert first is not None
    wait_until(lambda: (node.report().last_change_at or 0) > first + 4, 20)

    assert not local_job.numbers()
