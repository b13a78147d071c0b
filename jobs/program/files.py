"""Selection of a program's files: those that git does not ignore, or, without git, almost all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import Refusal
from jobs.output.console import human
from jobs.program.globs import match_any

MAX_FILES = 20_000
"""Maximum number of files in a bundle, since every node lists, hashes and writes each."""
NEVER = (".git", ".hg", ".svn")
"""Folders that are never included: a repository is not part of a program."""
LEFT_OUT = (
    *("__pycache__", "*.pyc", "node_modules", ".venv", "venv", ".tox", ".nox", ".eggs"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".DS_Store"),
)
"""Names excluded even without git: generated and machine-specific files."""
_VENV_MARK = "pyvenv.cfg"
_UNREADABLE = "a folder that cannot be read"
_SPECIAL = {
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
"""Kinds of entries that cannot be packed."""
_MAX_NAMED = 3
"""Maximum number of git-ignored names to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """State of the folder's git repository."""

    commit: str | None
    """Current commit; null before the first one."""
    dirty: bool
    """True if files in the folder have uncommitted changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The files of a bundle, and the names left out."""

    folder: Path
    paths: tuple[str, ...]
    """Relative paths with slashes, sorted."""
    left_out: tuple[str, ...]
    """Excluded paths and patterns, for display."""
    git: Git | None
    remark: str | None = None
    """Note about the selection."""
    ignored_code: tuple[str, ...] = ()
    """Files matched by ``ignores`` that git tracks or that are Python code."""


def select(
    folder: Path, *, include: Sequence[str], exclude: Sequence[str], ignores: Sequence[str] = ()
) -> Selection:
    """Select the files of a folder; ``include`` overrides all other rules except ``NEVER``.

    ``ignores`` are further patterns to exclude, such as the checkpoint folder.
    """
    tracked, git, remark = _read_git(folder, (*exclude, *ignores))
    everything = sorted(_walk(folder)) if tracked is None or include else ()
    candidates = everything if tracked is None else sorted({*tracked, *everything})
    listed = None if tracked is None else set(tracked)
    taken: list[str] = []
    left_out: dict[str, None] = {}
    for path in () if listed is None else _unlisted_entries(folder, listed):
        if match_any(path, (*exclude, *ignores, *LEFT_OUT)) is None:
            left_out[f"{path} ({kind_of(folder / path)})"] = None
    ignored: list[str] = []
    for path in candidates:
        if match_any(path, NEVER):
            continue
        if match_any(path, include) is None:
            if listed is not None and path not in listed:
                continue  # git ignores it
            if reason := match_any(path, (*exclude, *ignores, *LEFT_OUT)):
                left_out[reason] = None
                if reason not in exclude and reason in ignores:
                    ignored.append(path)
                continue
        if (kind := kind_of(folder / path)) == _UNREADABLE:
            raise Refusal(
                "file",
                f"{folder / path} is {kind}; fix its permissions, or exclude it with --exclude "
                f"{path.rstrip('/')}",
            )
        if kind in _SPECIAL.values():
            left_out[f"{path} ({kind})"] = None
            continue
        taken.append(path)
        _check_count(folder, taken)
    if tracked is not None:
        remark = _ignored_remark(folder, (*include, *exclude, *ignores)) or remark
    for pattern in include:
        if not any(match_any(path, (pattern,)) for path in taken):
            raise Refusal(
                "no-such-file",
                f"--include {pattern}: no file in {folder} matches; a pattern without a slash "
                "matches a file or folder anywhere, one with a slash is relative to that folder",
            )
    return Selection(
        folder=folder,
        paths=tuple(taken),
        left_out=(*left_out, *_environments(folder, without_git=tracked is None)),
        git=git,
        remark=remark,
        ignored_code=tuple(_code(folder, ignored, with_git=tracked is not None)),
    )


