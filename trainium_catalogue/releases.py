"""Neuron SDK releases: container images, with compatible host drivers and instance families.

A release pins both image and driver, because a newer driver refuses an older runtime: with driver
2.29 or later, ``nrt_init()`` fails below runtime library 2.33 (Neuron release notes, runtime
component).
Images: github.com/aws-neuron/deep-learning-containers. AMIs: the releases of
github.com/aws/amazon-ecs-ami and github.com/awslabs/amazon-eks-ami.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from trainium_catalogue.suggest import did_you_mean

_REPOSITORY = "public.ecr.aws/neuron/pytorch-training-neuronx"
_SSM_PREFIX = "/aws/service/ecs/optimized-ami/amazon-linux-2023/neuron"

# Explicit, because support has to be established for each release and family.
_ALL = frozenset({"trn1", "trn1n", "trn2", "trn2u"})
_TRN2 = frozenset({"trn2", "trn2u"})

# Built with driver 2.28 (inferred from the build date: 2.28 was the newest then), the last driver
# that supports the runtimes of the PyTorch/XLA training images.
_AMI_DRIVER_2_28 = "al2023-ami-ecs-neuron-hvm-2023.0.20260615-kernel-6.1-x86_64"
_AMI_NEWEST = "al2023-ami-ecs-neuron-hvm-2023.0.20261113-kernel-6.1-x86_64"

# The change log of EKS's host images names the drivers of these, 2.28.0.0 and 2.29.0.0; it ends in
# July 2026, with the second.
_EKS_AMI_DRIVER_2_28 = "20260625"
_EKS_AMI_DRIVER_2_29 = "20260714"
# The first after SDK 2.33 (2026-10-19). Inferred: builds install the newest driver
# (amazon-eks-ami, templates/al2023/provisioners/install-neuron-driver.sh).
_EKS_AMI_SINCE_2_33 = "20261023"


class TorchBackend(StrEnum):
    """The software through which PyTorch reaches the chips."""

    XLA = "xla"
    TORCH_NEURON = "torchneuron"


def parse_version(text: str) -> tuple[int, ...]:
    """Parse ``2.28.0.0`` into comparable numbers; ``ValueError`` if it is not a dotted number."""
    return tuple(int(part) for part in text.split("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchNeuronPackages:
    """The exact package versions of a TorchNeuron image."""

    runtime_lib: str
    collectives: str
    tools: str
    torch: str
    torch_neuronx: str
    neuronx_cc: str
    nki: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronRelease:
    """One Neuron SDK release."""

    name: str
    backend: TorchBackend | None
    """None if the SDK ships no PyTorch for training."""
    pytorch: str
    base_image: str | None
    """The published training image; None if ``why_no_image`` gives the reason."""
    why_no_image: str = ""
    packages: TorchNeuronPackages | None = None
    """Packages for an image built by this project if AWS's is unknown."""
    runtime_library: str
    driver_min: str
    driver_below: str | None
    """First incompatible driver; None if none is known."""
    driver_version: str
    """The driver to install if the AMI's is outside the range."""
    families: frozenset[str]
    ecs_ami_name: str
    """The pinned ECS-optimized Neuron AMI; never ``recommended``, which moves."""
    eks_ami_date: str | None
    """Date of the EKS-optimized Neuron AMI; None if none is known."""
    eks_ami_since: str | None = None
    """Date of the first EKS AMI that can have the driver, if ``eks_ami_date`` is unknown."""

    @property
    def ecs_ami_ssm_parameter(self) -> str:
        """Public SSM parameter that holds the id of ``ecs_ami_name``."""
        return f"{_SSM_PREFIX}/{self.ecs_ami_name}/image_id"

    def accepts_driver(self, version: str) -> bool:
        """Return whether the container's runtime works on a host with this driver."""
        driver = parse_version(version)
        if driver < parse_version(self.driver_min):
            return False
        return self.driver_below is None or driver < parse_version(self.driver_below)

    @property
    def has_image(self) -> bool:
        """True if an image can be built without a user's base image."""
        return self.base_image is not None or self.packages is not None

    @property
    def driver_range(self) -> str:
        """The driver range, for tables and messages."""
        below = f", below {self.driver_below}" if self.driver_below else ""
        return f"{self.driver_min} or newer{below}"


def _xla(name: str, *, image_tag: str, runtime_library: str, driver_min: str) -> NeuronRelease:
    return NeuronRelease(
        name=name,
        backend=TorchBackend.XLA,
        pytorch="2.9",
        base_image=f"{_REPOSITORY}:{image_tag}",
        runtime_library=runtime_library,
        driver_min=driver_min,
        driver_below="2.29",
        driver_version="2.28.0.0",
        families=_ALL,
        ecs_ami_name=_AMI_DRIVER_2_28,
        eks_ami_date=_EKS_AMI_DRIVER_2_28,
    )


