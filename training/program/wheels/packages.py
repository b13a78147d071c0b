"""The image's packages, and the constraints they impose on a program's requirements.

Some packages are fixed (``trainium_catalogue.image_packages``). All others are used if they satisfy
the requirements, and otherwise shadowed by the required version: programs often pin packages such
as transformers or datasets, rarely to the image's version.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from trainium_catalogue.image_packages import is_fixed
from trainium_catalogue.safe_folder import path_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A wheel, in the marker of a set of wheels."""

    name: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if len(path_parts(self.name)) > 1 or not self.name.endswith(".whl") or self.bytes < 0:
            raise ValueError(f"{self.name!r} of {self.bytes} bytes is not a wheel")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePackages:
    """The Python version and packages of the image in which wheels were collected."""

    python: str
    packages: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelsMarker:
    """A complete set of wheels, whose ``wheels.json`` is written last."""

    format: int = 1
    key: str
    image: ImagePackages
    lock_sha256: str
    wheels: tuple[WheelFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed package."""

    name: str
    """Canonical name."""
    version: str
    requires: tuple[Requirement, ...]
    """Its requirements on this machine, without extras."""

    @property
    def is_fixed(self) -> bool:
        """True if requirements may not replace it."""
        return is_fixed(self.name)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A line of a constraints file, and the image's package that requires it."""

    line: str
    name: str
    owner: Package

    @property
    def reason(self) -> str:
        """Explain the constraint."""
        if self.owner.name == self.name:
            return f"the image has {self.owner}, which cannot be replaced"
        return f"the image's {self.owner} needs {self.line}"


def installed() -> dict[str, Package]:
    """Return the installed packages by canonical name; the first one on the path wins."""
    by_name: dict[str, Package] = {}
    for distribution in importlib.metadata.distributions():
        # pip ignores metadata without a name, or with a version that predates PEP 440.
        name = distribution.metadata["Name"]
        if not name or canonicalize_name(name) in by_name or not _is_version(distribution.version):
            continue
        package = Package(
            name=canonicalize_name(name),
            version=distribution.version,
            requires=tuple(_requirements(distribution.requires or ())),
        )
        by_name[package.name] = package
    return by_name


def fixed_versions(packages: Mapping[str, Package]) -> dict[str, str]:
    """Return the versions of fixed packages, by name."""
    return {name: item.version for name, item in sorted(packages.items()) if item.is_fixed}


def constraints(packages: Mapping[str, Package]) -> list[Constraint]:
    """Return constraints that preserve the fixed packages and their requirements."""
    found = []
    for package in sorted(packages.values(), key=lambda item: item.name):
        if not package.is_fixed:
            continue
        line = f"{package.name}=={package.version}"
        found.append(Constraint(line=line, name=package.name, owner=package))
        for requirement in package.requires:
            name = canonicalize_name(requirement.name)
            installed = packages.get(name)
            # Ignore requirements that the image itself violates.
            if (
                installed is None
                or installed.is_fixed
                or not _satisfies(requirement, installed.version)
            ):
                continue
            if requirement.specifier:
                line = f"{name}{requirement.specifier}"
                found.append(Constraint(line=line, name=name, owner=package))
    return found


def broken_by(packages: Mapping[str, Package], replaced: Mapping[str, str]) -> list[str]:
    """List the image's packages whose requirements no longer hold after replacements.

    ``replaced`` maps names to new versions.
    """
    return [
        f"the image's {package} needs {name}{requirement.specifier}, but gets "
        f"{name} {replaced[name]}"
        for package in sorted(packages.values(), key=lambda item: item.name)
        if package.name not in replaced
        for requirement in package.requires
        if (name := canonicalize_name(requirement.name)) in replaced
        and name in packages
        and _satisfies(requirement, packages[name].version)
        and not _satisfies(requirement, replaced[name])
    ]


def _requirements(lines: Iterable[str]) -> Iterator[Requirement]:
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _satisfies(requirement: Requirement, version: str) -> bool:
    return requirement.specifier.contains(version, prereleases=True)


def _is_version(text: str | None) -> bool:
    try:
        Version(text or "")
    except InvalidVersion:
        return False
    return True
