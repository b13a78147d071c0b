"""Safe mapping of untrusted names to files in a folder.

Anyone with write access to the bucket, including training programs, controls its keys and the names
in its manifests. As paths these could reach any file on the machine: ``/etc/passwd``, ``../x``, or
``a/b`` where ``a`` is a symbolic link. All code that writes files under such names uses
``SafeFolder``, which opens one path component at a time and follows no link (openat(2),
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
"""Prefix of unfinished files."""
_MAX_NAME_BYTES = 255
"""Maximum length of a path component on Linux file systems (NAME_MAX)."""
_MAX_PATH_BYTES = 4000
"""Maximum length of a name; the kernel's limit of 4,096 (PATH_MAX) includes the folder."""
_MAX_SHOWN = 80
_OBSTACLE_ERRNOS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR})
"""Errors for a link, file or folder where another kind is needed."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafeName(ValueError):
    """A name that is not a path inside its folder, or whose path leads through a link or file."""


def path_parts(name: str) -> tuple[str, ...]:
    """Split a relative path into its components; raise ``UnsafeName`` if it is not canonical.

    Canonical names guarantee that different names are different files.
    """
    shown = repr(name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}...")
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
        raise UnsafeName(f"{shown} has an empty component or one that is a single dot")
    try:
        sizes = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise UnsafeName(f"{shown} cannot be encoded as a file name") from None
    if max(sizes) > _MAX_NAME_BYTES or sum(sizes) + len(sizes) > _MAX_PATH_BYTES:
        raise UnsafeName(f"{shown} is too long for a file name")
    return parts


def check_link_target(target: str) -> None:
    """Raise ``UnsafeName`` for an impossible target of a symbolic link."""
    try:
        size = len(os.fsencode(target))
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _MAX_PATH_BYTES or "\0" in target:
        raise UnsafeName(f"{target[:_MAX_SHOWN]!r} is not a valid target of a symbolic link")


def user_mode(mode: int) -> int:
    """Keep only the owner's permissions; clear setuid, setgid, sticky, group and other bits."""
    return mode & stat.S_IRWXU


class SafeFolder:
    """A trusted folder for files with untrusted names.

    Links on the way to ``root`` are followed; links inside it are not. A new file replaces an
    existing one. Anything else in the way of a file, folder or link is removed with ``replace``,
    which requires a single writer; otherwise it raises ``UnsafeName``. Folders are created as
    needed.
    """

    def __init__(self, root: Path, *, replace: bool = False) -> None:
        self.root = root
        self._replace = replace

    def path(self, name: str) -> Path:
        """Return the path of ``name`` for reading; ``UnsafeName`` if it leads through a link."""
        path = self.root
        for part in path_parts(name):
            path = path / part
            if path.is_symlink():
                raise _obstacle_error(path)
        return path

    def prepared(self, name: str) -> Path:
        """Create the parent folders of ``name`` and return its path, for libraries that need one.

        Such a library must write a new file next to it and rename that, which follows no link.
        """
        with self._parent(path_parts(name)) as (parent, leaf):
            self._make_room(parent, leaf, name)
        return self.root / name

    @contextmanager
    def create(self, name: str, *, mode: int = 0o644) -> Iterator[BinaryIO]:
        """Open a new file that atomically replaces an existing one when the block ends.

        If the block raises, nothing is left behind.
        """
        with self._refuse_obstacles(name), self._parent(path_parts(name)) as (parent, leaf):
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
        """Open a file for writing in place, without truncating it; create it if missing."""
        with self._refuse_obstacles(name), self._parent(path_parts(name)) as (parent, leaf):
            self._make_room(parent, leaf, name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.fdopen(os.open(leaf, flags, 0o644, dir_fd=parent), "wb")

    def move_in(self, source: Path, name: str, *, mode: int, mtime_ns: int) -> None:
        """Move a local file, owned by the caller, to ``name``."""
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
        """Copy a local file to ``name``."""
        with source.open("rb") as content, self.create(name, mode=mode) as file:
            shutil.copyfileobj(content, file)
            file.flush()
            os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))

    def make_folder(self, name: str) -> None:
        """Create a folder if it does not exist."""
        with self._folder(path_parts(name)):
            pass

    def set_folder_mode(self, name: str, mode: int) -> None:
        """Set the mode of a folder."""
        with self._folder(path_parts(name)) as folder:
            os.fchmod(folder, mode)

    def link(self, name: str, target: str) -> None:
        """Create a symbolic link to any target; no method follows it."""
        check_link_target(target)
        with self._parent(path_parts(name)) as (parent, leaf):
            self._make_room(parent, leaf, name, over_file=False)
            os.symlink(target, leaf, dir_fd=parent)

    @contextmanager
    def _refuse_obstacles(self, name: str) -> Iterator[None]:
        """Refuse obstacles created since the check, for example by another thread."""
        try:
            yield
        except OSError as error:
            if error.errno not in _OBSTACLE_ERRNOS:
                raise
            raise _obstacle_error(self.root / name) from error

    @contextmanager
    def _parent(self, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
        """Open the parent folder; yield its descriptor and the last component."""
        with self._folder(parts[:-1]) as handle:
            yield handle, parts[-1]

    @contextmanager
    def _folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        """Open a folder inside the root, one component at a time."""
        self.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for number, part in enumerate(parts, 1):
                kind = _kind(handle, part)
                if kind and not stat.S_ISDIR(kind):
                    if not self._replace:
                        raise _obstacle_error(self.root.joinpath(*parts[:number]))
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
        """Remove or refuse an existing entry, unless it is a file that may be overwritten."""
        kind = _kind(parent, leaf)
        if kind == 0 or (stat.S_ISREG(kind) and over_file):
            return
        if not self._replace:
            raise _obstacle_error(self.root / name)
        if stat.S_ISDIR(kind):
            shutil.rmtree(leaf, dir_fd=parent)
        else:
            os.unlink(leaf, dir_fd=parent)


def _new_file(parent: int, name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=parent)


def _kind(parent: int, name: str) -> int:
    """Return the st_mode of an entry, not following links; 0 if it does not exist."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _obstacle_error(path: Path) -> UnsafeName:
    problem = "is a symbolic link" if path.is_symlink() else "already exists"
    return UnsafeName(f"{path} {problem}: nothing is written through or over it; remove it")
