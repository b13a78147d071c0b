"""Detects effects of untrusted data on this process, using CPython's audit events.

See docs.python.org, library, audit_events: the interpreter reports each file that is opened, each
change of the file system, each code object that is run, each name that a pickle looks up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {
    # The event's arguments that are paths, each with its folder's descriptor.
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.link": ((1, 3),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.truncate": ((0, None),),
    "os.setxattr": ((0, None),),
    "os.removexattr": ((0, None),),
}
_FORBIDDEN = frozenset(
    {
        *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"),
        *("os.startfile", "os.putenv", "os.chdir", "os.kill", "subprocess.Popen", "pty.spawn"),
        *("socket.connect", "socket.bind", "urllib.Request", "ctypes.dlopen", "ctypes.dlsym"),
        # ``Unpickler.find_class`` of the standard library, which torch.load has for itself.
        *("pickle.find_class", "code.__new__", "marshal.loads", "mmap.__new__.writable"),
        *("sys.settrace", "sys.setprofile", "webbrowser.open", "builtins.input", "shelve.open"),
    }
)


class Violation(BaseException):
    """A forbidden effect of data; not caught by ``except Exception``."""


class Guard:
    """Raises ``Violation`` for changes outside ``root`` and for code contained in data."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._active = False
        self.violations: list[str] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this process in the block."""
        self._active = True
        try:
            yield
        finally:
            self._active = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        self._active = False  # the following calls have their own events
        try:
            self._look(event, arguments)
        finally:
            self._active = True

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FORBIDDEN:
            self._report(f"{event}{arguments}")
        elif event == "exec":
            code = arguments[0]
            # Modules run once, when they are first imported; strings never do.
            if isinstance(code, CodeType) and not _is_module(code.co_filename):
                self._report(f"exec of {code.co_filename}")
        elif event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes) and isinstance(flags, int) and flags & _WRITING:
                self._check_open(Path(os.fsdecode(path)))
        elif event in _PATHS:
            for place, folder in _PATHS[event]:
                self._check(event, arguments[place], arguments[folder] if folder else None)

    def _check_open(self, path: Path) -> None:
        if path.is_absolute():
            self._require_inside("open", path.resolve())
        elif len(path.parts) != 1 or path.name in ("", ".."):
            # The event lacks the folder of openat(2); a single name stays in it.
            self._report(f"open of {path} in some folder")

    def _check(self, event: str, path: Any, handle: Any) -> None:
        if isinstance(path, int):
            return  # a file that was opened, and checked then
        changed = Path(os.fsdecode(path))
        if isinstance(handle, int) and handle >= 0:
            changed = Path(f"/proc/self/fd/{handle}").resolve() / changed
        # The entry itself is changed, not its target.
        self._require_inside(event, changed.parent.resolve() / changed.name)

    def _require_inside(self, event: str, path: Path) -> None:
        # Python keeps byte code of modules that are first imported now.
        is_other = "__pycache__" in path.parts or path == Path(os.devnull)
        if not is_other and not path.is_relative_to(self._root):
            self._report(f"{event} of {path}")

    def _report(self, text: str) -> None:
        self.violations.append(text)
        raise Violation(text)


def _is_module(filename: str) -> bool:
    return filename.startswith("<frozen") or Path(filename).exists()
