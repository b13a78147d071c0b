"""The wheels workload, which collects packages that requirements add to the image."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from training.core.files import sha256_of
from training.program.environment import CREDENTIALS
from training.program.wheels import packages
from training.program.wheels.packages import ImagePackages, WheelFile, WheelsMarker
from training.program.wheels.resolution import (
    Pip,
    RequirementsRefused,
    ResolvedPackage,
    build,
    resolve,
)
from training.storage import ObjectMissing, Objects, PreconditionFailed, StorageAccess
from trainium_catalogue.contract import (
    WHEELS_LOCK,
    WHEELS_MARKER,
    requirements_key,
    wheels_prefix,
)

if TYPE_CHECKING:
    from training.core.job import Job
    from training.program.wheels.packages import Package

_HIDDEN = frozenset({*CREDENTIALS, "PYTHONPATH", "USE_TORCH", "TRANSFORMERS_NO_ADVISORY_WARNINGS"})
"""Variables hidden from third-party code; the last two are set for this job."""

log = logging.getLogger(__name__)


def run(job: Job) -> None:
    """Run the workload on rank 0."""
    context = job.context
    if job.device.rank or context.array_index:
        return
    access = StorageAccess.of(context)
    bucket = access.open_root()
    key = str(job.values["key"])
    place = requirements_key(str(job.values["for-run"]), key)
    try:
        text = bucket.get(place).decode()
    except ObjectMissing:
        raise RequirementsRefused(
            f"{place} is not in the bucket; submit the program with --requirements, which uploads "
            "it and submits this job"
        ) from None
    collect(
        bucket.at(wheels_prefix(key)),
        key=key,
        text=text,
        environment=build_environment(job.variables),
        report=job.progress.report,
    )


def collect(
    objects: Objects,
    *,
    key: str,
    text: str,
    environment: Mapping[str, str],
    report: Callable[[str], None],
) -> None:
    """Store the wheels for requirements ``text`` in ``objects``, unless they are complete."""
    if _is_complete(objects):
        log.info("wheels: %s is already complete", objects.uri)
        return
    installed = packages.installed()
    with tempfile.TemporaryDirectory(prefix="wheels-") as name:
        folder = Path(name)
        pip = Pip(folder=folder, environment=environment, report=report)
        missing = resolve(pip, text, packages.constraints(installed))
        # Guaranteed by the constraints, even for packages requested by URL.
        assert not any(m.name in installed and installed[m.name].is_fixed for m in missing), missing
        _log_replacements(missing, installed)
        wheels_folder = folder / "wheels"
        wheels_folder.mkdir()
        built = build(pip, text, missing, wheels_folder) if missing else []
        _store(objects, key, built, installed, report)
    log.info(
        "wheels: %s is complete: %s",
        objects.uri,
        ", ".join(path.name for _, path in built) or "the image has everything",
    )


def build_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for pip.

    Code that packages run at build time must not get the job's credentials, nor import this
    project's modules instead of its own.
    """
    kept = {name: value for name, value in variables.items() if name not in _HIDDEN}
    return {**kept, "AWS_EC2_METADATA_DISABLED": "true"}


def _is_complete(objects: Objects) -> bool:
    try:
        objects.get(WHEELS_MARKER)
    except ObjectMissing:
        return False
    return True


def _log_replacements(missing: Sequence[ResolvedPackage], installed: Mapping[str, Package]) -> None:
    """Log which packages of the image are replaced, and which may break as a result."""
    replaced: dict[str, str] = {
        item.name: item.version for item in missing if item.name in installed
    }
    for name, version in replaced.items():
        log.info("wheels: %s %s instead of the image's %s", name, version, installed[name].version)
    for line in packages.broken_by(installed, replaced):
        log.info("wheels: %s; do not use the two together", line)


def _store(
    objects: Objects,
    key: str,
    built: Sequence[tuple[ResolvedPackage, Path]],
    installed: Mapping[str, Package],
    report: Callable[[str], None],
) -> None:
    def report_upload(count: int) -> None:
        report("uploading wheels")

    lines, wheels = [], []
    for package, path in built:
        objects.put_file(path.name, path, on_bytes=report_upload)
        digest = sha256_of(path)
        lines.append(f"{package.name}=={package.version} --hash=sha256:{digest}\n")
        wheels.append(WheelFile(name=path.name, bytes=path.stat().st_size, sha256=digest))
    lock = "".join(lines).encode()
    objects.put(WHEELS_LOCK, lock)
    marker = WheelsMarker(
        key=key,
        image=ImagePackages(
            python=platform.python_version(), packages=packages.fixed_versions(installed)
        ),
        lock_sha256=hashlib.sha256(lock).hexdigest(),
        wheels=tuple(wheels),
    )
    try:
        objects.put(WHEELS_MARKER, json.dumps(asdict(marker), indent=2).encode(), if_absent=True)
    except PreconditionFailed:
        log.info("wheels: another job has already completed %s", objects.uri)
