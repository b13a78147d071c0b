"""Nodes with different upload times."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.checkpoint.faulty import faulty_proxy
from tests.training.program.snapshots.kept_nodes import Job, paths
from training.program.snapshots import coordinator, uploader
from training.program.snapshots.barrier import HISTORY, NodeListing
from training.program.snapshots.coordinator import Coordinator
from training.program.snapshots.exchange import Exchange
from training.program.snapshots.mailbox import (
    MISSING,
    Mailbox,
    intent_name,
    listing_name,
    until_name,
)
from training.program.snapshots.manifest import (
    Root,
    SnapshotEntry,
    object_key,
    snapshot_key,
    snapshot_numbers,
)
from training.program.snapshots.uploader import ThrottledLog
from training.storage import Objects, StorageAccess

_SAVE = """
import os, sys, time
from pathlib import Path
meeting, node, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
print("started", flush=True)
for stamp in range(1, 1000):
    (meeting / f"{stamp}-{node}").touch()
    while not (meeting / f"{stamp}-{1 - node}").exists():
        time.sleep(0.01)
    with open("model.tmp", "wb") as file:
        file.write(f"{stamp:08d}".encode() * (count // 8))
    os.replace("model.tmp", f"model-{node}.bin")
    time.sleep(4)
"""


@pytest.mark.timeout(300)
def test_a_slow_upload_of_one_node_does_not_stop_snapshots(
    local_job: Job,
) -> None:
    job = local_job
    nodes = job.attempt(2, every_s=2.0)
    nodes[0].settings = replace(nodes[0].settings, mib_per_s=4.0)
    meeting = job.folder / "meeting"
    meeting.mkdir()
    for node, count in zip(nodes, (24 * 2**20, 800), strict=True):
        node.start_snapshots()
        node.run(_SAVE, meeting, node.settings.node, count)

    wanted = {"model-0.bin", "model-1.bin"}
    snapshot = job.wait_for(lambda found: {e.path for e in found.files} == wanted, 90)
    stamps = {job.snapshots.get_range(object_key(entry.sha256), 0, 8) for entry in snapshot.files}
    assert len(stamps) == 1


def test_a_child_requests_only_contents_from_the_bucket(job: Job, snapshots_endpoint: str) -> None:
    paths_asked: list[str] = []
    with faulty_proxy(snapshots_endpoint) as proxy:
        proxy.reset(lambda request: paths_asked.append(request.path))
        main, child = job.attempt(2, every_s=1.0)
        counted = replace(job.storage, endpoint_url=proxy.url)
        child.settings = replace(child.settings, storage=counted)
        for node in (main, child):
            node.start_snapshots()
        child.write("child", "x")
        job.wait_for(lambda found: paths(found) == {"child"})
        asked = tuple(paths_asked)
        main.write("main", "y")
        job.wait_for(lambda found: paths(found) == {"child", "main"})

    assert len(asked) == 2 and all("objects" in path for path in asked)  # a list and an upload
    assert tuple(paths_asked) == asked


def _gatherer(tmp_path: Path) -> tuple[Objects, Mailbox, Coordinator]:
    access = StorageAccess(root=str(tmp_path / "bucket"))
    objects, mailbox = access.open(access.root), Mailbox(tmp_path, is_main=True)
    gatherer = Coordinator(objects, mailbox, num_nodes=3, main=0, keep=3)
    gatherer.open()
    return objects, mailbox, gatherer


def _listing(node: int, since: float, until: float) -> NodeListing:
    return NodeListing(node=node, since=since, until=until, quiet_s=2.0, entries=())


def test_the_node_blocking_snapshots_is_known(tmp_path: Path) -> None:
    _, mailbox, gatherer = _gatherer(tmp_path)
    own = [_listing(0, 10, 30)]
    gatherer.gather(own)
    assert gatherer.waits_for == [1, 2]
    for node, since, until in ((1, 20, 30), (2, 1, 5)):
        listing = _listing(node, since, until)
        mailbox.send_to_main(listing_name(node, listing.name), listing.encode())
    assert gatherer.gather(own) is None
    assert gatherer.waits_for == [2]
    mailbox.send_to_main(until_name(2), b'{"000000000001000": 26}')
    gatherer.gather(own)
    assert gatherer.is_gathered


def test_a_node_retains_only_its_latest_listings(tmp_path: Path) -> None:
    _, mailbox, gatherer = _gatherer(tmp_path)
    sent = [_listing(1, since, since + 1) for since in range(HISTORY + 2)]
    for listing in sent:
        mailbox.send_to_main(listing_name(1, listing.name), listing.encode())
    gatherer.gather([])

    kept = [info.key for info in mailbox.received.list()]
    assert kept == [listing_name(1, listing.name) for listing in sent[-HISTORY:]]


@pytest.mark.parametrize(("every_s", "limit_s"), [(2.0, 60), (100.0, 300)])
def test_a_long_wait_for_nodes_is_logged(
    local_job: Job,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    every_s: float,
    limit_s: int,
) -> None:
    (node,) = local_job.attempt(every_s=every_s)
    _, mailbox, gatherer = _gatherer(node.settings.scratch)
    gatherer.gather([_listing(0, 10, 30)])
    idle: Any = SimpleNamespace(listing=None, history=())
    settings = replace(node.settings, main=1)  # its thread does not coordinate
    exchange = Exchange(settings, local_job.bucket, mailbox, idle, ThrottledLog())
    for now_s in (1000, 1000 + limit_s, 1001 + limit_s):
        clock = SimpleNamespace(monotonic=partial(float, now_s))
        monkeypatch.setattr(uploader, "time", clock)
        exchange._log_waiting(gatherer, has_progressed=False)
    exchange._log_waiting(gatherer, has_progressed=True)

    told = capfd.readouterr().out
    assert told.count("no snapshot of all nodes") == 1
    assert f"for {limit_s + 1} s: the next waits for nodes 1, 2, which are still" in told
    assert exchange._wait.lasts_s == 0


def test_an_unreadable_manifest_keeps_its_number(
    tmp_path: Path,
) -> None:
    objects, mailbox, _ = _gatherer(tmp_path)
    objects.put(snapshot_key(7), b"not a manifest")
    gatherer = Coordinator(objects, mailbox, num_nodes=1, main=0, keep=3)
    gatherer.open()
    entry = SnapshotEntry(path="a", root=Root.CHECKPOINTS, bytes=1, sha256="0" * 64)
    objects.put(object_key(entry.sha256), b"x")
    made = gatherer.gather([replace(_listing(0, 10, 30), entries=(entry,))])

    assert made is not None and made.number == 8
    # It may need any of the contents.
    objects.put(object_key("1" * 64), b"x")
    gatherer.prune(at_end=True)
    keys = {info.key for info in objects.list("")}
    assert keys == {snapshot_key(7), made.key, object_key("0" * 64), object_key("1" * 64)}


def test_snapshots_that_differ_only_in_logs_do_not_evict_older_ones(tmp_path: Path) -> None:
    objects, mailbox, _ = _gatherer(tmp_path)
    gatherer = Coordinator(objects, mailbox, num_nodes=1, main=0, keep=2)
    saved = [("1", 0), ("2", 0), ("2", 1), ("2", 2), ("2", 3)]
    for since, (model, log) in enumerate(saved):
        contents = {"model": model, "train.log": f"{log + 10}"}
        entries = tuple(
            SnapshotEntry(path=path, root=Root.CHECKPOINTS, bytes=1, sha256=text.zfill(64))
            for path, text in contents.items()
        )
        for entry in entries:
            objects.put(object_key(entry.sha256), b"x")
        assert gatherer.gather(
            [replace(_listing(0, 100 * since, 100 * since + 30), entries=entries)]
        )
        gatherer.prune()

    assert [snapshot.number for snapshot in gatherer.snapshots] == [1, 5]
    assert snapshot_numbers(objects) == [1, 5]


def test_contents_that_a_node_is_about_to_list_are_not_deleted(tmp_path: Path) -> None:
    objects, mailbox, gatherer = _gatherer(tmp_path)
    announced, foreign = "1" * 64, "2" * 64
    mailbox.send_to_main(intent_name(1), json.dumps({"digests": [announced]}).encode())
    for digest in (announced, foreign):
        objects.put(object_key(digest), b"x")

    gatherer.prune()
    # A node may have uploaded it without having announced it yet.
    assert len(list(objects.list(""))) == 2
    gatherer.prune()
    assert [info.key for info in objects.list("")] == [object_key(announced)]


def test_lost_contents_are_uploaded_again_until_all_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "_BETWEEN_SENDING_S", 0.0)
    objects, mailbox, _ = _gatherer(tmp_path)
    gatherer = Coordinator(objects, mailbox, num_nodes=1, main=0, keep=3)
    entries = tuple(
        SnapshotEntry(path=f"{number}", root=Root.CHECKPOINTS, bytes=1, sha256=f"{number:064x}")
        for number in range(200)
    )
    told: set[str] = set()
    documents: set[bytes] = set()
    for _ in range(20):
        assert gatherer.gather([replace(_listing(0, 10, 30), entries=entries)]) is None
        documents.add(mailbox.received.get(MISSING))
        told.update(json.loads(mailbox.received.get(MISSING))["digests"])

    assert len(documents) == 20  # a node heeds what differs
    assert told == {entry.sha256 for entry in entries}