_RELEASES = (
    _xla(
        "2.28.0",
        image_tag="2.9.0-neuronx-py312-sdk2.28.0-ubuntu24.04",
        runtime_library="2.30.51",
        driver_min="2.26.5",
    ),
    _xla(
        "2.29.0",
        image_tag="2.9.0-neuronx-py312-sdk2.29.0-ubuntu24.04",
        runtime_library="2.31.24",
        driver_min="2.27.4",
    ),
    _xla(
        "2.29.1",
        image_tag="2.9.0-neuronx-py312-sdk2.29.1-ubuntu24.04",
        runtime_library="2.31.24",
        driver_min="2.27.4",
    ),
    _xla(
        "2.30.0",
        image_tag="2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04",
        runtime_library="2.32.31",
        driver_min="2.27",
    ),
    NeuronRelease(
        name="2.31.0",
        backend=TorchBackend.XLA,
        pytorch="2.9",
        base_image=None,
        why_no_image="AWS stopped publishing pytorch-training-neuronx with SDK 2.31",
        runtime_library="2.33.10",
        driver_min="2.29.0",
        driver_below=None,
        driver_version="2.29.0.0",
        families=_ALL,
        ecs_ami_name=_AMI_NEWEST,
        eks_ami_date=_EKS_AMI_DRIVER_2_29,
    ),
    NeuronRelease(
        name="2.32.0",
        backend=None,
        pytorch="none",
        base_image=None,
        why_no_image="SDK 2.32 does not include torch-neuronx",
        runtime_library="2.34.10",
        driver_min="2.30.2",
        driver_below=None,
        driver_version="2.30.2.0",
        families=_ALL,
        ecs_ami_name=_AMI_NEWEST,
        eks_ami_date=None,
    ),
    NeuronRelease(
        name="2.33.0",
        backend=TorchBackend.TORCH_NEURON,
        pytorch="2.14",
        base_image=None,
        why_no_image="the TorchNeuron training image has no published name that could be verified",
        # Neuron documentation 2.33.1, release-notes/prev/content, Trn2 packages of 2.33.0, and
        # release-notes/components/index for torch-neuronx and its PyTorch.
        packages=TorchNeuronPackages(
            runtime_lib="2.35.30.0",
            collectives="2.35.43.0",
            tools="2.33.38.0",
            torch="2.14.0",
            torch_neuronx="2.14.3.0",
            neuronx_cc="2.28.7631.0",
            nki="0.7.0",
        ),
        runtime_library="2.35.30",
        driver_min="2.31.7",
        driver_below=None,
        driver_version="2.31.7.0",
        families=_TRN2,
        ecs_ami_name=_AMI_NEWEST,
        eks_ami_date=None,
        eks_ami_since=_EKS_AMI_SINCE_2_33,
    ),
    NeuronRelease(
        name="2.33.1",
        backend=TorchBackend.TORCH_NEURON,
        pytorch="2.14",
        base_image=None,
        why_no_image="the TorchNeuron training image has no published name that could be "
        "verified, and the versions of this patch release's packages are not known",
        runtime_library="2.35.30",
        driver_min="2.31.7",
        driver_below=None,
        driver_version="2.31.7.0",
        families=_TRN2,
        ecs_ami_name=_AMI_NEWEST,
        eks_ami_date=None,
        eks_ami_since=_EKS_AMI_SINCE_2_33,
    ),
)

NEURON_RELEASES: Mapping[str, NeuronRelease] = MappingProxyType({r.name: r for r in _RELEASES})
"""Every known release, by SDK version."""

TRAINING_RELEASES = tuple(r.name for r in _RELEASES if r.backend is not None)
"""Releases that can train; only these are suggested."""

TORCH_NEURON_RELEASE = "2.33.0"
"""The newest TorchNeuron release whose image this project builds."""

DEFAULT_RELEASE = "2.28.0"
"""The release on which AWS advises NeuronX Distributed users to stay; it runs on every family."""


def find_release(name: str) -> NeuronRelease:
    """Look up a release; ``ValueError`` names the nearest known one."""
    try:
        return NEURON_RELEASES[name]
    except KeyError:
        reason = did_you_mean(name, TRAINING_RELEASES)
        raise ValueError(f"Neuron release {name!r} is not in the catalogue; {reason}") from None
