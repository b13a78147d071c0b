"""The dated machine images (AMIs) of hosts in the emulated account, in addition to moto's."""

from collections.abc import Callable
from typing import Any

from moto.ec2.models.amis import Ami, AmiBackend

from trainium_catalogue.releases import NEURON_RELEASES

IMAGE_IDS = {
    name: f"ami-{number:017x}"
    for number, name in enumerate(
        sorted({release.ecs_ami_name for release in NEURON_RELEASES.values()}), start=1
    )
}
"""Image IDs by name."""
_OWNER = "591542846629"
"""Amazon's account for ECS-optimized images."""


def install() -> None:
    """Add the images to every region."""
    load_moto_images: Callable[[Any], None] = AmiBackend._load_amis

    def load(backend: Any) -> None:
        load_moto_images(backend)
        for name, image_id in IMAGE_IDS.items():
            backend.amis[image_id] = Ami(
                backend, image_id, name=name, owner_id=_OWNER, region_name=backend.region_name
            )

    AmiBackend._load_amis = load
