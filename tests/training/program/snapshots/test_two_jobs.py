"""Two jobs that take snapshots under one name, although only one should."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.training.program.snapshots.kept_nodes import Job
from training.program.snapshots.barrier import NodeListing
from training.program.snapshots.coordinator import Coordinator
from training.program.snapshots.exchange import Exchange
from training.program.snapshots.mailbox import Mailbox
from training.program.snapshots.manifest import (
    JobSnapshot,
    Root,
    SnapshotEntry,
    object_key,
    snapshot_key,
)
from training.program.snapshots.uploader import ThrottledLog
from training.storage import Objects, StorageAccess
from training.storage.run_lock import RunLost
from trainium_catalogue.contract import RUN_STATUS, run_key

LISTING = NodeListing(node=0, since=0, until=0, quiet_s=2.0, entries=())


def _place(tmp_path: Path) -> tuple[Objects, Mailbox]:
    access = StorageAccess(root=str(tmp_path / "bucket"))
    return access.open(access.root), Mailbox(tmp_path, is_main=True)


def _made(
    objects: Objects, coordinator: Coordinator, name: str, since: float
) -> JobSnapshot | None:
    entry = SnapshotEntry(
        path=name, root=Root.CHECKPOINTS, bytes=1, sha256=hashlib.sha256(name.encode()).hexdigest()
    )
    objects.put(object_key(entry.sha256), b"x")
    return coordinator.gather([replace(LISTING, since=since, until=since + 20, entries=(entry,))])


def _coordinator(objects: Objects, mailbox: Mailbox, **given: Any) -> Coordinator:
    coordinator = Coordinator(objects, mailbox, num_nodes=1, main=0, keep=2, **given)
    coordinator.open()
    return coordinator


def test_a_job_without_the_run_name_completes_and_deletes_nothing(tmp_path: Path) -> None:
    objects, mailbox = _place(tmp_path)
    lost = False

    def confirm() -> None:
        if lost:
            raise RunLost("taken")

    coordinator = _coordinator(objects, mailbox, confirm=confirm)
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


def test_content_named_by_another_jobs_late_snapshot_is_not_deleted(tmp_path: Path) -> None:
    objects, mailbox = _place(tmp_path)
    coordinator = _coordinator(objects, mailbox)
    assert _made(objects, coordinator, "own", 100.0)
    late = _coordinator(objects, mailbox)
    theirs = _made(objects, late, "theirs", 200.0)
    assert theirs is not None and theirs.number == 2

    coordinator.prune(at_end=True)

    keys = {info.key for info in objects.list("")}
    assert theirs.key in keys
    assert {object_key(digest) for digest in theirs.digests} <= keys


def test_a_number_used_by_another_job_costs_no_snapshot(tmp_path: Path) -> None:
    objects, mailbox = _place(tmp_path)
    coordinator, late = (_coordinator(objects, mailbox) for _ in range(2))
    assert _made(objects, late, "theirs", 100.0)

    assert _made(objects, coordinator, "own", 200.0) is None
    made = _made(objects, coordinator, "own", 200.0)
    assert made is not None and made.number == 2


class _Idle:
    """An uploader that has sent nothing."""

    listing = None
    history = ()


def test_a_replaced_job_never_writes_the_status(local_job: Job) -> None:
    def exchange() -> Exchange:
        (node,) = local_job.attempt()
        settings = replace(node.settings, main=1)  # its thread writes nothing
        mailbox = Mailbox(settings.scratch, is_main=False)
        return Exchange(settings, local_job.bucket, mailbox, cast(Any, _Idle()), ThrottledLog())

    replaced, holder = exchange(), exchange()
    replaced._put_status(b"1")
    holder._put_status(b"2")
    for _ in range(2):
        with pytest.raises(RunLost):
            replaced._put_status(b"3")
    holder._put_status(b"4")

    assert local_job.bucket.get(run_key("run", RUN_STATUS)) == b"4"
