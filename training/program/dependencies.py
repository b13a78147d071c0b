"""Installs a program's collected wheels on a node: offline, beside the image's own packages.

They go to a folder of their own, which Python searches before the image's packages, and after the
program's files. A virtual environment would do the same, but not everywhere: made with
``--system-site-packages`` by a Python that is in a virtual environment itself, as in some images,
it does not see that one's packages.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.program import packages
from training.storage import ObjectMissing, Objects
from trainium_catalogue.contract import WHEELS_LOCK, WHEELS_MARKER

_DOWNLOADS = 4
"""Wheels at a time; each is fetched in parts too."""
_AGAIN = "submit the program again with --requirements"

log = logging.getLogger(__name__)


class DependenciesRefused(ValueError):
    """Wheels that cannot be used on this node; another attempt would find the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What was installed."""

    wheels: tuple[str, ...]
    bytes: int
    """Size of the wheels."""
    seconds: float


def install(wheels: Objects, *, folder: Path, target: Path, env: Mapping[str, str]) -> Installed:
    """Install the wheels of one key into ``target``; ``env`` is the environment for pip.

    ``wheels`` is the folder of the key, ``folder`` a local one that holds them meanwhile.
    ``DependenciesRefused`` says what the user has to change; errors of storage pass through.
    """
    started_s = time.monotonic()
    document = _read_marker(wheels)
    _check_image(wheels, document)
    files = document["wheels"]
    target.mkdir(parents=True, exist_ok=True)
    if files:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = _fetch(wheels, document, folder)
            _run_pip(folder, lock, target, env)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    done = Installed(
        wheels=tuple(file["name"] for file in files),
        bytes=sum(file["bytes"] for file in files),
        seconds=time.monotonic() - started_s,
    )
    log.info(
        "dependencies: %d wheels, %.1f MB, installed in %.1f s: %s",
        *(len(done.wheels), done.bytes / 1e6, done.seconds, ", ".join(done.wheels) or "none"),
    )
    return done


def search_path(target: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which programs, and all that they start, find what is installed."""
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    commands = [path for path in env.get("PATH", os.defpath).split(os.pathsep) if path]
    return {
        "PYTHONPATH": os.pathsep.join([*paths, str(target)]),
        "PATH": os.pathsep.join([str(target / "bin"), *commands]),
    }


def activate(target: Path) -> None:
    """Run the ``.pth`` files in ``target``, which Python itself does in its own folders only."""
    if any(target.glob("*.pth")):
        site.addsitedir(str(target))


def _read_marker(wheels: Objects) -> dict[str, Any]:
    try:
        found = json.loads(wheels.get(WHEELS_MARKER))
    except ObjectMissing:
        raise DependenciesRefused(
            f"{wheels.uri} holds no complete set of wheels; {_AGAIN}, which collects them"
        ) from None
    assert isinstance(found, dict)
    return found


def _check_image(wheels: Objects, document: Mapping[str, Any]) -> None:
    """Refuse wheels that were collected in another image, though of the same name."""
    before, now = document["image"]["packages"], packages.fixed_versions(packages.installed())
    changed = [
        f"{name} {before.get(name, 'missing')}, here {now.get(name, 'missing')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    collected_with = document["image"]["python"].rpartition(".")[0]
    if collected_with != (here := f"{sys.version_info.major}.{sys.version_info.minor}"):
        changed.insert(0, f"Python {collected_with}, here {here}")
    if changed:
        raise DependenciesRefused(
            f"{wheels.uri} was collected in another image ({'; '.join(changed[:3])}), so the "
            "image's tag has moved; deploy the image with its digest or a new tag, or delete that "
            f"folder, and {_AGAIN}"
        )


def _fetch(wheels: Objects, document: Mapping[str, Any], folder: Path) -> Path:
    """Download wheels and lock file and compare their hashes; returns the lock file."""

    def one(file: Mapping[str, Any]) -> None:
        path = folder / Path(file["name"]).name
        try:
            wheels.get_file(file["name"], path)
        except ObjectMissing:
            raise _changed(wheels, file["name"]) from None
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file["sha256"]:
                raise _changed(wheels, file["name"])

    lock = {"name": WHEELS_LOCK, "sha256": document["lock_sha256"]}
    with ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="wheels") as pool:
        list(pool.map(one, [lock, *document["wheels"]]))
    return folder / WHEELS_LOCK


def _changed(wheels: Objects, name: str) -> DependenciesRefused:
    return DependenciesRefused(
        f"{wheels.uri}/{name} is not what was collected; delete that folder, and {_AGAIN}"
    )


def _run_pip(folder: Path, lock: Path, target: Path, env: Mapping[str, str]) -> None:
    command = [
        *(sys.executable, "-m", "pip", "install", f"--target={target}"),
        *("--no-index", f"--find-links={folder}", "--no-deps", "--require-hashes"),
        # Compiling takes as long as all the rest; Python compiles what the program imports.
        *("--no-compile", "--no-cache-dir", "--no-input", "--disable-pip-version-check"),
        *("--root-user-action=ignore", "--quiet", f"--requirement={lock}"),
    ]
    settings = {name: value for name, value in env.items() if not name.startswith("PIP_")}
    ended = subprocess.run(
        command,
        # A configuration could name other places to look for wheels.
        env={**settings, "PIP_CONFIG_FILE": os.devnull, "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    for line in ended.stdout.splitlines():
        log.info("pip: %s", line)
    if ended.returncode != 0:
        last = ended.stdout.strip().splitlines()[-1:] or ["no message"]
        if (full := os.strerror(errno.ENOSPC)) in ended.stdout:
            raise OSError(errno.ENOSPC, full, str(target))
        raise DependenciesRefused(f"pip cannot install the collected wheels: {last[0]}")
