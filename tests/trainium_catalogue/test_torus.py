"""Meshes that the chips of an instance can route."""

from __future__ import annotations

import pytest

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.torus import check_mesh

LARGE = INSTANCE_TYPES["trn2.48xlarge"]


@pytest.mark.parametrize("degree", [1, 2, 4, 16, 64])
def test_meshes_of_neighbouring_chips_fit(degree: int) -> None:
    """16 x 4 is the mesh of AWS's own TorchTitan configuration (qwen3_8b_tp4_fsdp16)."""
    check_mesh(LARGE, degree)


@pytest.mark.parametrize(("degree", "mesh"), [(8, "8 x 8"), (32, "2 x 32")])
def test_meshes_with_gaps_between_chips_are_refused_with_alternatives(
    degree: int, mesh: str
) -> None:
    with pytest.raises(ValueError, match=rf"mesh of {mesh} have groups .* use 1, 2, 4, 16 or 64"):
        check_mesh(LARGE, degree)


def test_single_chip_routes_every_group() -> None:
    for degree in (1, 2, 4):
        check_mesh(INSTANCE_TYPES["trn2.3xlarge"], degree)
