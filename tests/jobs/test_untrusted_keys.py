"""Keys and manifests in the bucket name files of this machine only where a command puts them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from jobs.bucket.objects import Bucket
from jobs.commands.tensorboard import copy_logs
from jobs.errors import Refusal
from tests.jobs.conftest import Desk
from tests.jobs.test_refusals import assert_refused
from tests.jobs.test_watch_program import read, run

__all__ = ["run"]

UP = "../" * 12
"""Leads to the root of the file system from wherever a test runs."""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that no command was told of."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "authorized_keys").write_bytes(b"mine")
    return tmp_path / "home" / ".ssh"


def assert_unchanged(outside: Path) -> None:
    (file,) = outside.iterdir()
    assert (file.name, file.read_bytes()) == ("authorized_keys", b"mine")


def hostile_names(outside: Path) -> dict[str, str]:
    return {
        "absolute": f"{outside}/authorized_keys",
        "up": f"{UP}{outside}/authorized_keys".replace("//", "/"),
        "up behind a name": f"a/{UP}{outside}/new".replace("//", "/"),
        "dot": "./x",
    }


def bucket_of(desk: Desk) -> Bucket:
    return Bucket(client=desk.client("s3"), name="bucket")


def snapshot(desk: Desk, name: str, /, data: bytes = b"theirs", **fields: Any) -> None:
    digest = hashlib.sha256(data).hexdigest()
    desk.put(f"runs/x/snapshots/objects/{digest}", data)
    entry = {"root": "checkpoints", "path": name, "bytes": len(data), "sha256": digest}
    entry |= {"mode": 0o644, "mtime_ns": 1, "nodes": [0], **fields}
    document = {"format": 1, "number": 1, "at": "2026-01-01", "nodes": 1, "main": 0}
    desk.put("runs/x/snapshots/00000001.json", {**document, "files": [entry]})


NAMES = ["absolute", "up", "up behind a name", "dot"]


class Keys:
    """A bucket with one object, whose key no client of S3 in Python would let us put."""

    def __init__(self, key: str) -> None:
        self.name = "bucket"
        self._key = key

    def objects(self, prefix: str) -> Any:
        from jobs.bucket.objects import ListedObject

        if self._key.startswith(prefix):
            yield ListedObject(key=self._key, size=6)

    def read(self, key: str) -> bytes | None:
        return b"theirs" if key == self._key else None

    def names(self, prefix: str) -> list[str]:
        return []


@pytest.mark.parametrize("folder", ["logs/", "results/output/"])
@pytest.mark.parametrize("name", NAMES)
def test_tensorboard_copies_no_log_to_another_place(
    tmp_path: Path, outside: Path, folder: str, name: str
) -> None:
    key = f"runs/x/{folder}{hostile_names(outside)[name]}/tfevents"

    with pytest.raises(Refusal, match="cannot become one of this machine") as refused:
        copy_logs(Keys(key), "x", tmp_path / "tb" / "x")  # type: ignore[arg-type]

    assert f"s3://bucket/{key}" in refused.value.message
    assert_unchanged(outside)
    assert not list(tmp_path.glob("tb/**/*.*"))


@pytest.mark.parametrize("name", ["absolute", "up", "up behind a name"])
def test_tensorboard_copies_no_file_of_a_snapshot_to_another_place(
    desk: Desk, tmp_path: Path, outside: Path, name: str
) -> None:
    snapshot(desk, f"{hostile_names(outside)[name]}.tfevents.1")

    with pytest.raises(Refusal, match=r"snapshots/00000001\.json names cannot become one of this"):
        copy_logs(bucket_of(desk), "x", tmp_path / "tb" / "x")

    assert_unchanged(outside)


def test_tensorboard_copies_nothing_but_its_own_files(desk: Desk, tmp_path: Path) -> None:
    """A configuration of its projector, for example, names files of this machine to open."""
    for name in ("", "projector_config.pbtxt", "events.out.tfevents.1"):
        desk.put(f"runs/x/logs/tensorboard/{name}", b"one")

    assert copy_logs(bucket_of(desk), "x", tmp_path / "x") == 1


@pytest.mark.parametrize("name", NAMES)
def test_download_writes_no_file_of_a_snapshot_to_another_place(
    desk: Desk, run: Path, tmp_path: Path, outside: Path, name: str
) -> None:
    snapshot(desk, hostile_names(outside)[name])

    for more in ([], ["--dry-run"]):
        assert_refused(
            desk.run("download", "x", "--to", str(tmp_path / "here"), *more),
            "snapshots/00000001.json names cannot become one below",
            "--snapshot N",
        )
    assert_unchanged(outside)


def test_download_writes_through_no_link(
    desk: Desk, run: Path, tmp_path: Path, outside: Path
) -> None:
    snapshot(desk, "a/authorized_keys")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a").symlink_to(outside)

    assert_refused(
        desk.run("download", "x", "--to", str(tmp_path / "here")),
        "a is a symbolic link: nothing is written through",
    )
    assert_unchanged(outside)


def test_download_refuses_a_file_where_a_folder_is_needed(
    desk: Desk, run: Path, tmp_path: Path
) -> None:
    snapshot(desk, "a/b")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a").write_bytes(b"mine")

    assert_refused(desk.run("download", "x", "--to", str(tmp_path / "here")), "a is in the way")
    assert (tmp_path / "here" / "a").read_bytes() == b"mine"


def test_names_give_the_terminal_no_commands(desk: Desk, run: Path, tmp_path: Path) -> None:
    snapshot(desk, "\x1b]0;owned\x07\x1b[2Ja\udcff")

    result = desk.run("download", "x", "--to", str(tmp_path / "here"), "--dry-run")
    refused = desk.run("status", "\x1b[2J")

    assert result.stdout.rstrip().endswith("here/\\x1b]0;owned\\x07\\x1b[2Ja\\udcff")
    assert "\x1b" not in result.stdout + result.stderr + refused.stderr


@pytest.mark.parametrize(
    "change",
    [{"bytes": "many"}, {"bytes": -1}, {"nodes": 3}, {"sha256": "../x"}, {"path": ["a"]}],
)
def test_a_snapshot_that_makes_no_sense_is_none(
    desk: Desk, run: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    snapshot(desk, "a", **change)

    assert_refused(
        desk.run("download", "x", "--to", str(tmp_path / "here")), "has no complete snapshot yet"
    )


@pytest.mark.parametrize("data", [b"{", b'{"files": 3}', b'{"files": [{"root": 3}]}'])
def test_a_program_can_start_again_whatever_its_newest_snapshot_is(
    desk: Desk, run: Path, data: bytes
) -> None:
    desk.put("runs/x/snapshots/00000001.json", data)

    result = desk.run("submit", "./train.py", "--name", "x", "--from-snapshot", "none", "--yes")

    assert result.exit_code == 0, result.stderr
    document = json.loads(read(desk, "runs/x/snapshots/00000002.json"))
    assert (document["chosen"], document["number"], document["files"]) == (0, 2, [])


def listed(desk: Desk, **fields: Any) -> None:
    """Change the first file in the list of the newest submission's code."""
    code = json.loads(read(desk, "runs/x/program.json"))["submissions"][-1]["code"]
    key = f"runs/x/code/{code}.json"
    listing = json.loads(read(desk, key))
    listing["files"][0] |= fields
    desk.put(key, listing)


