"""Restoring a foreign snapshot writes only to the persisted folders."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.training.program.snapshots.kept_nodes import Job
from training.program.snapshots.manifest import FORMAT, JobSnapshot, object_key, snapshot_key
from training.program.snapshots.restore import NoRestorableSnapshot

CONTENT = b"from the bucket"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def put(job: Job, number: int = 1, **lists: list[dict[str, Any]]) -> None:
    """Write a snapshot manually, as anyone with write access to runs/ can."""
    document = {"format": FORMAT, "number": number, "at": "2026-01-01T00:00:00+00:00"}
    document |= {"nodes": 1, "main": 0, **lists}
    job.snapshots.put(object_key(DIGEST), CONTENT)
    job.snapshots.put(snapshot_key(number), json.dumps(document).encode())


def file(path: str, **fields: Any) -> dict[str, Any]:
    common = {"root": "checkpoints", "path": path, "bytes": len(CONTENT), "sha256": DIGEST}
    return {**common, "mode": 0o644, "mtime_ns": 10**18, "nodes": [0], **fields}


def link(path: str, target: str, root: str = "checkpoints") -> dict[str, Any]:
    return {"root": root, "path": path, "target": target, "nodes": [0]}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir(mode=0o700)
    (tmp_path / "outside" / "file").write_bytes(b"old")
    return tmp_path / "outside"


def unchanged(outside: Path) -> bool:
    names = [path.name for path in outside.iterdir()]
    is_old = names == ["file"] and (outside / "file").read_bytes() == b"old"
    return is_old and stat.S_IMODE(outside.stat().st_mode) == 0o700


@pytest.mark.parametrize("path", ["/tmp/outside/new", "a/../../../outside/new", ""])
def test_an_escaping_path_is_refused_and_the_previous_snapshot_is_restored(
    local_job: Job, outside: Path, path: str
) -> None:
    put(local_job, 1, files=[file("good")])
    put(local_job, 2, files=[file(path)])
    (node,) = local_job.attempt()

    restored = node.restore(local_job.snapshots)

    assert restored is not None and restored.number == 1
    assert (node.folder / "good").read_bytes() == CONTENT
    assert unchanged(outside)


@pytest.mark.parametrize("name", ["data/file", "data/deep/new"])
def test_nothing_is_written_through_a_link_of_the_programs_own_files(
    local_job: Job, outside: Path, name: str
) -> None:
    put(local_job, files=[file(name)])
    (node,) = local_job.attempt()
    (node.folder / "data").symlink_to(outside)

    assert node.restore(local_job.snapshots) is not None

    assert unchanged(outside)
    assert (node.folder / name).read_bytes() == CONTENT
    assert not (node.folder / "data").is_symlink()


def test_no_file_is_written_through_a_link_in_its_place(local_job: Job, outside: Path) -> None:
    put(local_job, files=[file("a"), file("b")])  # one is a copy, the other is moved
    (node,) = local_job.attempt()
    for name in ("a", "b"):
        (node.folder / name).symlink_to(outside / "file")

    node.restore(local_job.snapshots)

    assert unchanged(outside)
    assert [(node.folder / name).read_bytes() for name in ("a", "b")] == [CONTENT, CONTENT]


def test_only_user_permissions_are_restored(local_job: Job) -> None:
    mode = 0o7777
    c = {"root": "checkpoints", "path": "c", "mode": mode, "nodes": [0]}
    put(local_job, files=[file("a", mode=mode), file("b", mode=mode)], folders=[c])
    (node,) = local_job.attempt()

    node.restore(local_job.snapshots)

    modes = {stat.S_IMODE((node.folder / name).stat().st_mode) for name in "abc"}
    assert modes == {0o700}


def test_the_compile_cache_gets_no_links(local_job: Job, outside: Path) -> None:
    put(local_job, links=[link("neuronxcc", str(outside), root="cache")], files=[file("a")])
    (node,) = local_job.attempt()

    node.restore(local_job.snapshots)

    assert not (node.settings.cache / "neuronxcc").is_symlink()


@pytest.mark.parametrize("data", [b"", b"[]", b"[" * 100_000, b'{"format": 1}'])
def test_a_malformed_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        JobSnapshot.decode(data)


def test_non_text_names_round_trip(local_job: Job) -> None:
    """File names are bytes to Linux; Python's decoding of them survives JSON."""
    name = b"caf\xe9".decode(errors="surrogateescape")
    put(local_job, files=[file(name)])
    (node,) = local_job.attempt()

    assert node.restore(local_job.snapshots) is not None

    assert (node.folder / name).read_bytes() == CONTENT


def test_a_run_with_only_damaged_snapshots_does_not_start_over_silently(
    local_job: Job,
) -> None:
    put(local_job, 1, files=[file("a")])
    put(local_job, 2, files=[file("/a")])
    local_job.snapshots.put(object_key(DIGEST), b"FROM THE BUCKET")
    (node,) = local_job.attempt()

    with pytest.raises(
        NoRestorableSnapshot, match=r"2, 1 are damaged in .* with --from-snapshot none"
    ):
        node.restore(local_job.snapshots)


def test_a_run_asked_to_start_over_does_so_despite_damage(local_job: Job) -> None:
    put(local_job, 1, files=[file("/a")])
    document = {"format": FORMAT, "number": 2, "at": "", "nodes": 1, "main": 0, "chosen": 0}
    graphs = [file("a.neff", root="cache", sha256="0" * 64)]
    local_job.snapshots.put(snapshot_key(2), json.dumps({**document, "files": graphs}).encode())
    (node,) = local_job.attempt()

    assert node.restore(local_job.snapshots) is None
    assert list(node.folder.iterdir()) == []


@pytest.mark.parametrize("target", ["", "a\0b"])
def test_an_invalid_link_is_refused_before_any_write(local_job: Job, target: str) -> None:
    put(local_job, 1, files=[file("good")])
    put(local_job, 2, files=[file("bad")], links=[link("last", target)])
    (node,) = local_job.attempt()

    restored = node.restore(local_job.snapshots)

    assert restored is not None and restored.number == 1
    assert [path.name for path in node.folder.iterdir()] == ["good"]
