"""Warnings about the machine that builds the image, before the build begins."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_GIB = 1024**3

# The Neuron training image is more than 10 GB, and a build holds it compressed, unpacked and with
# the new layers on top.
NEEDED_GIB = 40

# Docker's image folder on Linux. Elsewhere it has its own disk, which cannot be inspected.
DOCKER_ROOT = Path("/var/lib/docker")

_ARM = frozenset({"arm64", "aarch64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildHost:
    """Local facts about the machine that runs ``cdk deploy``."""

    machine: str
    """Architecture, as ``uname -m`` prints it."""
    docker_root: Path
    free_bytes: int

    @classmethod
    def here(cls) -> BuildHost:
        """Inspect this machine."""
        root = DOCKER_ROOT if DOCKER_ROOT.exists() else Path.cwd()
        return cls(
            machine=platform.machine(),
            docker_root=root,
            free_bytes=shutil.disk_usage(root).free,
        )


def build_warnings(host: BuildHost) -> Iterator[tuple[str, str]]:
    """Yield id and text of every warning about ``host``."""
    free_gib = host.free_bytes / _GIB
    if free_gib < NEEDED_GIB:
        yield (
            "trainium:buildDisk",
            f"{free_gib:.0f} GiB are free in {host.docker_root}, the Neuron image needs about "
            f"{NEEDED_GIB} GiB to build; free some space (docker system prune), or give a "
            "finished image with trainium:image_uri",
        )
    if host.machine.lower() in _ARM:
        yield (
            "trainium:buildMachine",
            f"this machine is {host.machine} and the image is linux/amd64, so Docker builds it "
            "under emulation: several times slower, and it needs binfmt_misc (part of Docker "
            "Desktop; elsewhere: docker run --privileged tonistiigi/binfmt --install amd64)",
        )
