"""The program's files: fetched by their hash, checked, and unpacked into its working folder."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

from training.core.files import sha256_of
from training.program.settings import NotPrepared, Workspace, is_full, no_space, refuse_if_full
from training.storage import ObjectMissing
from trainium_catalogue.contract import bundle_key
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.safe_folder import SafeFolder

_AGAIN = "submit the program again, which uploads its files again"


def unpack(workspace: Workspace) -> None:
    """Bring the program's files to ``code/``; ``NotPrepared`` says what is wrong with them."""
    settings, folders = workspace.settings, workspace.folders
    key = bundle_key(workspace.node.run, settings.code)
    shown = f"{workspace.bucket.uri}/{key}"
    archive = folders.scratch / "bundle.tar.gz"
    workspace.report(f"fetching the program's files, {key}")
    try:
        with SafeFolder(folders.scratch).create(archive.name) as file:
            workspace.bucket.get_file(key, file)
    except ObjectMissing:
        raise _refused(f"the program's files are missing: there is no {shown}; {_AGAIN}") from None
    except OSError as error:
        if is_full(error):
            raise no_space(folders.scratch, f"the bundle {key}") from None
        raise
    found = sha256_of(archive)
    if found != settings.code:
        raise _refused(
            f"the program's files are not those that were submitted: {shown} has the SHA-256 "
            f"{found}; {_AGAIN}"
        )
    workspace.report("unpacking the program's files")
    try:
        _extract(archive, folders.code)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _refused(f"{shown} is not an archive that can be unpacked: {error}; {_AGAIN}") from (
            None
        )
    except OSError as error:
        if is_full(error):
            raise no_space(folders.code, "the program's folder") from None
        raise
    archive.unlink()
    if settings.script and not (folders.code / settings.script).is_file():
        raise _refused(
            f"--script {settings.script}: the bundle has no such file; submit the program again "
            "with the path of a file that is not left out of the bundle"
        )


def _extract(archive: Path, target: Path) -> None:
    """Unpack with Python's ``data`` filter.

    It refuses absolute paths, ``..`` and links that lead out of the folder, and devices (PEP 706).
    """
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "r:gz") as tar:
        members = tar.getmembers()
        refuse_if_full(target, "the program's folder", sum(member.size for member in members))
        for member in members:
            # The filter only strips the slash, and the bundle that submit makes has none.
            if member.name.startswith("/"):
                raise tarfile.AbsolutePathError(member)
        tar.extractall(target, filter="data")


def _refused(reason: str) -> NotPrepared:
    return NotPrepared(ExitCode.CONFIGURATION, reason)
