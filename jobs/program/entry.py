"""What a submission runs: a script, a module or a folder with a workload.toml, and its folder."""

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
"""Folder that holds the packages of a project in the src layout."""
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SHELL = re.compile(rb"#!.*\b(ba|z|da|k)?sh\b")
_PYTHON = re.compile(rb"#!.*\bpython")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """What only a program of the user's own can be given."""

    module: str | None = None
    workdir: Path | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    env: Sequence[str] = ()
    """Environment variables, each NAME=VALUE."""
    requirements: Path | None = None
    from_snapshot: str | None = None
    arguments: Sequence[str] | None = None
    """Words after ``--``; None if there was no ``--``."""

    def refuse(self, workload: str) -> None:
        """Refuse whatever is given, for a workload that is no program of the user's own."""
        if self.arguments is not None:
            raise Refusal(
                "program-arguments",
                f"{' '.join(['--', *self.arguments])}: {workload} is no program of your own; its "
                "parameters are given without the --",
            )
        for name in ("workdir", "include", "exclude", "env", "from_snapshot"):
            if getattr(self, name):
                option = f"--{name.replace('_', '-')}"
                raise Refusal(
                    "program-option",
                    f"{option}: {workload} is no program of your own, and runs from the "
                    f"deployment's image; leave {option} out",
                )
        if self.requirements is not None:
            raise Refusal(
                "program-requirements",
                f"--requirements {self.requirements}: {workload} is no program of your own, and "
                "its dependencies are in the image; leave --requirements out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A program: its folder, and the file or module in it that is run."""

    folder: Path
    script: str | None
    """Path of the file in the folder; None if a module is run."""
    module: str | None
    file: str
    """Path, in the folder, of the file that is run; empty for a module of an installed package."""

    @property
    def name(self) -> str:
        """A short name, of which run names are made."""
        word = self.module.rpartition(".")[2] if self.module else Path(self.file).stem
        return re.sub(r"[^A-Za-z0-9_-]+", "-", word).strip("-_")[:60] or "program"

    @property
    def shown(self) -> str:
        """The program as one would start it."""
        return f"-m {self.module}" if self.module else self.file


def is_path(word: str) -> bool:
    """Tell whether a word means a file or folder, not a workload of the catalogue."""
    return "/" in word or word in (".", "..") or word.endswith((".py", ".ipynb"))


def script_entry(word: str, workdir: Path | None) -> Entry:
    """Find a script; refuse what is not there, or is no Python program."""
    path = Path(word)
    if not path.exists():
        if path.is_symlink():
            raise Refusal("no-such-file", f"{word} {_broken(path)}; name a Python file")
        raise Refusal("no-such-file", f"there is no file {word}; {_near(path)}")
    if not path.is_file():
        raise Refusal("not-a-file", f"{word} is neither a file nor a folder; name a Python file")
    _check_python(path)
    folder = path.parent if workdir is None else workdir
    try:
        # Links are kept as they are: the file's name is the one that was given.
        relative = path.absolute().relative_to(folder.absolute()).as_posix()
    except ValueError:
        try:
            relative = path.resolve().relative_to(folder.resolve()).as_posix()
        except ValueError:
            raise Refusal(
                "outside-workdir",
                f"{word} is not below --workdir {folder}, so it would not be in the bundle; name "
                "a folder that holds it",
            ) from None
    return Entry(folder=folder, script=relative, module=None, file=relative)


def module_entry(module: str, workdir: Path | None) -> Entry:
    """Find a module in the working folder, as ``python -m`` would; refuse one that is not there.

    One of whose package nothing is there may be installed on the nodes.
    """
    folder = Path() if workdir is None else workdir
    if not _MODULE.fullmatch(module):
        raise Refusal(
            "no-such-module",
            f"-m {module}: a module is written with dots and without .py, such as mypkg.train; "
            "for a file give its path instead: ./train.py",
        )
    base = module.replace(".", "/")
    for file in (f"{base}.py", f"{base}/__main__.py"):
        if (folder / file).is_file():
            _check_python(folder / file)
            return Entry(folder=folder, script=None, module=module, file=file)
    if (folder / base / "__init__.py").is_file():
        raise Refusal(
            "no-such-module",
            f"-m {module} is a package without a __main__.py, so it cannot be run; name one of its "
            f"modules: {_modules(folder / base, module + '.')}",
        )
    top = module.partition(".")[0]
    if not (folder / top).exists() and not (folder / f"{top}.py").exists():
        source = folder / SOURCES
        if (source / top).is_dir() or (source / f"{top}.py").is_file():
            raise Refusal(
                "no-such-module",
                f"-m {module}: {top} is in {source}, and Python looks for it in {folder.absolute()}"
                f"; add --workdir {source}, whose files alone go along then, or name a script "
                f"that begins with `import sys; sys.path.insert(0, {SOURCES!r})`",
            )
        return Entry(folder=folder, script=None, module=module, file="")
    parent, _, last = module.rpartition(".")
    there = folder / parent.replace(".", "/") if parent else folder
    known = [path.stem for path in there.glob("*.py")] if there.is_dir() else []
    meant = did_you_mean(last, known) if known else "no module is there"
    raise Refusal(
        "no-such-module",
        f"-m {module}: neither {base}.py nor {base}/__main__.py is in {folder.absolute()}; {meant}"
        "; name the folder that holds it with --workdir",
    )


def checked_workdir(workdir: Path | None) -> Path | None:
    """Refuse a folder that is not there."""
    if workdir is not None and not workdir.is_dir():
        raise Refusal(
            "no-such-folder", f"--workdir {workdir} is not a folder; name the program's folder"
        )
    return workdir


def _check_python(path: Path) -> None:
    """Refuse what cannot be a Python program; its grammar is looked at later."""
    if path.suffix == ".ipynb":
        raise Refusal(
            "notebook",
            f"{path} is a notebook, and nodes run programs; convert it with "
            f"`jupyter nbconvert --to script {path}`, and name {path.with_suffix('.py')}",
        )
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise Refusal(
            "file", f"{path} cannot be read: {error.strerror or error}; set its permissions"
        ) from None
    if not head.strip():
        raise Refusal("empty-file", f"{path} is empty; name a file that holds a program")
    if path.suffix == ".py" or _PYTHON.match(head):
        return
    what = "a shell script" if path.suffix == ".sh" or _SHELL.match(head) else "no Python file"
    raise Refusal(
        "not-python",
        f"{path} is {what}, and every worker runs Python; name the .py file that it starts, with "
        "its arguments after --",
    )


def _broken(link: Path) -> str:
    """Say why nothing is found at the end of a link."""
    try:
        link.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "is a link that leads back to itself"
    return f"is a link to {link.readlink()}, which does not exist"


def _near(path: Path) -> str:
    """Suggest a file that may have been meant."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either, seen from {Path.cwd()}"
    known = [item.name for item in folder.glob("*.py")]
    if not known:
        return f"{folder.absolute()} holds no Python file"
    return did_you_mean(path.name, known)


def refuse_unknown_package(entry: Entry) -> None:
    """Refuse a module that is in neither the folder nor a package that is asked for."""
    assert entry.module is not None
    top = entry.module.partition(".")[0]
    raise Refusal(
        "no-such-module",
        f"-m {entry.module}: there is no {top} in {entry.folder.absolute()}, and no --requirements "
        "that could hold it; name the folder that holds it with --workdir, or the file that asks "
        "for its package with --requirements",
    )


def _modules(folder: Path, prefix: str) -> str:
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    return ", ".join(prefix + name for name in names[:10]) or "it has none"
