"""Install a program's collected wheels on a node, offline, on top of the image's packages.

They go to a separate folder, which Python searches before the image's packages but after the
program's files. A virtual environment would not work in all images: if its base Python is itself in
a virtual environment, ``--system-site-packages`` does not include the packages of that environment.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from training.core.files import sha256_of
from training.core.heartbeat import heartbeat
from training.core.threads import in_threads
from training.program.settings import Workspace, refuse_if_full
from training.program.wheels import packages
from training.program.wheels.packages import ImagePackages, WheelFile, WheelsMarker
from training.storage import ObjectMissing, Objects
from trainium_catalogue.contract import WHEELS_LOCK, WHEELS_MARKER, wheels_prefix
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName
from trainium_catalogue.typed_json import read_json

_DOWNLOADS = 4
"""Number of concurrent downloads, each of which is split into parts."""
_MAX_S = 3600.0
_DISK_FACTOR = 4
"""Disk space for wheels and their contents, as a multiple of the wheels' size."""
_LOCK_LINE = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+ --hash=sha256:[0-9a-f]{64}")
"""A line of the lock file, as ``collect`` writes it."""
_RESUBMIT = "submit the program again with --requirements"

log = logging.getLogger(__name__)


class DependenciesRefused(ValueError):
    """The wheels cannot be used on this node, even in a retry."""


def install(workspace: Workspace, env: Mapping[str, str]) -> None:
    """Install the job's wheels; ``env`` is the environment for pip."""
    scratch, target = workspace.folders.scratch, workspace.folders.site
    report, started_s = workspace.report, time.monotonic()
    report("installing dependencies")
    with heartbeat(report, "installing dependencies", at_most_s=_MAX_S):
        wheels = workspace.bucket.at(wheels_prefix(workspace.settings.wheels))
        files = install_wheels(wheels, folder=scratch / "wheels", target=target, env=env)
    log.info(
        "program: dependencies of %.1f MB installed in %.1f s: %s",
        *(sum(file.bytes for file in files) / 1e6, time.monotonic() - started_s),
        ", ".join(file.name for file in files) or "none, because the image has everything required",
    )


def install_wheels(
    wheels: Objects, *, folder: Path, target: Path, env: Mapping[str, str]
) -> Sequence[WheelFile]:
    """Install the wheels in ``wheels`` into ``target``; return their entries in the marker.

    Downloads to ``folder``. Raises ``DependenciesRefused`` with the remedy, and storage errors.
    """
    marker = _read_marker(wheels)
    _check_image(wheels, marker.image)
    files = marker.wheels
    target.mkdir(parents=True, exist_ok=True)
    if files:
        folder.mkdir(parents=True, exist_ok=True)
        needed = _DISK_FACTOR * sum(file.bytes for file in files)
        refuse_if_full(target, "the program's dependencies", needed)
        try:
            lock = _fetch(wheels, marker, folder)
            _run_pip(folder, lock, target, env)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return files


def _read_marker(wheels: Objects) -> WheelsMarker:
    try:
        return read_json(wheels.get(WHEELS_MARKER), WheelsMarker)
    except ObjectMissing:
        raise DependenciesRefused(
            f"{wheels.uri} has no complete set of wheels; {_RESUBMIT}, which collects them"
        ) from None
    except ValueError as error:
        raise DependenciesRefused(
            f"{wheels.uri}/{WHEELS_MARKER} cannot be read: {error}; delete that folder, and "
            f"{_RESUBMIT}"
        ) from None


def _check_image(wheels: Objects, image: ImagePackages) -> None:
    """Refuse wheels that were collected in another image of the same name."""
    before, now = image.packages, packages.fixed_versions(packages.installed())
    changed = [
        f"{name} {before.get(name, 'missing')}, here {now.get(name, 'missing')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    collected_with = image.python.rpartition(".")[0]
    if collected_with != (here := f"{sys.version_info.major}.{sys.version_info.minor}"):
        changed.insert(0, f"Python {collected_with}, here {here}")
    if changed:
        raise DependenciesRefused(
            f"{wheels.uri} was collected in another image ({'; '.join(changed[:3])}), so the "
            "image's tag has moved; deploy the image with its digest or a new tag, or delete that "
            f"folder, and {_RESUBMIT}"
        )


def _fetch(wheels: Objects, marker: WheelsMarker, folder: Path) -> Path:
    """Download wheels and lock file and verify their hashes; return the lock file."""

    target = SafeFolder(folder)

    def fetch(file: WheelFile) -> None:
        try:
            with target.create(file.name) as stream:
                wheels.get_file(file.name, stream)
            if sha256_of(folder / file.name) != file.sha256:
                raise _mismatch(wheels, file.name)
        except (ObjectMissing, UnsafeName):
            raise _mismatch(wheels, file.name) from None

    for _ in in_threads(fetch, marker.wheels, at_once=_DOWNLOADS, name="wheels"):
        pass
    return _fetch_lock(wheels, marker, target)


def _fetch_lock(wheels: Objects, marker: WheelsMarker, folder: SafeFolder) -> Path:
    """Download the lock file; it may contain only versions and hashes, no pip options."""
    try:
        data = wheels.get(WHEELS_LOCK)
    except ObjectMissing:
        raise _mismatch(wheels, WHEELS_LOCK) from None
    lines = data.decode(errors="replace").splitlines()
    is_lock = all(_LOCK_LINE.fullmatch(line) for line in lines)
    if hashlib.sha256(data).hexdigest() != marker.lock_sha256 or not is_lock:
        raise _mismatch(wheels, WHEELS_LOCK)
    with folder.create(WHEELS_LOCK) as file:
        file.write(data)
    return folder.root / WHEELS_LOCK


def _mismatch(wheels: Objects, name: str) -> DependenciesRefused:
    return DependenciesRefused(
        f"{wheels.uri}/{name} differs from what was collected; delete that folder, and {_RESUBMIT}"
    )


def _run_pip(folder: Path, lock: Path, target: Path, env: Mapping[str, str]) -> None:
    command = [
        *(sys.executable, "-m", "pip", "install", f"--target={target}"),
        *("--no-index", f"--find-links={folder}", "--no-deps", "--require-hashes"),
        # A source distribution would run its own build code.
        "--only-binary=:all:",
        # Compiling everything would double the time; Python compiles the modules it imports.
        *("--no-compile", "--no-cache-dir", "--no-input", "--disable-pip-version-check"),
        *("--root-user-action=ignore", "--quiet", f"--requirement={lock}"),
    ]
    settings = {name: value for name, value in env.items() if not name.startswith("PIP_")}
    result = subprocess.run(
        command,
        # A configuration file could add sources of wheels.
        env={**settings, "PIP_CONFIG_FILE": os.devnull, "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    for line in result.stdout.splitlines():
        log.info("pip: %s", line)
    if result.returncode != 0:
        last = result.stdout.strip().splitlines()[-1:] or ["no message"]
        if (full := os.strerror(errno.ENOSPC)) in result.stdout:
            raise OSError(errno.ENOSPC, full, str(target))
        raise DependenciesRefused(f"pip cannot install the collected wheels: {last[0]}")
