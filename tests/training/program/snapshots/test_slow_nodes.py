"""Nodes that need different times to send what they have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.program.snapshots.kept_nodes import Job, wait_until
from training.program.snapshots.barrier import HISTORY, Messages, NodeListing
from training.program.snapshots.coordinator import Coordinator, Patience
from training.program.snapshots.manifest import (
    Root,
    SnapshotEntry,
    object_key,
    snapshot_key,
)
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
def test_a_node_that_sends_for_longer_than_others_go_without_a_change_stops_no_snapshots(
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


def test_a_node_keeps_up_its_latest_listings_only(local_job: Job) -> None:
    _, node = local_job.attempt(2, every_s=1.0)
    node.start_snapshots()
    messages = Messages(1, "job")

    def listings() -> list[str]:
        keys = [info.key for info in local_job.snapshots.list(messages.prefix)]
        return [key for key in keys if messages.read_listing(key)]

    seen: set[str] = set()
    for number in range(HISTORY + 2):
        (node.folder / "latest.pt").write_text(f"{number}")
        count = len(seen)
        wait_until(lambda count=count: len(seen.update(listings()) or seen) > count)  # type: ignore
    wait_until(lambda: len(listings()) == HISTORY)
    assert listings() == sorted(seen)[-HISTORY:]


def _gatherer(tmp_path: Path) -> tuple[Objects, Messages, Coordinator]:
    access = StorageAccess(root=str(tmp_path / "bucket"))
    objects, messages = access.open(access.root), Messages(1, "job")
    gatherer = Coordinator(objects, messages, num_nodes=3, main=0, keep=3)
    gatherer.open()
    return objects, messages, gatherer


def _listing(node: int, since: float, until: float) -> NodeListing:
    return NodeListing(node=node, since=since, until=until, quiet_s=2.0, entries=())


def test_the_node_that_snapshots_wait_for_is_known(tmp_path: Path) -> None:
    objects, messages, gatherer = _gatherer(tmp_path)
    own = [_listing(0, 10, 30)]
    gatherer.gather(own)
    assert gatherer.waits_for == [1, 2]
    for node, since, until in ((1, 20, 30), (2, 1, 5)):
        listing = _listing(node, since, until)
        objects.put(messages.listing(node, listing.name), listing.encode())
    assert gatherer.gather(own) is None
    assert gatherer.waits_for == [2]
    objects.put(messages.until(2), b'{"000000000001000": 26}')
    gatherer.gather(own)
    assert gatherer.is_gathered


def test_patience_ends_after_a_minute_or_three_intervals() -> None:
    short, long = Patience(2.0), Patience(100.0)
    assert [short.waited_s(at, waits=True) for at in (0.0, 60.0, 61.0)] == [0, 0, 61]
    assert [long.waited_s(at, waits=True) for at in (0.0, 300.0, 301.0)] == [0, 0, 301]
    assert long.waited_s(302.0, waits=False) == 0
    assert long.waited_s(303.0, waits=True) == 0


def test_a_manifest_that_cannot_be_read_keeps_its_number(
    tmp_path: Path,
) -> None:
    objects, messages, _ = _gatherer(tmp_path)
    objects.put(snapshot_key(7), b"not a manifest")
    gatherer = Coordinator(objects, messages, num_nodes=1, main=0, keep=3)
    gatherer.open()
    entry = SnapshotEntry(path="a", root=Root.CHECKPOINTS, bytes=1, sha256="0" * 64)
    objects.put(object_key(entry.sha256), b"x")
    made = gatherer.gather([replace(_listing(0, 10, 30), entries=(entry,))])

    assert made is not None and made.number == 8
    assert objects.get(snapshot_key(7)) == b"not a manifest"
