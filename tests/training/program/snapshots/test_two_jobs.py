"""Two jobs that keep snapshots under one name, although only one of them should."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from training.program.snapshots.barrier import Messages, NodeListing
from training.program.snapshots.coordinator import Coordinator
from training.program.snapshots.manifest import (
    JobSnapshot,
    Root,
    SnapshotEntry,
    object_key,
    snapshot_key,
)
from training.storage import Objects, StorageAccess
from training.storage.run_lock import RunLost

LISTING = NodeListing(node=0, since=0, until=0, quiet_s=2.0, entries=())


def _place(tmp_path: Path) -> tuple[Objects, Messages]:
    access = StorageAccess(root=str(tmp_path / "bucket"))
    return access.open(access.root), Messages(1, "job")


def _made(
    objects: Objects, coordinator: Coordinator, name: str, since: float
) -> JobSnapshot | None:
    entry = SnapshotEntry(
        path=name, root=Root.CHECKPOINTS, bytes=1, sha256=hashlib.sha256(name.encode()).hexdigest()
    )
    objects.put(object_key(entry.sha256), b"x")
    return coordinator.gather([replace(LISTING, since=since, until=since + 20, entries=(entry,))])


def _coordinator(objects: Objects, messages: Messages, **given: Any) -> Coordinator:
    coordinator = Coordinator(objects, messages, num_nodes=1, main=0, keep=2, **given)
    coordinator.open()
    return coordinator


def test_nothing_is_completed_or_deleted_by_a_job_that_has_lost_the_name(tmp_path: Path) -> None:
    objects, messages = _place(tmp_path)
    lost = False

    def confirm() -> None:
        if lost:
            raise RunLost("taken")

    coordinator = _coordinator(objects, messages, confirm=confirm)
    for number in range(4):
        assert _made(objects, coordinator, f"{number}", 100.0 * (number + 1))
    before = [info.key for info in objects.list("")]
    lost = True

    with pytest.raises(RunLost):
        _made(objects, coordinator, "late", 1000.0)
    with pytest.raises(RunLost):
        coordinator.prune(at_end=True)
    after = [info.key for info in objects.list("")]
    assert set(before) <= set(after) and snapshot_key(5) not in after


def test_a_job_that_thaws_after_it_has_lost_the_name_removes_no_listings_of_others(
    tmp_path: Path,
) -> None:
    objects, messages = _place(tmp_path)
    theirs = Messages(2, "job").listing(1, LISTING.name)
    objects.put(theirs, LISTING.encode())

    def confirm() -> None:
        raise RunLost("taken")

    with pytest.raises(RunLost):
        _coordinator(objects, messages, confirm=confirm)
    assert [info.key for info in objects.list("")] == [theirs]


def test_what_a_late_snapshot_of_another_job_names_is_not_deleted(tmp_path: Path) -> None:
    objects, messages = _place(tmp_path)
    coordinator = _coordinator(objects, messages)
    assert _made(objects, coordinator, "own", 100.0)
    late = _coordinator(objects, messages)
    theirs = _made(objects, late, "theirs", 200.0)
    assert theirs is not None and theirs.number == 2

    coordinator.prune(at_end=True)

    keys = {info.key for info in objects.list("")}
    assert theirs.key in keys
    assert {object_key(digest) for digest in theirs.digests} <= keys


def test_a_number_that_another_job_has_used_costs_no_snapshot(tmp_path: Path) -> None:
    objects, messages = _place(tmp_path)
    coordinator, late = (_coordinator(objects, messages) for _ in range(2))
    assert _made(objects, late, "theirs", 100.0)

    assert _made(objects, coordinator, "own", 200.0) is None
    made = _made(objects, coordinator, "own", 200.0)
    assert made is not None and made.number == 2
