"""The union of several nodes' listings, and the files restored on each."""

from __future__ import annotations

import hashlib
import shutil

from tests.training.program.snapshots.kept_nodes import Job, checkpoints, paths
from training.program.snapshots.barrier import NodeListing, common_instant
from training.program.snapshots.manifest import (
    EntryKind,
    JobSnapshot,
    Root,
    SnapshotEntry,
    union,
)


def _file(path: str, content: str, root: Root = Root.CHECKPOINTS) -> SnapshotEntry:
    digest = hashlib.sha256(content.encode()).hexdigest()
    return SnapshotEntry(root=root, path=path, bytes=len(content), sha256=digest)


def _given(listings: dict[int, list[SnapshotEntry]], node: int, main: int = 0) -> dict[str, str]:
    entries = union(listings, main)
    snapshot = JobSnapshot(number=1, at="", nodes=len(listings), main=main, entries=entries)
    again = JobSnapshot.decode(snapshot.encode())
    assert again.entries == snapshot.entries
    return {entry.path: entry.sha256 for entry in again.for_node(node)}


def _listing(node: int, since: float, until: float, quiet_s: float = 2.0) -> NodeListing:
    return NodeListing(node=node, since=since, until=until, quiet_s=quiet_s, entries=())


def test_the_same_content_on_several_nodes_is_one_file() -> None:
    (entry,) = union({0: [_file("a", "x")], 1: [_file("a", "x")]}, 0)
    assert entry.nodes == (0, 1)


def test_a_node_gets_its_own_content_and_a_new_node_the_main_nodes() -> None:
    listings = {node: [_file("rng.pt", f"of {node}")] for node in range(3)}
    for node in range(3):
        assert _given(listings, node)["rng.pt"] == _file("", f"of {node}").sha256
    assert _given(listings, 7, main=1)["rng.pt"] == _file("", "of 1").sha256


def test_without_a_main_nodes_copy_the_first_nodes_content_is_restored() -> None:
    listings = {0: [], 1: [_file("a", "of 1")], 2: [_file("a", "of 2")]}
    assert _given(listings, 0)["a"] == _file("", "of 1").sha256
    assert _given(listings, 2)["a"] == _file("", "of 2").sha256


def test_all_nodes_share_one_copy_of_compiled_graphs() -> None:
    listings = {node: [_file("graph.neff", f"of {node}", Root.CACHE)] for node in range(2)}
    assert _given(listings, 1)["graph.neff"] == _file("", "of 0").sha256


def test_files_below_another_nodes_file_are_restored_only_where_it_is_a_folder() -> None:
    folder = SnapshotEntry(root=Root.CHECKPOINTS, path="last", kind=EntryKind.FOLDER, mode=0o755)
    listings = {0: [_file("last", "a file")], 1: [folder, _file("last/a", "x")]}
    assert set(_given(listings, 0)) == {"last"}
    assert set(_given(listings, 1)) == {"last", "last/a"}


def _instant(*listings: NodeListing) -> float | None:
    found = common_instant([[listing] for listing in listings], 1.0)
    return found[0] if found else None


def test_listings_need_a_common_instant() -> None:
    assert _instant(_listing(0, 10, 20), _listing(1, 15, 30)) == 17
    assert _instant(_listing(0, 10, 16), _listing(1, 15, 30)) is None
    assert _instant(_listing(0, 10, 20)) == 12


def test_at_most_one_node_may_be_caught_between_two_changes() -> None:
    caught = _listing(0, 15.0, 15.0, 0.0)
    assert _instant(caught, _listing(1, 10, 30)) == 15
    assert _instant(caught, _listing(1, 14.5, 30, 0.0)) is None
    assert _instant(caught, _listing(1, 10, 15.5)) is None


def test_the_newest_listings_with_a_common_instant_are_captured() -> None:
    quick = [_listing(0, start, start + 9) for start in (0, 10, 20, 30)]
    slow = [_listing(1, 8, 19)]
    assert common_instant([quick, slow], 1.0) == (12, [quick[1], slow[0]])
    assert common_instant([quick[2:], slow], 1.0) is None
    assert common_instant([quick, slow], 1.0, after=12.5) is None


def test_a_file_replaced_by_another_node_does_not_survive_in_a_nodes_copy(
    local_job: Job,
) -> None:
    """As when rank 0 saves and all ranks load: each must load the newest, not its old copy."""
    job = local_job
    job.run({"latest.pt": "1", "step-1/a": "1"}, {})
    nodes = job.attempt(2, every_s=3600)
    for node in nodes:
        node.restore(job.snapshots)
        node.start_snapshots()
    shutil.rmtree(nodes[0].folder / "step-1")
    nodes[0].write("latest.pt", "2")
    nodes[0].write("step-2/a", "2")
    for node in nodes:
        node.end()
    for node in nodes:
        assert node.wait().failure is None
    assert checkpoints(nodes[1])["latest.pt"] == b"1"

    assert paths(job.newest()) == {"latest.pt", "step-2/a"}
    for node in job.restored(2):
        assert checkpoints(node)["latest.pt"] == b"2"
        assert "step-1" not in checkpoints(node)


def test_a_file_changed_by_a_node_becomes_its_own(local_job: Job) -> None:
    job = local_job
    job.run({"rng.pt": "1"}, {})
    job.run({}, {"rng.pt": "of 1"})

    given = [checkpoints(node)["rng.pt"] for node in job.restored(2)]
    assert given == [b"1", b"of 1"]


def test_files_of_former_nodes_are_kept_by_the_main_node(local_job: Job) -> None:
    job = local_job
    job.run({"shard-0": "x"}, {"shard-1": "x"})

    for _ in range(2):
        job.run({})
    assert paths(job.newest()) == {"shard-0", "shard-1"}
