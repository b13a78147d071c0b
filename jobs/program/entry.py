"""Entry point of a program: a script, a module or a folder with a workload.toml."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import Refusal
from trainium_catalogue.suggest import did_you_mean

WORKLOAD_FILE = "workload.toml"
SOURCES = "src"
"""Folder of a project's packages in the src layout."""
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SHELL = re.compile(rb"#!.*\b(ba|z|da|k)?sh\b")
_PYTHON = re.compile(rb"#!.*\bpython")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """Options for users' own programs only."""

    module: str | None = None
    workdir: Path | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    env: Sequence[str] = ()
    """Environment variables, each NAME=VALUE."""
    requirements: Path | None = None
    from_snapshot: str | None = None
    arguments: Sequence[str] | None = None
    """Arguments after ``--``; None without ``--``."""

    def refuse(self, workload: str) -> None:
        """Refuse these options for a built-in workload."""
        if self.arguments is not None:
            raise Refusal(
                "program-arguments",
                f"{' '.join(['--', *self.arguments])}: {workload} is not a program of your own; "
                "pass its parameters without the --",
            )
        for name in ("workdir", "include", "exclude", "env", "from_snapshot"):
            if getattr(self, name):
                option = f"--{name.replace('_', '-')}"
                raise Refusal(
                    "program-option",
                    f"{option}: {workload} is not a program of your own, and runs from the "
                    f"deployment's image; omit {option}",
                )
        if self.requirements is not None:
            raise Refusal(
                "program-requirements",
                f"--requirements {self.requirements}: {workload} is not a program of your own, and "
                "its dependencies are in the image; omit --requirements",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A program's folder, and the file or module in it to run."""

    folder: Path
    script: str | None
    """Path of the script in the folder; None for a module."""
    module: str | None
    file: str
    """Path of the file to run within the folder; empty for a module of an installed package."""

    @property
    def name(self) -> str:
        """A short name, for run names."""
        word = self.module.rpartition(".")[2] if self.module else Path(self.file).stem
        return re.sub(r"[^A-Za-z0-9_-]+", "-", word).strip("-_")[:60] or "program"

    @property
    def shown(self) -> str:
        """The program as on a command line."""
        return f"-m {self.module}" if self.module else self.file

    @property
    def root(self) -> str:
        """The folder where Python first looks for modules: the script's, or the program's."""
        return "" if self.module else self.file.rpartition("/")[0]


def is_path(word: str) -> bool:
    """Return whether a word is a path rather than a catalogue workload."""
    return "/" in word or word in (".", "..") or word.endswith((".py", ".ipynb"))


def script_entry(word: str, workdir: Path | None) -> Entry:
    """Find a script; refuse one that does not exist or is not a Python program."""
    path = Path(word)
    if not path.exists():
        if path.is_symlink():
            raise Refusal("no-such-file", f"{word} {_link_error(path)}; specify a Python file")
        raise Refusal("no-such-file", f"there is no file {word}; {_suggest_file(path)}")
    if not path.is_file():
        raise Refusal("not-a-file", f"{word} is neither a file nor a folder; specify a Python file")
    _check_python(path)
    folder = path.parent if workdir is None else workdir
    # Links are followed only if they must be, to keep the given file name.
    for file, above in ((path.absolute(), folder.absolute()), (path.resolve(), folder.resolve())):
        if file.is_relative_to(above):
            relative = file.relative_to(above).as_posix()
            return Entry(folder=folder, script=relative, module=None, file=relative)
    raise Refusal(
        "outside-workdir",
        f"{word} is not below --workdir {folder}, so it would not be in the bundle; specify a "
        "folder that contains it",
    )


def module_entry(module: str, workdir: Path | None) -> Entry:
    """Find a module in the working folder like ``python -m``; refuse one that does not exist.

    A module of an unknown package may be installed on the nodes.
    """
    folder = Path() if workdir is None else workdir
    if not _MODULE.fullmatch(module):
        raise Refusal(
            "no-such-module",
            f"-m {module}: a module is written with dots and without .py, such as mypkg.train; "
            "for a file use its path instead: ./train.py",
        )
    base = module.replace(".", "/")
    for file in (f"{base}.py", f"{base}/__main__.py"):
        if (folder / file).is_file():
            _check_python(folder / file)
            return Entry(folder=folder, script=None, module=module, file=file)
    if (folder / base / "__init__.py").is_file():
        raise Refusal(
            "no-such-module",
            f"-m {module} is a package without a __main__.py, so it cannot be run; specify one of "
            f"its modules: {_modules(folder / base, module + '.')}",
        )
    top = module.partition(".")[0]
    if not (folder / top).exists() and not (folder / f"{top}.py").exists():
        source = folder / SOURCES
        if (source / top).is_dir() or (source / f"{top}.py").is_file():
            raise Refusal(
                "no-such-module",
                f"-m {module}: {top} is in {source}, but Python looks for it in "
                f"{folder.absolute()}; add --workdir {source} to pack only that folder, or specify "
                f"a script that begins with `import sys; sys.path.insert(0, {SOURCES!r})`",
            )
        return Entry(folder=folder, script=None, module=module, file="")
    parent, _, last = module.rpartition(".")
    package = folder / parent.replace(".", "/") if parent else folder
    known = [path.stem for path in package.glob("*.py")] if package.is_dir() else []
    meant = did_you_mean(last, known) if known else f"{package} contains no modules"
    raise Refusal(
        "no-such-module",
        f"-m {module}: neither {base}.py nor {base}/__main__.py is in {folder.absolute()}; "
        f"{meant}; specify the folder that contains it with --workdir",
    )


def check_workdir(workdir: Path | None) -> Path | None:
    """Return the folder; refuse one that does not exist."""
    if workdir is not None and not workdir.is_dir():
        raise Refusal(
            "no-such-folder", f"--workdir {workdir} is not a folder; specify the program's folder"
        )
    return workdir


def _check_python(path: Path) -> None:
    """Refuse a file that cannot be a Python program; its syntax is checked later."""
    if path.suffix == ".ipynb":
        raise Refusal(
            "notebook",
            f"{path} is a notebook, but nodes run Python programs; convert it with "
            f"`jupyter nbconvert --to script {path}`, and specify {path.with_suffix('.py')}",
        )
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise Refusal(
            "file", f"{path} cannot be read: {error.strerror or error}; fix its permissions"
        ) from None
    if not head.strip():
        raise Refusal("empty-file", f"{path} is empty; specify a Python program")
    if path.suffix == ".py" or _PYTHON.match(head):
        return
    what = "a shell script" if path.suffix == ".sh" or _SHELL.match(head) else "not a Python file"
    raise Refusal(
        "not-python",
        f"{path} is {what}, but workers run Python; specify the .py file that it starts, with its "
        "arguments after --",
    )


def _link_error(link: Path) -> str:
    """Explain why a link is broken."""
    try:
        link.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "is a link that leads back to itself"
    return f"is a link to {link.readlink()}, which does not exist"


def _suggest_file(path: Path) -> str:
    """Suggest a file that was probably meant."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} in {Path.cwd()} either"
    known = [item.name for item in folder.glob("*.py")]
    if not known:
        return f"{folder.absolute()} has no Python files"
    return did_you_mean(path.name, known)


def unknown_package(entry: Entry) -> Refusal:
    """Build the refusal of a module that is neither in the folder nor in any requirement."""
    top = str(entry.module).partition(".")[0]
    return Refusal(
        "no-such-module",
        f"-m {entry.module}: there is no {top} in {entry.folder.absolute()}, and no --requirements "
        "that could provide it; specify the folder that contains it with --workdir, or a file that "
        "requires its package with --requirements",
    )


def _modules(folder: Path, prefix: str) -> str:
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    return ", ".join(prefix + name for name in names[:10]) or "it has none"
