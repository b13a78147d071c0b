"""Neuron releases: image, host driver and family fit together."""

import pytest

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.releases import (
    DEFAULT_RELEASE,
    NEURON_RELEASES,
    NeuronRelease,
    TorchBackend,
    find_release,
)

RELEASES = pytest.mark.parametrize("release", NEURON_RELEASES.values(), ids=lambda r: r.name)


@RELEASES
def test_driver_that_would_be_installed_is_accepted(release: NeuronRelease) -> None:
    assert release.accepts_driver(release.driver_version)


@RELEASES
def test_every_release_has_image_or_reason(release: NeuronRelease) -> None:
    assert bool(release.base_image) != bool(release.why_no_image)


@pytest.mark.parametrize("release", ["2.28.0", "2.29.1", "2.30.0"])
def test_driver_2_29_is_refused_by_every_published_training_image(release: str) -> None:
    assert not NEURON_RELEASES[release].accepts_driver("2.29.0.0")


def test_torchneuron_does_not_run_on_trn1() -> None:
    families = {
        family
        for release in NEURON_RELEASES.values()
        if release.backend is TorchBackend.TORCH_NEURON
        for family in release.families
    }

    assert families == {"trn2", "trn2u"}


def test_default_runs_on_every_family_with_a_published_image() -> None:
    release = NEURON_RELEASES[DEFAULT_RELEASE]

    assert release.base_image
    assert release.families == {instance.family for instance in INSTANCE_TYPES.values()}


def test_unknown_release_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'2\.28' .* did you mean '2\.28\.0'\?"):
        find_release("2.28")


def test_release_without_pytorch_is_not_suggested() -> None:
    with pytest.raises(ValueError, match=r"did you mean '2\.33\.1'\?"):
        find_release("2.32.1")
