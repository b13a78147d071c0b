"""Untrusted names become files below a folder, and nowhere else."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainium_catalogue import safe_folder
from trainium_catalogue.safe_folder import (
    PART_PREFIX,
    SafeFolder,
    UnsafeName,
    path_parts,
    user_mode,
)

UNSAFE = {
    "": "empty name",
    "/etc/passwd": "absolute path",
    "//etc/passwd": "absolute path",
    "..": "leads out",
    "../x": "leads out",
    "a/../../x": "leads out",
    "a/..": "leads out",
    "a\0b": "NUL",
    "a//b": "empty component",
    "a/": "empty component",
    "./a": "single dot",
    "a/./b": "single dot",
    ".": "single dot",
    "x" * 256: "too long",
    "/".join(["x" * 200] * 30): "too long",
    "\ud800": "cannot be encoded",
}


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder: modes and contents, links as themselves."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.fsencode(path.readlink()) if path.is_symlink() else b""
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (status.st_mode, content)
    return found


def write(folder: SafeFolder, name: str) -> None:
    with folder.create(name) as file:
        file.write(b"new")


def update(folder: SafeFolder, name: str) -> None:
    with folder.update(name) as file:
        file.write(b"new")


def move(folder: SafeFolder, name: str) -> None:
    source = folder.root.parent / "source"
    source.write_bytes(b"new")
    folder.move_in(source, name, mode=0o600, mtime_ns=10**9)


def copy(folder: SafeFolder, name: str) -> None:
    source = folder.root.parent / "source"
    source.write_bytes(b"new")
    folder.copy_in(source, name, mode=0o600, mtime_ns=10**9)


def prepared(folder: SafeFolder, name: str) -> None:
    folder.prepared(name)


def make_folder(folder: SafeFolder, name: str) -> None:
    folder.make_folder(name)


def set_folder_mode(folder: SafeFolder, name: str) -> None:
    folder.set_folder_mode(name, 0o700)


def link(folder: SafeFolder, name: str) -> None:
    folder.link(name, "elsewhere")


WAYS = [write, update, move, copy, prepared, make_folder, set_folder_mode, link]
Way = Callable[[SafeFolder, str], None]


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """The folder, next to one that must not change."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"old")
    (tmp_path / "inside").mkdir()
    return tmp_path / "inside"


@pytest.mark.parametrize(("name", "reason"), UNSAFE.items())
def test_name_outside_folder_is_refused_with_reason(name: str, reason: str) -> None:
    with pytest.raises(UnsafeName, match=reason) as refused:
        path_parts(name)

    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("way", WAYS)
def test_refused_name_is_not_written(inside: Path, way: Way) -> None:
    outside = tree(inside.parent / "outside")

    for name, replace in product(UNSAFE, (False, True)):
        with pytest.raises(UnsafeName):
            way(SafeFolder(inside, replace=replace), name)

    assert tree(inside.parent / "outside") == outside
    assert tree(inside) == {}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", ["../outside", "../outside/file", "nowhere"])
@pytest.mark.parametrize("name", ["link/file", "link/deep/file"])
def test_link_in_parent_folders_is_refused(inside: Path, target: str, name: str, way: Way) -> None:
    (inside / "link").symlink_to(target)
    before = tree(inside.parent / "outside")

    with pytest.raises(UnsafeName, match=r"link is a symbolic link"):
        way(SafeFolder(inside), name)

    assert tree(inside.parent / "outside") == before
    assert (inside / "link").is_symlink()


@pytest.mark.parametrize("way", [write, update, move, copy, prepared, link])
@pytest.mark.parametrize("target", ["../outside/file", "../outside", "../outside/new", "nowhere"])
def test_link_instead_of_file_is_refused(inside: Path, target: str, way: Way) -> None:
    (inside / "file").symlink_to(target)
    before = tree(inside.parent / "outside")

    with pytest.raises(UnsafeName, match="file is a symbolic link"):
        way(SafeFolder(inside), "file")

    assert tree(inside.parent / "outside") == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["entry", "entry/below"])
@pytest.mark.parametrize("kind", ["link", "file", "folder"])
def test_obstacle_is_replaced_on_request(inside: Path, name: str, way: Way, kind: str) -> None:
    entry = inside / "entry"
    if kind == "link":
        entry.symlink_to("../outside")
    elif kind == "file":
        entry.write_bytes(b"old")
    else:
        (entry / "below").mkdir(parents=True)
    before = tree(inside.parent / "outside")

    way(SafeFolder(inside, replace=True), name)

    assert tree(inside.parent / "outside") == before
    if way in (write, update, move, copy):
        assert (inside / name).read_bytes() == b"new"
    if way is link:
        assert str((inside / name).readlink()) == "elsewhere"
    if name == "entry/below":
        assert stat.S_ISDIR(entry.lstat().st_mode)


@pytest.mark.parametrize(
    ("before", "way", "name"), [("a", write, "a/b"), ("a/b", write, "a"), ("a", link, "a")]
)
def test_entry_of_another_kind_is_not_replaced(
    inside: Path, before: str, way: Way, name: str
) -> None:
    write(SafeFolder(inside), before)

    with pytest.raises(UnsafeName, match="a already exists"):
        way(SafeFolder(inside), name)


