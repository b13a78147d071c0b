"""Warnings about the machine that builds the image, before the build begins."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_GIB = 1024**3

# The Neuron training image is more than 10 GB, and a build stores it compressed, unpacked, and
# again with the new layers.
NEEDED_GIB = 40

# Docker's data directory on Linux. On other systems Docker Desktop has a virtual disk, whose free
# space is unknown here.
DOCKER_ROOT = Path("/var/lib/docker")

_ARM = frozenset({"arm64", "aarch64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildHost:
    """Properties of the machine that runs ``cdk deploy``."""

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
    """Yield the id and text of each warning about ``host``."""
    free_gib = host.free_bytes / _GIB
    if free_gib < NEEDED_GIB:
        yield (
            "trainium:buildDisk",
            f"{free_gib:.0f} GiB is free in {host.docker_root}, but building the Neuron image "
            f"needs about {NEEDED_GIB} GiB; free some space (docker system prune), or use a "
            "prebuilt image with trainium:image_uri",
        )
    if host.machine.lower() in _ARM:
        yield (
            "trainium:buildMachine",
            f"this machine is {host.machine} and the image is linux/amd64, so Docker builds it "
            "under emulation, which is several times slower and needs binfmt_misc (part of Docker "
            "Desktop; elsewhere: docker run --privileged tonistiigi/binfmt --install amd64)",
        )
