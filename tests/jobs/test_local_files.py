"""Local files that a command reads or writes: names, permissions and kinds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import Result

from jobs.cli import app
from tests.jobs.conftest import Cli
from tests.jobs.programs import git
from tests.jobs.test_refusals import assert_refused
from tests.jobs.test_untrusted_keys import snapshot
from tests.jobs.test_watch_program import run
from tests.support.limits import scaled

__all__ = ["run"]
ROOT = Path(__file__).resolve().parents[2]


def test_empty_text_is_not_a_path() -> None:
    result = Cli("").run("code", "x", "--diff", "", "--json")

    assert result.exit_code == 2
    assert '"refused": "usage"' in result.stdout
    assert (
        "'' is not a path; specify a file or folder, or . for the current folder" in result.stdout
    )
    # typer's own type treats '' as the current folder.
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    assert "path" not in {item.type.name for command in commands for item in command.params}


def test_unexpanded_tilde_is_home_folder(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cli.run("code", "x", "--fetch=~/back").exit_code == 0
    assert_usage(cli.run("code", "x", "--fetch=~nobody-of-that-name/x"), "an unknown user")

    assert (tmp_path / "back" / "train.py").is_file()
    assert not (run / "~").exists()


def test_empty_upload_name_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")

    result = cli.run("upload", str(tmp_path / "train.py"), "--name", "")

    assert_refused(result, "'' cannot be used as a name in the bucket", "set --name to")


def assert_usage(result: Result, fragment: str) -> None:
    assert result.exit_code == 2
    assert fragment in result.stderr


def test_download_asks_before_overwriting(cli: Cli, run: Path, tmp_path: Path) -> None:
    snapshot(cli, "last.pt")
    there = tmp_path / "here"
    there.mkdir()
    (there / "last.pt").write_bytes(b"mine")
    words = ("download", "x", "--to", str(there))

    assert_refused(cli.run(*words), "overwriting last.pt in ", "needs confirmation", "add --yes")
    assert "would overwrite last.pt" in cli.run(*words, "--dry-run").stderr
    assert (there / "last.pt").read_bytes() == b"mine"

    assert cli.run(*words, "--yes").exit_code == 0
    assert (there / "last.pt").read_bytes() == b"theirs"
    again = cli.run(*words)
    assert (again.exit_code, "1 file already present" in again.stderr) == (0, True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a unique name, whose permissions a test may revoke."""
    path = ROOT / "build" / f"closed-{os.getpid()}"
    path.mkdir(parents=True)
    yield path
    for each in (path, *path.rglob("*")):
        if each.is_dir():
            each.chmod(0o700)
    shutil.rmtree(path)


def without_privilege(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line bound by file permissions, even as root."""
    own = []
    if os.geteuid() == 0:
        # Root keeps ownership of its files, but loses the capability to override permissions.
        own = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    return subprocess.run(
        [*own, sys.executable, "-m", "jobs", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


@pytest.mark.parametrize(
    ("closed", "words"),
    [
        ("", ("submit", "{}/train.py", "--dry-run")),
        ("pkg", ("submit", "{}/train.py", "--dry-run")),
        ("", ("submit", "{}", "--help")),
        ("pkg", ("upload", "{}", "--all")),
        ("", ("code", "x", "--fetch", "{}/pkg")),
        ("pkg", ("code", "x", "--diff", "{}")),
        ("pkg", ("download", "x", "--to", "{}/pkg/new")),
        ("", ("check-deploy", "--assembly", "{}")),
    ],
)
def test_folder_without_permission_is_one_message(
    cli: Cli, run: Path, folder: Path, closed: str, words: tuple[str, ...]
) -> None:
    snapshot(cli, "last.pt")
    (folder / "pkg").mkdir()
    for name in ("train.py", "pkg/train.py", "pkg/a.txt"):
        (folder / name).write_text("x = 1\n")
    (folder / closed).chmod(0)

    done = without_privilege(*(word.format(folder) for word in words), cwd=ROOT)

    assert "Traceback" not in done.stderr
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("refused: ")
    assert done.stderr.count("\n") == 1
    assert str(folder) in done.stderr


def bundle_lines(cli: Cli, *words: str) -> str:
    result = cli.run("submit", "./train.py", "--dry-run", "--name", "mine", *words)
    return result.stderr


@pytest.mark.parametrize("with_git", [False, True])
def test_pipe_in_folder_is_listed_as_not_packed(cli: Cli, program: Path, with_git: bool) -> None:
    if with_git:
        git(program, "init", "-q")
    os.mkfifo(program / "pkg" / "queue")

    assert "not packed: pkg/queue (a pipe)" in bundle_lines(cli)
    assert "a pipe" not in bundle_lines(cli, "--exclude", "queue")


@pytest.mark.parametrize(
    ("link", "target"), [("me", "me"), ("pkg/up", ".."), ("all", "."), ("pkg/a", "b")]
)
def test_link_to_itself_is_refused(cli: Cli, program: Path, link: str, target: str) -> None:
    (program / link).symlink_to(target)
    if target == "b":
        (program / "pkg" / "b").symlink_to("a")

    result = cli.run("submit", "./train.py", "--dry-run")

    assert_refused(result, "is a link to ", "--exclude ")
    assert "leads back to the link itself" in result.stderr


def test_link_within_linked_folder_is_refused(cli: Cli, program: Path) -> None:
    (program / "data").mkdir()
    (program / "data" / "more").symlink_to("../pkg")
    (program / "linked").symlink_to("data")

    result = cli.run("submit", "./train.py", "--dry-run")

    assert_refused(
        result, "linked is a link to a folder that contains the link data/more", "--exclude"
    )


def test_upload_lists_skipped_special_files(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "text"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    os.mkfifo(folder / "queue")
    (folder / "sub" / "me").symlink_to("me")
    (folder / "again").symlink_to("sub")

    result = cli.run("upload", str(folder))

    assert result.exit_code == 0, result.stderr
    assert (
        "skipped, not text: again (a link to a folder), queue (a pipe), sub/me (a broken link)"
        in result.stderr
    )
    assert cli.keys("corpora/") == ["corpora/text/a.txt"]


def test_any_file_is_usable_as_program_input(cli: Cli, program: Path) -> None:
    (program / "images.tar.gz").write_bytes(b"\0" * 10)

    sent = cli.run("upload", "./images.tar.gz", "--name", "mine")
    uri = "s3://bucket/corpora/mine/"
    result = cli.run("submit", "./train.py", "--input", uri, "--name", "r", "--yes")

    assert f"submit ./train.py --input {uri} ..., which copies it to TRAINIUM_INPUT_DIR" in (
        sent.stderr
    )
    assert cli.keys("corpora/") == ["corpora/mine/images.tar.gz"]
    assert result.exit_code == 0, result.stderr
    assert f"input: {uri}, in TRAINIUM_INPUT_DIR on every node" in result.stderr


def test_upload_all_includes_every_file(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "_a").mkdir(parents=True)
    names = (".index", "1.png", "_a/2.png", "labels.txt")
    for name in names:
        (folder / name).write_bytes(b"x")

    text = cli.run("upload", str(folder), "--dry-run")
    whole = cli.run("upload", str(folder), "--all")

    assert "skipped, not text: 1.png\n--all uploads every file" in text.stderr
    assert whole.exit_code == 0, whole.stderr
    assert cli.keys("corpora/") == [f"corpora/images/{name}" for name in names]
