"""Requirements against the image's own packages, before a job is submitted to collect them.

Of what packages require in turn, only the job that collects them knows; it refuses that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.program.grammar import python_of
from jobs.program.requirements import Requirements
from trainium_catalogue.contract import CONSTRAINT_MARK
from trainium_catalogue.image_packages import (
    IMAGE_PACKAGES,
    IN_EVERY_IMAGE,
    IN_PUBLISHED_IMAGES,
)

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_REMEDY = (
    "leave the line out, and the program finds the image's; for another version deploy a Neuron "
    "release that has it, or an image of your own (image_uri)"
)


def check_image_packages(
    requirements: Requirements, target: Deployment, note: Callable[[str], None]
) -> None:
    """Refuse lines that would replace what stays in the image; remark what cannot be known."""
    # Only programs with requirements need these, and every command would wait for them.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    release = target.neuron_release
    versions = IMAGE_PACKAGES.get(release, {}) if _is_published(target) else {}
    known = {*versions, *(IN_PUBLISHED_IMAGES if versions else IN_EVERY_IMAGE)}
    for line in requirements.named():
        try:
            plain = line.removeprefix(CONSTRAINT_MARK)
            wanted = Requirement(plain.partition(" --")[0])
        except InvalidRequirement:
            continue  # pip's own forms, such as an address alone
        name = canonicalize_name(wanted.name)
        # Others of such names, as optimum-neuron, need not be there, and may be added then.
        if name not in known or not _is_for_nodes(wanted, release):
            continue
        where = f"{requirements.place(line)}: {plain}"
        if wanted.url is not None:
            raise Refusal(
                "requirements-image",
                f"{where}: the image has its own {name}, which stays as it is; {_REMEDY}",
            )
        there = versions.get(name)
        exact = any(clause.operator in ("==", "===") for clause in wanted.specifier)
        if there is None and exact:
            note(
                f"{where}: it has to be exactly the version in the image, which is not known here; "
                "without the line, the program finds the image's"
            )
        elif there is not None and not any(
            wanted.specifier.contains(version, prereleases=True) for version in there
        ):
            has = f"{name} {there[0]}" if len(there) == 1 else f"{name} {_series(there[0])}"
            raise Refusal(
                "requirements-image",
                f"{where}: the image of Neuron {release} has {has}, which stays as it is: "
                f"it fits the other Neuron packages, the driver and compiled graphs; {_REMEDY}",
            )


def _is_published(target: Deployment) -> bool:
    """Tell whether the deployment's image is known to be made from the release's own."""
    settings = target.settings
    return settings is not None and not {"base_image", "image_uri"} & settings.keys()


def _is_for_nodes(wanted: Requirement, release: str) -> bool:
    if wanted.marker is None:
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
    return bool(wanted.marker.evaluate(environment))


def _series(version: str) -> str:
    return version.rpartition(".")[0] + ".x"