def kind_of(path: Path) -> str:
    """Describe the kind of a path; a link to a file counts as a file."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return "gone"
    if stat.S_ISLNK(mode):
        return "a link to a folder" if path.is_dir() else "a broken link"
    if stat.S_ISDIR(mode):
        return "a folder" if os.access(path, os.R_OK | os.X_OK) else _UNREADABLE
    return next((name for is_one, name in _SPECIAL.items() if is_one(mode)), "a file")


def _unlisted_entries(folder: Path, listed: Collection[str]) -> Iterator[str]:
    """Yield entries that git never lists, next to listed files: pipes and unreadable folders."""
    for parent in sorted({path.rpartition("/")[0] for path in listed} | {""}):
        for entry in sorted((folder / parent).iterdir()):
            path = entry.relative_to(folder).as_posix()
            if path not in listed and kind_of(entry) in (*_SPECIAL.values(), _UNREADABLE):
                yield path


def _ignored_remark(folder: Path, patterns: Sequence[str]) -> str | None:
    """Describe the files that only git excludes, naming each fully ignored folder once."""
    listed = _git(
        folder, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"
    )
    names = [
        name
        for name in listed.split("\0")
        if name.strip("./")
        and match_any(name.rstrip("/"), (*patterns, *LEFT_OUT, *NEVER)) is None
        and not (folder / name / _VENV_MARK).exists()
    ]
    if not names:
        return None
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return (
        f"git ignores {', '.join(names[:_MAX_NAMED])}{more}, so they are not packed; use --include "
        "to pack them"
    )


def _code(folder: Path, paths: Sequence[str], *, with_git: bool) -> Iterator[str]:
    """Yield the paths that are code: tracked by git, or Python files."""
    if not paths:
        return
    listed = _git(folder, "ls-files", "-z", "--cached") if with_git else ""
    tracked = set(listed.split("\0"))
    yield from (path for path in paths if path in tracked or path.endswith(".py"))


def _check_count(folder: Path, taken: Sequence[str]) -> None:
    if len(taken) <= MAX_FILES:
        return
    counts: dict[str, int] = {}
    for path in taken:
        top = path.split("/")[0] + "/" if "/" in path else "."
        counts[top] = counts.get(top, 0) + 1
    most = sorted(counts, key=lambda top: -counts[top])[:3]
    shown = ", ".join(f"{top} ({counts[top]:,} or more)" for top in most)
    raise Refusal(
        "bundle-too-large",
        f"{folder} has more than {MAX_FILES:,} files, the limit for a bundle; most are in {shown}; "
        "exclude folders with --exclude, or move the program to a separate folder",
    )


def _walk(folder: Path) -> Iterator[str]:
    """Yield the files below a folder, and links to folders without following them.

    Skip ``NEVER`` and virtual environments; yield unreadable folders with a trailing slash.
    """
    seen = 0
    unreadable: list[str] = []
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    for here, folders, files in os.walk(
        folder, onerror=lambda error: unreadable.append(error.filename)
    ):
        at = Path(here)
        folders[:] = sorted(
            name for name in folders if name not in NEVER and not (at / name / _VENV_MARK).exists()
        )
        links = [name for name in folders if (at / name).is_symlink()]
        for name in sorted([*files, *links]):
            yield (at / name).relative_to(folder).as_posix()
            seen += 1
            if seen > 50 * MAX_FILES:
                raise Refusal(
                    "bundle-too-large",
                    f"{folder} has more than {50 * MAX_FILES:,} files; move the program to a "
                    "separate folder, or specify its folder with --workdir",
                )
    yield from (f"{Path(name).relative_to(folder).as_posix()}/" for name in unreadable)


def _environments(folder: Path, *, without_git: bool) -> Iterator[str]:
    """Yield the virtual environments in a folder without git, which are never packed."""
    if without_git:
        yield from (
            entry.name
            for entry in sorted(folder.iterdir())
            if entry.name not in LEFT_OUT and (entry / _VENV_MARK).exists()
        )


def _read_git(
    folder: Path, exclude: Sequence[str]
) -> tuple[list[str] | None, Git | None, str | None]:
    """List the files that git tracks or does not ignore, with the repository's state and a remark.

    The list and the state are None without a repository, or if git cannot list the folder.
    """
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None, None, None
    try:
        names = list(_list_files(folder, "", exclude))
        git = _state(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = str(getattr(error, "stderr", "") or error).strip().partition("\n")[0]
        return None, None, f"git failed ({reason}): all files in {folder} are packed"
    if not names:
        return None, None, f"git ignores {folder}: all files in it are packed"
    return names, git, None


def _list_files(folder: Path, prefix: str, exclude: Sequence[str]) -> Iterator[str]:
    listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in dict.fromkeys(listed.split("\0")):
        path = folder / name
        if not name or not (path.exists() or path.is_symlink()):
            continue  # deleted, not yet committed
        if path.is_dir() and not path.is_symlink():
            # A submodule or nested repository: git lists only its folder.
            shown = f"{prefix}{name.rstrip('/')}"
            if not (path / ".git").exists():
                if not match_any(f"{shown}/.git", exclude):
                    _refuse_if_submodule(folder, shown, name)
                continue
            yield from _list_files(path, f"{shown}/", exclude)
        else:
            yield prefix + name


def _refuse_if_submodule(folder: Path, shown: str, name: str) -> None:
    """Refuse a submodule that was not checked out; its index entry is a commit."""
    if _git(folder, "ls-files", "--stage", "--", name).startswith("160000 "):
        raise Refusal(
            "no-submodule",
            f"{shown} is a submodule that is not checked out, as after a plain clone; fetch it "
            f"with: git submodule update --init {shown}; or exclude it: --exclude {shown}",
        )


def _state(folder: Path) -> Git:
    lines = _git(folder, "status", "--porcelain=v2", "--branch", "--", ".").splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), None)
    return Git(
        commit=None if commit == "(initial)" else commit,
        dirty=any(not line.startswith("#") for line in lines),
    )


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        # A status must not lock or refresh the index of a repository in use.
        ["git", "--no-optional-locks", "-C", str(folder), *words],
        check=True,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
    )
    return done.stdout


def largest(sizes: Iterable[tuple[str, int]]) -> str:
    """Describe the five largest files, with their sizes."""
    most = sorted(sizes, key=lambda pair: (-pair[1], pair[0]))[:5]
    return ", ".join(f"{path} ({human(size)})" for path, size in most)
