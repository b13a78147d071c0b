"""Builds the real Dockerfile on a substitute base image, so that nodes can run as containers.

The Neuron base image is over 10 GB; the substitute is Debian, Python and CPU torch. No daemon is
needed: buildah builds (``--isolation chroot`` needs only the privileges of a chroot), podman runs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rehearsal.deployment import cdk
from rehearsal.deployment.state import ROOT, OptionsError, RehearsalFolder

TOOLS = ("podman", "buildah", "debootstrap")
SUITE = "bookworm"
# The Debian suite's Python, for which wheels are downloaded.
PYTHON_VERSION = "3.11"
PACKAGES = ("ca-certificates", "python3", "python3-pip")
REQUIREMENTS = Path("docker") / "neuron" / "requirements.txt"
# Packages that the substitute must provide, like the Neuron base image.
BASE_PACKAGES = REQUIREMENTS.with_name("base-packages.txt")
IMAGE = "localhost/trainium-rehearsal:latest"
# The substitute has its own wheels, although RUN steps in a chroot build share the host's network.
BASE_DOCKERFILE = """\
FROM scratch
ADD rootfs.tar /
COPY wheels /opt/wheels
COPY base-packages.txt /opt/wheels/
ENV PATH=/usr/local/bin:/usr/bin:/bin PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/wheels \\
    PIP_BREAK_SYSTEM_PACKAGES=1
RUN ln -s python3 /usr/bin/python \\
    && python -m pip install --no-cache-dir --requirement /opt/wheels/base-packages.txt
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerNodes:
    """The image and the engine that run nodes as containers."""

    image: str
    engine: Path


def refuse_without_tools(path: str) -> None:
    """Raise an ``OptionsError`` that lists missing tools, if any, and how to install them."""
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=_with_sbin(path)) is None]:
        raise OptionsError(
            f"--containers needs {', '.join(missing)}, not found on PATH; install them (Debian: "
            "apt-get install podman buildah runc debootstrap) or omit --containers"
        )


def base_name(*lists: str) -> str:
    """Return the substitute's name, a function of its contents."""
    recipe = "\n".join([SUITE, *PACKAGES, BASE_DOCKERFILE, *lists])
    return f"localhost/trainium-stand-in:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def build(
    folder: RehearsalFolder, environment: Mapping[str, str], on_line: Callable[[str], None]
) -> ContainerNodes:
    """Build the substitute unless it exists, then the training image on top of it."""
    place = folder.path / "containers"
    place.mkdir(parents=True, exist_ok=True)
    # debootstrap and runc are in sbin, which is only on root's PATH.
    full = {**environment, "PATH": _with_sbin(environment["PATH"])}

    def run(name: str, *command: str, codes: tuple[int, ...] = (0,)) -> int:
        log = folder.log(f"containers-{name}")
        return cdk.run(command, log=log, environment=full, on_line=on_line, codes=codes)

    # Omit the local version: PyPI has "2.13.0", PyTorch's index has "2.13.0+cpu".
    torch = importlib.metadata.version("torch").partition("+")[0]
    lists = (REQUIREMENTS, BASE_PACKAGES, Path("constraints.txt"))
    base = base_name(torch, *((ROOT / path).read_text(encoding="utf-8") for path in lists))
    if run("base-exists", "buildah", "inspect", "--type", "image", base, codes=(0, 125)):
        _build_base(place, base, torch=torch, run=run)
    run(
        "image",
        *("buildah", "bud", "--isolation", "chroot", "--build-arg", f"BASE_IMAGE={base}"),
        *("--file", str(ROOT / "docker" / "neuron" / "Dockerfile"), "--tag", IMAGE, str(ROOT)),
    )
    return ContainerNodes(image=IMAGE, engine=_engine(place, full["PATH"]))


def _build_base(place: Path, base: str, *, torch: str, run: Callable[..., int]) -> None:
    rootfs, wheels = place / "rootfs", place / "wheels"
    for old in (rootfs, wheels):
        shutil.rmtree(old, ignore_errors=True)
    run(
        "debootstrap",
        *("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
        *(SUITE, str(rootfs)),
    )
    archive = ("tar", "--create", "--numeric-owner", "--exclude=./var/cache/apt/archives/*")
    run("archive", *archive, "--file", str(place / "rootfs.tar"), "--directory", str(rootfs), ".")
    shutil.rmtree(rootfs)
    pip = (sys.executable, "-m", "pip", "download", "--dest", str(wheels))
    only = ("--python-version", PYTHON_VERSION, "--only-binary=:all:")
    requirements = [f"torch=={torch}"]
    for path in (BASE_PACKAGES, REQUIREMENTS):
        requirements += ["--requirement", str(ROOT / path)]
    run("wheels", *pip, *only, "--constraint", str(ROOT / "constraints.txt"), *requirements)
    shutil.copyfile(ROOT / BASE_PACKAGES, place / BASE_PACKAGES.name)
    (place / "Dockerfile").write_text(BASE_DOCKERFILE, encoding="utf-8")
    run("base", "buildah", "bud", "--isolation", "chroot", "--tag", base, str(place))


def _engine(place: Path, path: str) -> Path:
    """Write a script that runs podman, with runc if available: crun fails on hybrid cgroups."""
    runtime = shutil.which("runc", path=path)
    option = f" --runtime '{runtime}'" if runtime else ""
    engine = place / "podman"
    engine.write_text(f"#!/bin/sh\nPATH='{path}' exec podman{option} \"$@\"\n", encoding="utf-8")
    engine.chmod(0o755)
    return engine


def _with_sbin(path: str) -> str:
    entries: Sequence[str] = path.split(":")
    return ":".join([*entries, *(d for d in ("/usr/sbin", "/sbin") if d not in entries)])
