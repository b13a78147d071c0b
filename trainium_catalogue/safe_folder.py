"""Turns names from outside into files below a folder, and into nothing else.

Keys of a bucket and names in its manifests are written by anyone with write access, a training
program among them. Taken as paths they reach any file of the machine: ``/etc/passwd``, ``../x``, or
``a/b`` where ``a`` is a symbolic link. Everything that writes files under such names goes through
``SafeFolder``, which opens one component after the other and follows no link (openat(2),
O_NOFOLLOW).
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PART_PREFIX = ".part-"
"""Prefix of files that are still being written."""
_MAX_NAME_BYTES = 255
"""Longest component of a path that Linux file systems take (NAME_MAX)."""
_MAX_PATH_BYTES = 4000
"""Longest name; the kernel's limit of 4,096 (PATH_MAX) counts the folder too."""
_SHOWN = 80
_IN_THE_WAY = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR})
"""What the kernel answers for a link, file or folder where another kind is needed."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafeName(ValueError):
    """A name that is not a path below its folder, or that leads through a link or file there."""


def path_parts(name: str) -> tuple[str, ...]:
    """Split a relative path into its components; ``UnsafeName`` says what is wrong with it.

    Each path has one spelling, so names that differ are different files.
    """
    shown = repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")
    if not name:
        raise UnsafeName("an empty name is not a path below a folder")
    if name.startswith("/"):
        raise UnsafeName(f"{shown} is an absolute path")
    if "\0" in name:
        raise UnsafeName(f"{shown} contains a NUL character")
    parts = tuple(name.split("/"))
    if ".." in parts:
        raise UnsafeName(f"{shown} leads out of its folder")
    if "" in parts or "." in parts:
        raise UnsafeName(f"{shown} has an empty component or a single dot")
    try:
        sizes = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise UnsafeName(f"{shown} cannot be encoded as a file name") from None
    if max(sizes) > _MAX_NAME_BYTES or sum(sizes) + len(sizes) > _MAX_PATH_BYTES:
        raise UnsafeName(f"{shown} is too long for a file name")
    return parts


def check_link_target(target: str) -> None:
    """Raise ``UnsafeName`` for what no symbolic link can lead to, on any machine."""
    try:
        size = len(os.fsencode(target))
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _MAX_PATH_BYTES or "\0" in target:
        raise UnsafeName(f"no symbolic link can lead to {target[:_SHOWN]!r}")


def user_mode(mode: int) -> int:
    """Keep only the user's permissions: no setuid, setgid or sticky bit, no group, no others."""
    return mode & stat.S_IRWXU


