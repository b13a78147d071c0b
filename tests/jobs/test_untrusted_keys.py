"""Keys and manifests in the bucket cannot write outside a command's output folder."""

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
from tests.jobs.conftest import Cli
from tests.jobs.test_refusals import assert_refused
from tests.jobs.test_watch_program import read, run

__all__ = ["run"]

UP = "../" * 12
"""Path to the root of the file system from wherever a test runs."""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that is not an argument of any command."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "authorized_keys").write_bytes(b"mine")
    return tmp_path / "home" / ".ssh"


def assert_unchanged(outside: Path) -> None:
    (file,) = outside.iterdir()
    assert (file.name, file.read_bytes()) == ("authorized_keys", b"mine")


def hostile_names(outside: Path) -> tuple[str, ...]:
    """Return names of files outside a folder, and one with a dot."""
    return (
        f"{outside}/authorized_keys",
        f"{UP}{outside}/authorized_keys".replace("//", "/"),
        f"a/{UP}{outside}/new".replace("//", "/"),
        "./x",
    )


def bucket_of(cli: Cli) -> Bucket:
    return Bucket(client=cli.client("s3"), name="bucket")


def snapshot(cli: Cli, name: str, /, data: bytes = b"theirs", **fields: Any) -> None:
    digest = hashlib.sha256(data).hexdigest()
    cli.put(f"runs/x/snapshots/objects/{digest}", data)
    entry = {"root": "checkpoints", "path": name, "bytes": len(data), "sha256": digest}
    entry |= {"mode": 0o644, "mtime_ns": 1, "nodes": [0], **fields}
    document = {"format": 1, "number": 1, "at": "2026-01-01", "nodes": 1, "main": 0}
    cli.put("runs/x/snapshots/00000001.json", {**document, "files": [entry]})


class Keys:
    """A bucket with one object, whose key Python's S3 clients would refuse to put."""

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
def test_tensorboard_writes_no_log_outside_its_folder(
    tmp_path: Path, outside: Path, folder: str
) -> None:
    for name in hostile_names(outside):
        key = f"runs/x/{folder}{name}/tfevents"

        with pytest.raises(Refusal, match="cannot be used on this machine") as refused:
            copy_logs(Keys(key), "x", tmp_path / "tb" / "x")  # type: ignore[arg-type]

        assert f"s3://bucket/{key}" in refused.value.message
        assert_unchanged(outside)
        assert not list(tmp_path.glob("tb/**/*.*"))


def test_tensorboard_writes_no_snapshot_file_outside_its_folder(
    cli: Cli, tmp_path: Path, outside: Path
) -> None:
    for name in hostile_names(outside):
        snapshot(cli, f"{name}.tfevents.1")

        with pytest.raises(Refusal, match=r"snapshots/00000001\.json cannot be used on this"):
            copy_logs(bucket_of(cli), "x", tmp_path / "tb" / "x")

        assert_unchanged(outside)


def test_tensorboard_copies_only_event_files(cli: Cli, tmp_path: Path) -> None:
    """A projector configuration, for example, names local files to open."""
    for name in ("", "projector_config.pbtxt", "events.out.tfevents.1"):
        cli.put(f"runs/x/logs/tensorboard/{name}", b"one")

    assert copy_logs(bucket_of(cli), "x", tmp_path / "x") == 1


def test_download_writes_no_snapshot_file_outside_its_folder(
    cli: Cli, run: Path, tmp_path: Path, outside: Path
) -> None:
    for name in hostile_names(outside):
        snapshot(cli, name)
        for more in ([], ["--dry-run"]):
            assert_refused(
                cli.run("download", "x", "--to", str(tmp_path / "here"), *more),
                "snapshots/00000001.json cannot be used below",
                "--snapshot N",
            )
        assert_unchanged(outside)


def test_download_does_not_write_through_links(
    cli: Cli, run: Path, tmp_path: Path, outside: Path
) -> None:
    snapshot(cli, "a/authorized_keys")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a").symlink_to(outside)

    assert_refused(
        cli.run("download", "x", "--to", str(tmp_path / "here")),
        "a is a symbolic link: nothing is written through",
    )
    assert_unchanged(outside)


def test_download_refuses_file_in_place_of_folder(cli: Cli, run: Path, tmp_path: Path) -> None:
    snapshot(cli, "a/b")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a").write_bytes(b"mine")

    assert_refused(cli.run("download", "x", "--to", str(tmp_path / "here")), "a already exists")
    assert (tmp_path / "here" / "a").read_bytes() == b"mine"


