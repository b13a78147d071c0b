"""A program's parameters, its folders on a node, and errors while preparing it."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from training.core.arguments import Request, parse
from training.core.contract import NodeContract
from training.storage import Objects, StorageAccess
from trainium_catalogue.contract import CACHE_PREFIX
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.variables import split_variables

HOME_LINK = "home"
"""Link from a launch's scratch folder to its program's home folder."""

_GIB = 1024**3
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """The parameters of a program's job, named as in the catalogue."""

    code: str
    """SHA-256 of the bundle in hexadecimal."""
    script: str
    """File in the bundle to run; empty for a module."""
    module: str
    argv: tuple[str, ...]
    """The program's arguments, unchanged."""
    wheels: str
    """Key of the collected dependencies; empty if there are none."""
    checkpoint_dir: str
    """Checkpoint folder below the program's own folder, if the user chose one."""
    resume_argv: tuple[str, ...]
    """Arguments to add once there is a checkpoint."""
    snapshot_every_s: float
    keep_snapshots: int
    snapshot_mib_per_s: float
    snapshot_limit_gib: float
    progress_pattern: str
    dataset: str
    input: str
    aws_credentials: bool
    env: Mapping[str, str]
    """The user's own variables."""

    @staticmethod
    def from_request(request: Request) -> ProgramSettings:
        """Read a request's values, which ``check`` has validated."""
        values = request.values
        parsed: dict[str, Any] = {
            "argv": request.program_argv,
            "resume_argv": split_words(str(values["resume-arguments"])),
            "env": split_variables(str(values["env"])),
        }
        names = (field.name for field in fields(ProgramSettings) if field.name not in parsed)
        plain: dict[str, Any] = {name: values[name.replace("_", "-")] for name in names}
        return ProgramSettings(**plain, **parsed)

    @property
    def name(self) -> str:
        """The program as on a command line, without arguments."""
        return self.script or f"-m {self.module}"


def split_words(text: str) -> tuple[str, ...]:
    """Split ``--resume-arguments`` like a shell; raise ``ValueError`` if it is malformed."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(
            f"--resume-arguments {text}: {str(error).lower()}; close every quote in it"
        ) from None


def check(values: Mapping[str, Value], num_ranks: int) -> None:
    """Raise ``ValueError`` for inconsistent parameters."""
    script, module = str(values["script"]), str(values["module"])
    if bool(script) == bool(module):
        given = f"--script {script} and --module {module}" if script else "neither is set"
        raise ValueError(f"{given}: a program is either --script FILE or --module NAME; use one")
    split_words(str(values["resume-arguments"]))
    split_variables(str(values["env"]))
    pattern = str(values["progress-pattern"])
    if not pattern:
        return
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise ValueError(
            f"--progress-pattern {pattern}: not a regular expression: {error}; "
            "test it with Python's re.search on a line of your program's output"
        ) from None
    if "step" not in groups:
        raise ValueError(
            f"--progress-pattern {pattern}: it has no group for the step; "
            r"add (?P<step>\d+), and optionally (?P<loss>[0-9.]+) for the loss"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFolders:
    """The folders of one launch on one node, below its home folder or else its scratch folder.

    If there is a Lustre file system, which all nodes share, inputs are there.
    """

    scratch: Path
    code: Path
    """The program's files; also its working directory."""
    checkpoints: Path
    """The folder persisted in the bucket."""
    output: Path
    dataset: Path
    input: Path
    site: Path
    """Installed dependencies."""
    cache: Path
    """Compiled graphs, also persisted in the bucket."""

    neff_cache: Path
    """TorchNeuron's graphs, in a subfolder per Neuron release: their keys do not contain the
    compiler's version (``training/backends/neff_cache.py``)."""

    @staticmethod
    def of(scratch: Path, settings: ProgramSettings, node: NodeContract) -> ProgramFolders:
        """Locate the folders, without creating them."""
        home = (scratch / HOME_LINK).resolve() if (scratch / HOME_LINK).is_symlink() else scratch
        code = home / "code"
        chosen = settings.checkpoint_dir
        data = Path(node.lustre) / CACHE_PREFIX if node.lustre else home
        return ProgramFolders(
            scratch=scratch,
            code=code,
            checkpoints=code / chosen if chosen else home / "checkpoints",
            output=home / "output",
            dataset=data / "dataset" / settings.dataset,
            input=data / "input" / settings.input.removeprefix("s3://").strip("/"),
            site=home / "site",
            cache=home / "cache",
            neff_cache=home / "cache" / f"torchneuron-{node.neuron_release}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Context for the steps of the preparation."""

    node: NodeContract
    settings: ProgramSettings
    folders: ProgramFolders
    bucket: Objects
    """The deployment's bucket or, without one, a local folder."""
    open: Callable[[str], Objects]
    """Opens any storage by its URI, with the job's credentials."""
    report: Callable[[str], None]
    """Reports the current step; call it often, because silence counts as a hang."""

    @staticmethod
    def of_launch(
        argv: Sequence[str], scratch: Path, report: Callable[[str], None] = lambda step: None
    ) -> Workspace:
        """Read the node's contract and parameters, and open its storage."""
        node = NodeContract.read(scratch)
        settings = ProgramSettings.from_request(parse(argv))
        access = StorageAccess.of(node)
        return Workspace(
            node=node,
            settings=settings,
            folders=ProgramFolders.of(scratch, settings, node),
            bucket=access.open_root(),
            open=access.open,
            report=report,
        )


class NotPrepared(Exception):
    """A node cannot run the program; the message gives the user the reason and the remedy."""

    def __init__(self, code: ExitCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def is_full(error: OSError) -> bool:
    """Return whether a disk or quota is full."""
    return error.errno in _NO_SPACE


def no_space(folder: Path, what: str, needed: int | None = None) -> NotPrepared:
    """Create the error to raise if ``what`` does not fit on the disk of ``folder``.

    Data larger than the whole disk will not fit on another node either, whereas a disk that is
    merely full may have room in the next attempt.
    """
    usage = shutil.disk_usage(_nearest_existing(folder))
    needs = f"needs {needed / _GIB:.1f} GiB" if needed is not None else "needs more"
    exceeds_disk = needed is not None and needed > usage.total
    return NotPrepared(
        ExitCode.CONFIGURATION if exceeds_disk else ExitCode.PREFLIGHT,
        f"no space left on the node: {what} {needs}, but only {usage.free / _GIB:.1f} of "
        f"{usage.total / _GIB:.1f} GiB at {folder} is free; give the nodes a larger volume "
        "(context key root_volume_gib), or store less data on each node",
    )


@contextmanager
def full_disk_refused(folder: Path, what: str) -> Iterator[None]:
    """Raise ``NotPrepared`` instead of the ``OSError`` of a full disk."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise no_space(folder, what) from None
        raise


def refuse_if_full(folder: Path, what: str, needed: int) -> None:
    """Raise ``NotPrepared`` if a download will not fit."""
    if needed > shutil.disk_usage(_nearest_existing(folder)).free:
        raise no_space(folder, what, needed)


def _nearest_existing(folder: Path) -> Path:
    while not folder.is_dir():
        folder = folder.parent
    return folder


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder and links to files, without following links to folders."""
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent) / name
            if path.is_file():
                yield path