@pytest.mark.parametrize("name", NAMES)
def test_code_writes_no_file_to_another_place(
    desk: Desk, run: Path, tmp_path: Path, outside: Path, name: str
) -> None:
    listed(desk, path=hostile_names(outside)[name])

    assert_refused(
        desk.run("code", "x", "--fetch", str(tmp_path / "back")), "names a file that cannot be"
    )
    assert_unchanged(outside)


def test_code_writes_through_no_link(desk: Desk, run: Path, tmp_path: Path, outside: Path) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "train.py").symlink_to(outside / "authorized_keys")

    assert_refused(
        desk.run("code", "x", "--fetch", str(tmp_path / "back")),
        "train.py is a symbolic link: nothing is written through", "another folder with --fetch",
    )  # fmt: skip
    assert_unchanged(outside)


def test_code_takes_of_a_mode_only_whether_a_file_can_be_executed(
    desk: Desk, run: Path, tmp_path: Path
) -> None:
    listed(desk, mode=0o6777)

    assert desk.run("code", "x", "--fetch", str(tmp_path / "back")).exit_code == 0

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "back").iterdir()}
    assert modes == {"run.sh": 0o755, "train.py": 0o644}


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "a/.GIT/config", ".hg/hgrc"])
def test_code_writes_nothing_that_git_would_run(
    desk: Desk, run: Path, tmp_path: Path, path: str
) -> None:
    listed(desk, path=path)

    assert_refused(
        desk.run("code", "x", "--fetch", str(tmp_path / "back")), "a folder that submit leaves out"
    )
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    "data",
    [b"no archive", b"", gzip.compress(b"no tar", mtime=0), "a link"],
    ids=["no-archive", "nothing", "no-tar", "link"],
)
def test_code_refuses_what_is_no_archive_of_submits(
    desk: Desk, run: Path, tmp_path: Path, data: bytes | str
) -> None:
    if isinstance(data, str):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            member = tarfile.TarInfo("train.py")
            member.type, member.linkname = tarfile.SYMTYPE, "missing"
            tar.addfile(member)
        data = packed.getvalue()
    record = json.loads(read(desk, "runs/x/program.json"))
    submission = record["submissions"][-1]
    listing = read(desk, f"runs/x/code/{submission['code']}.json")
    submission["code"] = hashlib.sha256(data).hexdigest()
    desk.put(f"runs/x/code/{submission['code']}.json", listing)
    desk.put(f"runs/x/code/{submission['code']}.tar.gz", data)
    desk.put("runs/x/program.json", record)

    result = desk.run("code", "x", "--fetch", str(tmp_path / "back"))

    assert result.exit_code != 0
    assert "is not an archive that submit made" in result.stderr or "in the bundle" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("change", [{"bytes": "x"}, {"path": 3}, {"mode": None}])
def test_code_refuses_a_list_that_makes_no_sense(
    desk: Desk, run: Path, change: dict[str, Any]
) -> None:
    listed(desk, **change)

    assert_refused(desk.run("code", "x"), "is no list of files")