def test_names_cannot_control_terminal(cli: Cli, run: Path, tmp_path: Path) -> None:
    snapshot(cli, "\x1b]0;owned\x07\x1b[2Ja\udcff")

    result = cli.run("download", "x", "--to", str(tmp_path / "here"), "--dry-run")
    refused = cli.run("status", "\x1b[2J")

    assert result.stdout.rstrip().endswith("here/\\x1b]0;owned\\x07\\x1b[2Ja\\udcff")
    assert "\x1b" not in result.stdout + result.stderr + refused.stderr


def test_invalid_snapshot_is_ignored(cli: Cli, run: Path, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        *({"bytes": "many"}, {"bytes": -1}, {"nodes": 3}, {"sha256": "../x"}, {"path": ["a"]}),
    ]
    for change in changes:
        snapshot(cli, "a", **change)
        result = cli.run("download", "x", "--to", str(tmp_path / "here"))
        assert_refused(result, "has no complete snapshot yet")


@pytest.mark.parametrize("data", [b"{", b'{"files": 3}', b'{"files": [{"root": 3}]}'])
def test_program_can_start_over_despite_invalid_snapshot(cli: Cli, run: Path, data: bytes) -> None:
    cli.put("runs/x/snapshots/00000001.json", data)

    result = cli.run("submit", "./train.py", "--name", "x", "--from-snapshot", "none", "--yes")

    assert result.exit_code == 0, result.stderr
    document = json.loads(read(cli, "runs/x/snapshots/00000002.json"))
    assert (document["chosen"], document["number"], document["files"]) == (0, 2, [])


def listed(cli: Cli, **fields: Any) -> None:
    """Change the first file in the newest submission's file list."""
    code = json.loads(read(cli, "runs/x/program.json"))["submissions"][-1]["code"]
    key = f"runs/x/code/{code}.json"
    listing = json.loads(read(cli, key))
    listing["files"][0] |= fields
    cli.put(key, listing)


def test_code_writes_no_file_outside_its_folder(
    cli: Cli, run: Path, tmp_path: Path, outside: Path
) -> None:
    for name in hostile_names(outside):
        listed(cli, path=name)
        result = cli.run("code", "x", "--fetch", str(tmp_path / "back"))
        assert_refused(result, "has an invalid name")
        assert_unchanged(outside)


def test_code_does_not_write_through_links(
    cli: Cli, run: Path, tmp_path: Path, outside: Path
) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "train.py").symlink_to(outside / "authorized_keys")

    assert_refused(
        cli.run("code", "x", "--fetch", str(tmp_path / "back")),
        "train.py is a symbolic link: nothing is written through", "another folder with --fetch",
    )  # fmt: skip
    assert_unchanged(outside)


def test_code_restores_only_executable_bit(cli: Cli, run: Path, tmp_path: Path) -> None:
    listed(cli, mode=0o6777)

    assert cli.run("code", "x", "--fetch", str(tmp_path / "back")).exit_code == 0

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "back").iterdir()}
    assert modes == {"run.sh": 0o755, "train.py": 0o644}


def test_code_writes_nothing_that_git_would_run(cli: Cli, run: Path, tmp_path: Path) -> None:
    for path in (".git/hooks/pre-commit", "a/.GIT/config", ".hg/hgrc"):
        listed(cli, path=path)
        result = cli.run("code", "x", "--fetch", str(tmp_path / "back"))
        assert_refused(result, "a folder that submit excludes")
        assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    "data",
    [b"no archive", b"", gzip.compress(b"no tar", mtime=0), "a link"],
    ids=["no-archive", "nothing", "no-tar", "link"],
)
def test_code_refuses_foreign_archive(
    cli: Cli, run: Path, tmp_path: Path, data: bytes | str
) -> None:
    if isinstance(data, str):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            member = tarfile.TarInfo("train.py")
            member.type, member.linkname = tarfile.SYMTYPE, "missing"
            tar.addfile(member)
        data = packed.getvalue()
    record = json.loads(read(cli, "runs/x/program.json"))
    submission = record["submissions"][-1]
    listing = read(cli, f"runs/x/code/{submission['code']}.json")
    submission["code"] = hashlib.sha256(data).hexdigest()
    cli.put(f"runs/x/code/{submission['code']}.json", listing)
    cli.put(f"runs/x/code/{submission['code']}.tar.gz", data)
    cli.put("runs/x/program.json", record)

    result = cli.run("code", "x", "--fetch", str(tmp_path / "back"))

    assert result.exit_code != 0
    assert (
        "is not an archive written by submit" in result.stderr or "in the bundle" in result.stderr
    )
    assert "Traceback" not in result.stderr


def test_code_refuses_invalid_file_list(cli: Cli, run: Path) -> None:
    changes: list[dict[str, Any]] = [{"bytes": "x"}, {"path": 3}, {"mode": None}]
    for change in changes:
        listed(cli, **{"bytes": 9, "path": "run.sh", "mode": 0o755, **change})
        assert_refused(cli.run("code", "x"), "is not a list of files")
