"""Check requirements against the packages in the image, before they are collected.

Transitive dependencies are known only to the job that collects them, which checks them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.program.grammar import python_of
from jobs.program.requirements import Requirements
from trainium_catalogue.contract import CONSTRAINT_MARK
from trainium_catalogue.image_packages import IMAGE_PACKAGES, IN_EVERY_IMAGE, IN_PUBLISHED_IMAGES

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_REMEDY = (
    "remove the line to use the image's version; for another version, deploy a Neuron release that "
    "has it, or your own image (image_uri)"
)


def check_image_packages(
    requirements: Requirements, target: Deployment, note: Callable[[str], None]
) -> None:
    """Refuse lines that would replace packages of the image; note what cannot be checked."""
    # Imported here to keep other commands fast.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    release = target.neuron_release
    versions = IMAGE_PACKAGES.get(release, {}) if _is_published(target) else {}
    known = {*versions, *(IN_PUBLISHED_IMAGES if versions else IN_EVERY_IMAGE)}
    for line in requirements.named():
        try:
            plain = line.removeprefix(CONSTRAINT_MARK)
            requirement = Requirement(plain.partition(" --")[0])
        except InvalidRequirement:
            continue  # pip's own syntax, such as a bare URL
        name = canonicalize_name(requirement.name)
        # Other Neuron packages, such as optimum-neuron, may be missing and can be added.
        if name not in known or not _is_for_nodes(requirement, release):
            continue
        where = f"{requirements.place(line)}: {plain}"
        if requirement.url is not None:
            raise Refusal(
                "requirements-image",
                f"{where}: the image has its own {name}, which is not replaced; {_REMEDY}",
            )
        provided = versions.get(name)
        exact = any(clause.operator in ("==", "===") for clause in requirement.specifier)
        if provided is None and exact:
            note(
                f"{where}: it must be exactly the version in the image, which is unknown; remove "
                "the line to use the image's version"
            )
        elif provided is not None and not any(
            requirement.specifier.contains(version, prereleases=True) for version in provided
        ):
            is_one = len(provided) == 1
            has = f"{name} {provided[0]}" if is_one else f"{name} {_series(provided[0])}"
            raise Refusal(
                "requirements-image",
                f"{where}: the image of Neuron {release} has {has}, which is not replaced, because "
                f"it matches the other Neuron packages, driver and compiled graphs; {_REMEDY}",
            )


def _is_published(target: Deployment) -> bool:
    """Return whether the deployment's image is known to be based on the release's published one."""
    settings = target.settings
    return settings is not None and not {"base_image", "image_uri"} & settings.keys()


def _is_for_nodes(requirement: Requirement, release: str) -> bool:
    if requirement.marker is None:
        return True
    python = python_of(release)
    environment = {
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "extra": "",
    }
    if python is not None:
        environment |= {"python_version": f"{python[0]}.{python[1]}"}
    return bool(requirement.marker.evaluate(environment))


def _series(version: str) -> str:
    return version.rpartition(".")[0] + ".x"