@pytest.mark.parametrize("way", [write, update, move, copy, prepared, make_folder, link])
@pytest.mark.parametrize("target", ["../outside", "../outside/file"])
def test_link_created_concurrently_is_not_followed(
    inside: Path, target: str, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another process had created it between the check of the folder and its use."""
    (inside / "link").symlink_to(target)
    before = tree(inside.parent / "outside")
    monkeypatch.setattr(safe_folder, "_kind", lambda parent, name: 0)

    for replace in (False, True):
        with pytest.raises((UnsafeName, OSError)):
            way(SafeFolder(inside, replace=replace), "link/file")

    assert tree(inside.parent / "outside") == before


@pytest.mark.parametrize("target", ["../outside", "../outside/file"])
def test_link_replacing_file_is_not_written_through(
    inside: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inside / "link").symlink_to(target)
    before = tree(inside.parent / "outside")
    monkeypatch.setattr(safe_folder, "_kind", lambda parent, name: 0)

    with pytest.raises(UnsafeName, match="link is a symbolic link"):
        update(SafeFolder(inside), "link")
    for way in (write, move, copy):  # these replace the link with their file
        way(SafeFolder(inside), "link")
        assert (inside / "link").read_bytes() == b"new"

    assert tree(inside.parent / "outside") == before


def test_temporary_file_is_new(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda count: "known")
    (inside / f"{PART_PREFIX}known").symlink_to("../outside/file")

    with pytest.raises(FileExistsError), SafeFolder(inside).create("a"):
        pass

    assert (inside.parent / "outside" / "file").read_bytes() == b"old"


def test_complete_file_replaces_older_file(inside: Path) -> None:
    folder = SafeFolder(inside)
    write(folder, "deep/er/file")

    with folder.create("deep/er/file", mode=0o640) as file:
        file.write(b"newer")
        assert (inside / "deep/er/file").read_bytes() == b"new"

    assert (inside / "deep/er/file").read_bytes() == b"newer"
    assert stat.S_IMODE((inside / "deep/er/file").stat().st_mode) == 0o640


def test_failed_write_keeps_older_file_only(inside: Path) -> None:
    folder = SafeFolder(inside)
    write(folder, "file")

    with pytest.raises(KeyboardInterrupt), folder.create("file") as file:
        file.write(b"half")
        raise KeyboardInterrupt

    assert [path.name for path in inside.iterdir()] == ["file"]
    assert (inside / "file").read_bytes() == b"new"


def test_links_above_folder_are_followed(inside: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(inside)

    write(SafeFolder(tmp_path / "alias" / "sub"), "file")

    assert (inside / "sub" / "file").read_bytes() == b"new"


def test_update_keeps_remaining_content(inside: Path) -> None:
    folder = SafeFolder(inside)
    (inside / "events").write_bytes(b"old and more")

    update(folder, "events")

    assert (inside / "events").read_bytes() == b"new and more"


def test_file_moves_between_file_systems(
    inside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"moved")
    rename = os.rename

    def across(old: str, new: str, **where: int) -> None:
        if "src_dir_fd" not in where:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(old, new, **where)

    monkeypatch.setattr(os, "rename", across)
    SafeFolder(inside).move_in(source, "a/file", mode=0o600, mtime_ns=10**18)

    status = (inside / "a/file").stat()
    assert (status.st_mtime_ns, stat.S_IMODE(status.st_mode)) == (10**18, 0o600)
    assert (inside / "a/file").read_bytes() == b"moved"
    assert not source.exists()


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777, 0o777, 0o666])
def test_only_the_users_permissions_are_kept(mode: int) -> None:
    assert user_mode(mode) == mode & 0o700


@pytest.mark.parametrize("target", ["step-1", "../outside", "/etc/passwd", "nowhere"])
def test_link_is_created_with_any_target(inside: Path, target: str) -> None:
    SafeFolder(inside).link("a/last", target)

    assert str((inside / "a/last").readlink()) == target


@pytest.mark.parametrize("target", ["", "a\0b", "\ud800", "x" * 5000])
def test_impossible_link_target_is_refused(inside: Path, target: str) -> None:
    with pytest.raises(UnsafeName, match="is not a valid target of a symbolic link"):
        SafeFolder(inside).link("last", target)


names = st.lists(
    st.sampled_from(["a", "b", "link", "..", ".", "", "\0", "x" * 300, "é", "\udcff", "-", " "]),
    min_size=1,
    max_size=5,
).map("/".join)


@settings(max_examples=200)
@given(st.lists(st.tuples(names, st.sampled_from(WAYS), st.booleans()), max_size=6))
def test_no_name_sequence_changes_files_outside(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Way, bool]]
) -> None:
    base = tmp_path_factory.mktemp("names")
    outside, folder = base / "outside", base / "inside"
    outside.mkdir()
    (outside / "a").write_bytes(b"old")
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    before = tree(outside)

    for name, way, replace in steps:
        try:
            way(SafeFolder(folder, replace=replace), name)
        except UnsafeName as error:
            assert "\n" not in str(error)

    assert tree(outside) == before
    assert {path.name for path in base.iterdir()} <= {"outside", "inside", "source"}