class SafeFolder:
    """A folder named by its user, for files that are named by someone else.

    Links on the way to ``root`` are followed; below it none is. A new file takes the place of an
    older one. Anything else in the way of a file, folder or link is removed with ``replace``, which
    is for one writer, and refused without, with ``UnsafeName``. Folders are created as needed.
    """

    def __init__(self, root: Path, *, replace: bool = False) -> None:
        self.root = root
        self._replace = replace

    def path(self, name: str) -> Path:
        """Return the path of ``name`` to read from; ``UnsafeName`` if a link is on the way."""
        path = self.root
        for part in path_parts(name):
            path = path / part
            if path.is_symlink():
                raise _in_the_way(path)
        return path

    def prepared(self, name: str) -> Path:
        """Create the folders above ``name`` and return its path, for libraries that need a path.

        They must write to a new file beside it and rename that, which follows no link.
        """
        with self._parent(path_parts(name)) as (parent, leaf):
            self._make_room(parent, leaf, name)
        return self.root / name

    @contextmanager
    def create(self, name: str, *, mode: int = 0o644) -> Iterator[BinaryIO]:
        """Open a new file, which appears when the block ends and replaces an older one.

        An exception in the block leaves nothing behind.
        """
        with self._refusing(name), self._parent(path_parts(name)) as (parent, leaf):
            part = f"{PART_PREFIX}{secrets.token_hex(8)}"
            try:
                with os.fdopen(_new_file(parent, part), "w+b") as file:
                    yield file
                    file.flush()
                    os.fchmod(file.fileno(), mode)
                self._make_room(parent, leaf, name)
                os.rename(part, leaf, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=parent)
                raise

    def update(self, name: str) -> BinaryIO:
        """Open a file to write in place; it is created if missing, and not truncated."""
        with self._refusing(name), self._parent(path_parts(name)) as (parent, leaf):
            self._make_room(parent, leaf, name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.fdopen(os.open(leaf, flags, 0o644, dir_fd=parent), "wb")

    def move_in(self, source: Path, name: str, *, mode: int, mtime_ns: int) -> None:
        """Move a file of this machine, of the caller's own, to ``name``."""
        try:
            with self._parent(path_parts(name)) as (parent, leaf):
                os.utime(source, ns=(mtime_ns, mtime_ns))
                source.chmod(mode)
                self._make_room(parent, leaf, name)
                os.rename(source, leaf, dst_dir_fd=parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # This folder is on another file system.
            self.copy_in(source, name, mode=mode, mtime_ns=mtime_ns)
            source.unlink()

    def copy_in(self, source: Path, name: str, *, mode: int, mtime_ns: int) -> None:
        """Copy a file of this machine to ``name``."""
        with source.open("rb") as content, self.create(name, mode=mode) as file:
            shutil.copyfileobj(content, file)
            file.flush()
            os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))

    def make_folder(self, name: str) -> None:
        """Create a folder, unless it is there."""
        with self._folder(path_parts(name)):
            pass

    def set_folder_mode(self, name: str, mode: int) -> None:
        """Set the mode of a folder."""
        with self._folder(path_parts(name)) as folder:
            os.fchmod(folder, mode)

    def link(self, name: str, target: str) -> None:
        """Create a symbolic link, wherever it leads: nothing here follows it."""
        check_link_target(target)
        with self._parent(path_parts(name)) as (parent, leaf):
            self._make_room(parent, leaf, name, over_file=False)
            os.symlink(target, leaf, dir_fd=parent)

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """Refuse what came in the way after it had been looked for: other threads write too."""
        try:
            yield
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise
            raise _in_the_way(self.root / name) from error

    @contextmanager
    def _parent(self, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
        """Open the folder of the last component; yields its descriptor and that component."""
        with self._folder(parts[:-1]) as handle:
            yield handle, parts[-1]

    @contextmanager
    def _folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        """Open a folder below the root, one component after the other."""
        self.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for number, part in enumerate(parts, 1):
                kind = _kind(handle, part)
                if kind and not stat.S_ISDIR(kind):
                    if not self._replace:
                        raise _in_the_way(self.root.joinpath(*parts[:number]))
                    os.unlink(part, dir_fd=handle)
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
                below = os.open(part, _FOLDER_FLAGS, dir_fd=handle)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def _make_room(self, parent: int, leaf: str, name: str, *, over_file: bool = True) -> None:
        """Remove or refuse what is in the place of a new entry, but for a file to write over."""
        kind = _kind(parent, leaf)
        if kind == 0 or (stat.S_ISREG(kind) and over_file):
            return
        if not self._replace:
            raise _in_the_way(self.root / name)
        if stat.S_ISDIR(kind):
            shutil.rmtree(leaf, dir_fd=parent)
        else:
            os.unlink(leaf, dir_fd=parent)


def _new_file(parent: int, name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=parent)


def _kind(parent: int, name: str) -> int:
    """Return the st_mode of an entry, of a link itself; 0 if there is none."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _in_the_way(path: Path) -> UnsafeName:
    kind = "a symbolic link" if path.is_symlink() else "in the way"
    return UnsafeName(f"{path} is {kind}: nothing is written through or over it; remove it")
