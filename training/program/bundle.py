"""The program's files: fetched by their hash, checked, and unpacked into its working folder."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import zlib
from pathlib import Path

from training.core.files import sha256_of
from training.program.settings import NotPrepared, Workspace, is_full, no_space, refuse_if_full
from training.storage import ObjectMissing
from trainium_catalogue.contract import bundle_key
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName

_UNREADABLE = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, UnsafeName)
"""What a damaged archive raises; ``BadGzipFile`` is an ``OSError``, as a full disk's is."""
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
    except _UNREADABLE as error:
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
    """Unpack the files; ``submit`` packs nothing else, and follows links itself."""
    target.mkdir(parents=True, exist_ok=True)
    folder = SafeFolder(target)
    with tarfile.open(archive, "r:gz") as tar:
        members = tar.getmembers()
        refuse_if_full(target, "the program's folder", sum(member.size for member in members))
        for member in members:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise tarfile.TarError(f"{member.name!r} is not a regular file")
            mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
            with content, folder.create(member.name, mode=mode) as file:
                shutil.copyfileobj(content, file)


def _refused(reason: str) -> NotPrepared:
    return NotPrepared(ExitCode.CONFIGURATION, reason)
