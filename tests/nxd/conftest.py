"""Availability check and shared fixtures of this suite.

The suite tests the project's NxD backend with the real, public package (``make test-nxd``). Without
that package or its torch release, every test is skipped and no large package is imported.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.nxd import on_cpu
from tests.nxd.cases import CASES
from tests.nxd.figures import Figures, compute

if TYPE_CHECKING:
    from tests.nxd.jobs import LocalRuns

_VERSIONS = {"torch": "2.9", "torch-xla": "2.9", "transformers": "4.5"}
"""Versions in the last images for trn1; torch_xla 2.9 can be loaded only with torch 2.9."""


def _reason() -> str | None:
    """Return why the suite cannot run here."""
    for name, wanted in _VERSIONS.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed here; run make test-nxd"
        if not installed.startswith(wanted):
            return f"{name} {installed} is installed, but NxD needs {wanted}; run make test-nxd"
    source = os.environ.get(on_cpu.ENV_SOURCE)
    if source and not (Path(source) / "neuronx_distributed" / "__init__.py").is_file():
        return f"{on_cpu.ENV_SOURCE}={source} does not contain the package neuronx_distributed"
    if not source and find_spec("neuronx_distributed") is None:
        return f"neuronx_distributed is not installed, and {on_cpu.ENV_SOURCE} is not set"
    return None


REASON = _reason()
if REASON is None:
    # transformers imports an installed torch_xla, which in a Neuron image looks for devices.
    os.environ["PJRT_DEVICE"] = "CPU"
    on_cpu.install()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip every test of this folder with one summary line."""
    if REASON is not None:
        pytest.skip(REASON)


@pytest.fixture(scope="session")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """Return the results of every case's ranks."""
    return compute(tmp_path_factory.mktemp("cases"), CASES)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRuns]:
    """Create a folder for local runs, with a dataset."""
    from tests.nxd.jobs import LocalRuns
    from tests.training.llama.conftest import write_dataset
    from training.storage import open_objects

    runs = LocalRuns(tmp_path_factory.mktemp("runs"))
    objects = open_objects(str(runs.root), region=None, endpoint_url=None)
    write_dataset(objects.at("datasets/words"), validation_tokens=600)
    yield runs
    runs.close()
