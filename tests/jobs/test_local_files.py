"""Files of this machine that a command reads or writes: their names, permissions and kinds."""

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
from tests.jobs.conftest import Desk
from tests.jobs.test_bundle import git
from tests.jobs.test_refusals import assert_refused
from tests.jobs.test_untrusted_keys import snapshot
from tests.jobs.test_watch_program import run
from tests.support.limits import scaled

__all__ = ["run"]
ROOT = Path(__file__).resolve().parents[2]


def path_options() -> Iterator[tuple[str, str, list[str]]]:
    """Yield every option and argument that is a path, with the rest of a command line."""
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            if parameter.type.name in ("path", "given_path", "first_of_list"):
                others = [
                    "x" for p in command.params if p.param_type_name == "argument" and p.required
                ]
                yield (
                    name,
                    parameter.type.name,
                    [
                        name,
                        *(parameter.opts[-1:] if parameter.param_type_name == "option" else ()),
                        "",
                        *(others if parameter.param_type_name == "option" else ()),
                    ],
                )


@pytest.mark.parametrize(
    ("kind", "words"), [pytest.param(k, w, id=" ".join(w)) for _, k, w in path_options()]
)
def test_an_empty_text_is_no_path(kind: str, words: list[str]) -> None:
    result = Desk("").run(*words, "--json")

    assert result.exit_code == 2
    assert '"refused": "usage"' in result.stdout
    assert "'' is no path; name a file or folder, or . for this one" in result.stdout
    assert kind != "path"  # typer's own takes '' for the current folder


def test_every_option_for_a_path_is_known_here() -> None:
    assert {(words[0], *words[1:2]) for _, _, words in path_options()} == {
        ("upload", ""),
        ("download", "--to"),
        ("code", "--fetch"),
        ("code", "--diff"),
        ("submit", "--workdir"),
        ("submit", "--requirements"),
        ("check-deploy", "--assembly"),
        ("down", "--assembly"),
        ("down", "--receipt"),
        ("kubeconfig", "--kubeconfig"),
        ("port", "--workdir"),
    }


