"""The image's packages that a program's requirements may not replace, and their versions.

torch and the Neuron packages have to match each other, the driver and the compiled graphs, and
packages compiled against numpy need the installed numpy.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

_FIXED = re.compile(r"torch|torchvision|torchaudio|torch-xla|numpy|nki|.*neuron.*")
"""Canonical names; ``.*neuron.*`` matches torch-neuronx, neuronx-cc, neuronx-distributed,
libneuronxla and others."""

# AWS's images install torch==2.9.0 (2.28.0) or torch==2.9.* (later); PyPI has these.
_TORCH = ("2.9.0", "2.9.1")


def _versions(
    torch_neuronx: str, neuronx_cc: str, distributed: str, nki: str
) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType(
        {
            "torch": _TORCH,
            "torch-neuronx": (torch_neuronx,),
            "neuronx-cc": (neuronx_cc,),
            "neuronx-distributed": (distributed,),
            "neuronx-distributed-training": ("1.7.0",),
            "nki": (nki,),
        }
    )


IMAGE_PACKAGES: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "2.28.0": _versions(
            "2.9.0.2.12.22436+0f1dac25", "2.23.6484.0+3b612583", "0.17.26814+4b18de63",
            "0.2.0+g82fdb402",
        ),
        "2.29.0": _versions(
            "2.9.0.2.13.24727+8e870898", "2.24.5133.0+58f8de22", "0.18.27753+1cafd54f",
            "0.3.0+23928721754.g18aa1271",
        ),
        "2.29.1": _versions(
            "2.9.0.2.13.26312+8e870898", "2.24.8799.0+6f62ff7c", "0.18.27753+1cafd54f",
            "0.3.0+23928721754.g18aa1271",
        ),
        "2.30.0": _versions(
            "2.9.0.2.14.27725+e2ff0410", "2.25.3371.0+f524f7f8", "0.19.28093+fc70b593",
            "0.4.0+25940409122.gd30719f9",
        ),
    }
)  # fmt: skip
"""Versions in the published image of a Neuron release, by canonical name, as pinned by its
Dockerfile: github.com/aws-neuron/deep-learning-containers, tag of the release,
pytorch/training/2.9.0/Dockerfile.neuronx. It pins no numpy, torch-xla or libneuronxla."""


IN_EVERY_IMAGE = frozenset({"torch", "numpy"})
IN_PUBLISHED_IMAGES = IN_EVERY_IMAGE | {"torchvision", "torch-xla", "libneuronxla"}
"""Packages of unknown version: the Dockerfiles install torchvision, and torch-neuronx requires the
rest."""


def is_fixed(name: str) -> bool:
    """Return whether requirements may not replace a package, by its canonical name."""
    return _FIXED.fullmatch(name) is not None
