"""Files that a node restores when the files of all nodes do not fit on its disk."""

from __future__ import annotations

import shutil

import pytest

from tests.training.program.snapshots.kept_nodes import Job, checkpoints
from training.program.snapshots import restore
from training.program.snapshots.manifest import JobSnapshot, Root, SnapshotEntry
from training.program.snapshots.restore import InsufficientSpace, select, too_large

_MIB = 1024**2


def _shard(node: int, size: int = 100 * _MIB, age: int = 0) -> SnapshotEntry:
    return SnapshotEntry(
        root=Root.CHECKPOINTS,
        path=f"step-1/__{node}_{age}.distcp",
        bytes=size,
        sha256=f"{node}{age}",
        mtime_ns=-age,
        nodes=(node,),
    )


def _snapshot(*entries: SnapshotEntry) -> JobSnapshot:
    return JobSnapshot(number=1, at="", nodes=4, main=0, entries=entries)


def test_a_node_needs_its_own_files_the_main_nodes_and_small_ones() -> None:
    small = _shard(3, 64 * _MIB, age=1)
    snapshot = _snapshot(_shard(0), _shard(1), _shard(2), _shard(3), small)
    found = select(snapshot, snapshot.entries, node=1, num_nodes=4, free=265 * _MIB)

    assert list(found.entries) == [_shard(0), _shard(1), small]
    assert list(found.skipped) == [_shard(2), _shard(3)]
    assert found.explain(265 * _MIB) == (
        "skipping 2 large files of other nodes, 209.7 MB in total, because only 277.9 MB is free "
        "(step-1/__2_0.distcp, step-1/__3_0.distcp); a program that reads the files of all nodes "
        "on each of them needs a larger volume (context key root_volume_gib)"
    )


def test_the_newest_files_of_other_nodes_are_restored_as_far_as_they_fit() -> None:
    old, new = _shard(2, age=9), _shard(3, age=1)
    snapshot = _snapshot(_shard(1), old, new)
    for free, skipped in ((223, [old]), (222, [old, new]), (334, [])):
        found = select(snapshot, snapshot.entries, node=1, num_nodes=4, free=free * _MIB)
        assert sorted(found.skipped, key=lambda x: x.nodes) == skipped, free


def test_a_different_number_of_nodes_needs_all_files() -> None:
    snapshot = _snapshot(_shard(1), _shard(2))
    found = select(snapshot, snapshot.entries, node=1, num_nodes=3, free=0)
    assert found.entries == snapshot.entries and not found.skipped


def test_a_job_resumes_when_the_files_of_all_nodes_do_not_fit(
    local_job: Job, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job = local_job
    job.run(*({f"shard-{node}": bytes([node]) * 1000} for node in range(3)))
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2500))
    monkeypatch.setattr(restore, "_SMALL_BYTES", 10)

    given = [set(checkpoints(node)) for node in job.restored(3)]
    assert given[1] == {"shard-0", "shard-1"} and given[2] == {"shard-0", "shard-2"}
    assert "skipping 1 large file of other nodes, 1.0 kB in total" in capfd.readouterr().out
    with pytest.raises(
        InsufficientSpace,
        match=r"of all 3 nodes, because the number of nodes is now 1, but only 2\.5 kB is",
    ):
        job.restored()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=500))
    with pytest.raises(
        InsufficientSpace, match=r"snapshot 1 needs 1\.0 kB, but only 500 bytes is .*volume_gib"
    ):
        job.restored(3)

    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2500))
    # Files not restored on a node still belong to the other node in the next snapshot.
    job.run(*[{"latest": "x"}] * 3)
    assert {e.path for e in job.newest().files} == {"shard-0", "shard-1", "shard-2", "latest"}


def test_the_main_node_warns_when_the_files_of_all_nodes_do_not_fit_on_one() -> None:
    snapshot = _snapshot(_shard(0), _shard(1))
    assert too_large(snapshot, 0, 200 * _MIB) == ""
    assert too_large(snapshot, 0, 200 * _MIB - 1).startswith(
        "the files of all nodes need 209.7 MB, but a node has room for 209.7 MB: the next attempt "
        "on 4 nodes restores each node's own files"
    )