def test_a_tilde_that_no_shell_has_expanded_is_the_home(
    desk: Desk, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert desk.run("code", "x", "--fetch=~/back").exit_code == 0
    assert_usage(desk.run("code", "x", "--fetch=~nobody-of-that-name/x"), "an unknown user")

    assert (tmp_path / "back" / "train.py").is_file()
    assert not (run / "~").exists()


def test_an_empty_name_of_an_upload_is_refused(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")

    result = desk.run("upload", str(tmp_path / "train.py"), "--name", "")

    assert_refused(result, "'' cannot be its name in the bucket", "give one with --name")


def assert_usage(result: Result, fragment: str) -> None:
    assert result.exit_code == 2
    assert fragment in result.stderr


@pytest.fixture
def there(desk: Desk, run: Path, tmp_path: Path) -> Path:
    """A folder with files of the user's where a download would put others of the same name."""
    snapshot(desk, "last.pt")
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "last.pt").write_bytes(b"mine")
    return folder


def test_a_download_asks_before_it_overwrites(desk: Desk, there: Path) -> None:
    words = ("download", "x", "--to", str(there))

    assert_refused(desk.run(*words), "overwriting last.pt in ", "is asked about", "add --yes")
    assert "would overwrite last.pt" in desk.run(*words, "--dry-run").stderr
    assert (there / "last.pt").read_bytes() == b"mine"

    assert desk.run(*words, "--yes").exit_code == 0
    assert (there / "last.pt").read_bytes() == b"theirs"
    again = desk.run(*words)
    assert (again.exit_code, "1 file there already" in again.stderr) == (0, True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder named like nothing else, whose permissions a test may take away."""
    path = ROOT / "build" / f"closed-{os.getpid()}"
    path.mkdir(parents=True)
    yield path
    for each in (path, *path.rglob("*")):
        if each.is_dir():
            each.chmod(0o700)
    shutil.rmtree(path)


def without_privilege(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Call the command line as a user whom permissions bind, root included."""
    own = []
    if os.geteuid() == 0:
        # Root stays the owner of what it needs, and has no right to override permissions.
        own = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    return subprocess.run(
        [*own, sys.executable, "-m", "jobs", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


@pytest.mark.parametrize("closed", ["", "pkg"])
@pytest.mark.parametrize(
    "words",
    [
        ("submit", "{}/train.py", "--dry-run"),
        ("submit", "{}/train.py", "--help"),
        ("submit", "{}", "--help"),
        ("submit", "-m", "pkg.train", "--workdir", "{}", "--dry-run"),
        ("upload", "{}", "--all"),
        ("upload", "{}/pkg"),
        ("code", "x", "--fetch", "{}/pkg"),
        ("code", "x", "--diff", "{}"),
        ("download", "x", "--to", "{}/pkg/new"),
        ("check-deploy", "--assembly", "{}"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_a_folder_without_permission_is_one_message(
    desk: Desk, run: Path, folder: Path, closed: str, words: tuple[str, ...]
) -> None:
    snapshot(desk, "last.pt")
    (folder / "pkg").mkdir()
    for name in ("train.py", "pkg/train.py", "pkg/a.txt"):
        (folder / name).write_text("x = 1\n")
    (folder / closed).chmod(0)

    done = without_privilege(*(word.format(folder) for word in words), cwd=ROOT)

    assert "Traceback" not in done.stderr
    if closed == "" or words[:2] != ("submit", "{}/train.py") or "--dry-run" in words:
        assert done.returncode == 2, (done.stdout, done.stderr)
    if done.returncode:
        assert done.stderr.startswith("refused: ")
        assert done.stderr.count("\n") == 1
        assert str(folder) in done.stderr


def bundle_lines(desk: Desk, *words: str) -> str:
    result = desk.run("submit", "./train.py", "--dry-run", "--name", "mine", *words)
    return result.stderr


@pytest.mark.parametrize("with_git", [False, True])
def test_a_pipe_in_the_folder_is_named_among_what_stays(
    desk: Desk, program: Path, with_git: bool
) -> None:
    if with_git:
        git(program, "init", "-q")
    os.mkfifo(program / "pkg" / "queue")

    assert "left out of it: pkg/queue (a pipe)" in bundle_lines(desk)
    assert "a pipe" not in bundle_lines(desk, "--exclude", "queue")


@pytest.mark.parametrize(
    ("link", "target"), [("me", "me"), ("pkg/up", ".."), ("all", "."), ("pkg/a", "b")]
)
def test_a_link_that_leads_back_to_itself_is_refused(
    desk: Desk, program: Path, link: str, target: str
) -> None:
    (program / link).symlink_to(target)
    if target == "b":
        (program / "pkg" / "b").symlink_to("a")

    result = desk.run("submit", "./train.py", "--dry-run")

    assert_refused(result, "is a link to ", "--exclude ")
    assert "leads back to the link itself" in result.stderr


def test_a_link_within_a_linked_folder_is_refused(desk: Desk, program: Path) -> None:
    (program / "data").mkdir()
    (program / "data" / "more").symlink_to("../pkg")
    (program / "linked").symlink_to("data")

    result = desk.run("submit", "./train.py", "--dry-run")

    assert_refused(result, "linked is a link to a folder with the link data/more", "--exclude")


def test_an_upload_names_what_is_no_file(desk: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "text"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    os.mkfifo(folder / "queue")
    (folder / "sub" / "me").symlink_to("me")
    (folder / "again").symlink_to("sub")

    result = desk.run("upload", str(folder))

    assert result.exit_code == 0, result.stderr
    assert (
        "left out, not text: again (a link to a folder), queue (a pipe), sub/me (a link to nothing)"
        in result.stderr
    )
    assert desk.keys("corpora/") == ["corpora/text/a.txt"]


@pytest.mark.parametrize("name", ["data.bin", "noext", "images.tar.gz"])
def test_any_file_gets_to_a_program(desk: Desk, program: Path, name: str) -> None:
    (program / name).write_bytes(b"\0" * 10)

    sent = desk.run("upload", f"./{name}", "--name", "mine")
    uri = "s3://bucket/corpora/mine/"
    result = desk.run("submit", "./train.py", "--input", uri, "--name", "r", "--yes")

    assert f"submit ./train.py --input {uri} ..., which puts it into TRAINIUM_INPUT_DIR" in (
        sent.stderr
    )
    assert desk.keys("corpora/") == [f"corpora/mine/{name}"]
    assert result.exit_code == 0, result.stderr
    assert f"input: {uri}, in TRAINIUM_INPUT_DIR on every node" in result.stderr


def test_any_folder_gets_there_whole(desk: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "_a").mkdir(parents=True)
    names = (".index", "1.png", "_a/2.png", "labels.txt")
    for name in names:
        (folder / name).write_bytes(b"x")

    text = desk.run("upload", str(folder), "--dry-run")
    whole = desk.run("upload", str(folder), "--all")

    assert "left out, not text: 1.png\n--all takes every file" in text.stderr
    assert whole.exit_code == 0, whole.stderr
    assert desk.keys("corpora/") == [f"corpora/images/{name}" for name in names]
