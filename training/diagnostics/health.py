"""Check that an image has all modules of the workloads: ``python -m training.diagnostics.health``.

The image build runs it without a Neuron device, where Neuron's modules are only located. With a
device, they are imported too.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import pkgutil
import platform
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import training
from training.core.failures import describe
from training.core.logs import set_up_logging
from training.workloads import IMPLEMENTATIONS, hide_sklearn

MODULES = (
    "boto3",
    "botocore",
    "fastokens",
    "google.protobuf",
    "h5py",
    "huggingface_hub",
    "numpy",
    "packaging.requirements",
    "pip",
    "pyarrow",
    "pyarrow.parquet",
    "safetensors.torch",
    "sentencepiece",
    "tensorboard",
    "tokenizers",
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.run",
    "torch.utils.tensorboard",
    "transformers",
    "transformers.convert_slow_tokenizer",
    "transformers.generation.configuration_utils",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.tokenization_utils_fast",
)
"""Third-party modules; workloads import most of them lazily."""
NEURON_MODULES = ("torch_xla", "torch_neuronx", "neuronx_distributed", "libneuronxla", "neuronxcc")
"""Modules of a Neuron image; ``training`` imports them only on a Neuron device."""
_FOLDER = Path(training.__path__[0])
DATA = (
    _FOLDER / "diagnostics" / "verify" / "golden.json",
    _FOLDER / "datasets" / "prepared" / "digits.csv.gz",
)
"""Data files that ``training`` reads."""
_DEVICE = Path("/dev/neuron0")

log = logging.getLogger("training.diagnostics.health")

Import = Callable[[str], object]


def own_modules() -> list[str]:
    """List every module of ``training``; all can be imported without a device."""
    found = pkgutil.walk_packages(training.__path__, "training.")
    return [module.name for module in found]


def failed_imports(names: Iterable[str], load: Import = importlib.import_module) -> list[str]:
    """Describe each module that cannot be imported: its name and the reason."""
    problems = []
    for name in names:
        try:
            load(name)
        # Modules may raise any exception, and some exit if a library is missing.
        except (Exception, SystemExit) as error:
            problems.append(f"{name} cannot be imported: {describe(error)}")
    return problems


def version_of(name: str) -> str:
    """Return name and version of a module's distributions, or "<module> not installed"."""
    top = name.partition(".")[0] if not name.startswith("google.") else "google"
    distributions = importlib.metadata.packages_distributions().get(top, ())
    versions = [f"{found} {importlib.metadata.version(found)}" for found in set(distributions)]
    return ", ".join(sorted(versions)) or f"{name} not installed"


def _find_installed(names: Iterable[str]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is not None]


def main() -> int:
    """Print versions and problems; return 0 if there are no problems."""
    set_up_logging()
    hide_sklearn()
    neuron = _find_installed(NEURON_MODULES)
    on_device = _DEVICE.exists()
    problems = failed_imports([*MODULES, *own_modules()])
    problems += failed_imports(neuron) if on_device else []
    problems += failed_imports(IMPLEMENTATIONS, lambda name: IMPLEMENTATIONS[name].load())
    problems += [f"{path} is missing" for path in DATA if not path.is_file()]
    log.info("health: Python %s, %s", platform.python_version(), platform.machine())
    unique_versions = dict.fromkeys(version_of(name) for name in (*MODULES, *neuron))
    for text in unique_versions:
        log.info("health: %s", text)
    for problem in problems:
        log.error("health: %s", problem)
    if problems:
        return 1
    how = "can be imported too" if on_device else "found, but not imported without a device"
    what = f"{', '.join(neuron)} {how}" if neuron else "this image trains on CPUs only"
    log.info("health: %d workloads can be imported; %s", len(IMPLEMENTATIONS), what)
    return 0


if __name__ == "__main__":
    sys.exit(main())
