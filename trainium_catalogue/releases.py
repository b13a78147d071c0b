"""Neuron SDK releases: container images with the host drivers and families that they run on.

A release pins both, because a newer driver refuses an older runtime: driver 2.29 and later make
``nrt_init()`` fail below runtime library 2.33 (Neuron release notes, runtime component).
Images: github.com/aws-neuron/deep-learning-containers. Host images: the releases of
github.com/aws/amazon-ecs-ami and github.com/awslabs/amazon-eks-ami.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from trainium_catalogue.suggest import did_you_mean

_REPOSITORY = "public.ecr.aws/neuron/pytorch-training-neuronx"
_SSM_PREFIX = "/aws/service/ecs/optimized-ami/amazon-linux-2023/neuron"

# By hand: somebody found out that a release runs on a family, so a new family starts with none.
_ALL = frozenset({"trn1", "trn1n", "trn2", "trn2u"})
_TRN2 = frozenset({"trn2", "trn2u"})

# Built with driver 2.28 (inferred from the build date: 2.28 was the newest then), the last before
# 2.29 cut off the runtimes of every published PyTorch training image.
_AMI_DRIVER_2_28 = "al2023-ami-ecs-neuron-hvm-2023.0.20260615-kernel-6.1-x86_64"
_AMI_NEWEST = "al2023-ami-ecs-neuron-hvm-2023.0.20261113-kernel-6.1-x86_64"

# Their change log names the drivers, 2.28.0.0 and 2.29.0.0; it ends there, in July 2026.
_EKS_AMI_DRIVER_2_28 = "20260625"
_EKS_AMI_DRIVER_2_29 = "20260714"


class TorchBackend(StrEnum):
    """The software through which PyTorch reaches the chips."""

    XLA = "xla"
    TORCH_NEURON = "torchneuron"


def parse_version(text: str) -> tuple[int, ...]:
    """Parse ``2.28.0.0`` into comparable numbers; ``ValueError`` if it is not a dotted number."""
    return tuple(int(part) for part in text.split("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronRelease:
    """One Neuron SDK release."""

    name: str
    backend: TorchBackend | None
    """None if the SDK ships no PyTorch for training."""
    pytorch: str
    base_image: str | None
    """The published training image; None if ``why_no_image`` says why there is none."""
    why_no_image: str = ""
    runtime_library: str
    driver_min: str
    driver_below: str | None
    """First driver that no longer works; None if none is known."""
    driver_version: str
    """The driver to install if the host image's is outside the range."""
    families: frozenset[str]
    ecs_ami_name: str
    """The dated ECS-optimised Neuron host image that fits; never ``recommended``, which moves."""
    eks_ami_date: str | None
    """Date of the EKS-optimised Neuron host image that fits; None if none is known."""

    @property
    def ecs_ami_ssm_parameter(self) -> str:
        """Public SSM parameter that holds the id of ``ecs_ami_name``."""
        return f"{_SSM_PREFIX}/{self.ecs_ami_name}/image_id"

    def accepts_driver(self, version: str) -> bool:
        """Tell whether the container's runtime works on a host with this driver."""
        driver = parse_version(version)
        if driver < parse_version(self.driver_min):
            return False
        return self.driver_below is None or driver < parse_version(self.driver_below)

    @property
    def driver_range(self) -> str:
        """Readable driver range, for tables and messages."""
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
        why_no_image="SDK 2.32 ships no torch-neuronx at all",
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
        runtime_library="2.35.30",
        driver_min="2.31.7",
        driver_below=None,
        driver_version="2.31.7.0",
        families=_TRN2,
        ecs_ami_name=_AMI_NEWEST,
        eks_ami_date=None,
    ),
    NeuronRelease(
        name="2.33.1",
        backend=TorchBackend.TORCH_NEURON,
        pytorch="2.14",
        base_image=None,
        why_no_image="the TorchNeuron training image has no published name that could be verified",
        runtime_library="2.35.30",
        driver_min="2.31.7",
        driver_below=None,
        driver_version="2.31.7.0",
        families=_TRN2,
        ecs_ami_name=_AMI_NEWEST,
        eks_ami_date=None,
    ),
)

NEURON_RELEASES: Mapping[str, NeuronRelease] = MappingProxyType({r.name: r for r in _RELEASES})
"""Every release this project knows, by SDK version."""

TRAINING_RELEASES = tuple(r.name for r in _RELEASES if r.backend is not None)
"""Releases with a PyTorch to train with; no other is worth suggesting."""

DEFAULT_RELEASE = "2.28.0"
"""The release on which AWS tells users of NeuronX Distributed to stay; runs on every family."""


def find_release(name: str) -> NeuronRelease:
    """Look a release up; ``ValueError`` names the nearest known one."""
    try:
        return NEURON_RELEASES[name]
    except KeyError:
        reason = did_you_mean(name, TRAINING_RELEASES)
        raise ValueError(f"Neuron release {name!r} is not in the catalogue; {reason}") from None
