"""Whether this suite can run here, and what its tests share.

It judges the project's NxD back-end on the real, public package: ``make test-nxd``. Where that or
the torch it belongs to is not installed, every test is skipped, and nothing heavy is imported.
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
    from tests.nxd.jobs import Desk

_VERSIONS = {"torch": "2.9", "torch-xla": "2.9", "transformers": "4.5"}
"""Of the last line of images for trn1; torch_xla 2.9 loads with no other torch."""


def _reason() -> str | None:
    """Why the suite cannot run here."""
    for name, wanted in _VERSIONS.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed here; run make test-nxd"
        if not found.startswith(wanted):
            return f"{name} is {found} here, and NxD's is {wanted}; run make test-nxd"
    source = os.environ.get(on_cpu.ENV_SOURCE)
    if source and not (Path(source) / "neuronx_distributed" / "__init__.py").is_file():
        return f"{on_cpu.ENV_SOURCE}={source} holds no package neuronx_distributed"
    if not source and find_spec("neuronx_distributed") is None:
        return f"neuronx_distributed is not installed and {on_cpu.ENV_SOURCE} does not say where"
    return None


REASON = _reason()
if REASON is None:
    # transformers imports torch_xla where it finds it, which in a Neuron image looks for devices.
    os.environ["PJRT_DEVICE"] = "CPU"
    on_cpu.install()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip every test of this folder, all with one line of the summary."""
    if REASON is not None:
        pytest.skip(REASON)


@pytest.fixture(scope="session")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """What the ranks of every case have computed."""
    return compute(tmp_path_factory.mktemp("cases"), CASES)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A folder with a dataset."""
    from tests.nxd.jobs import Desk
    from tests.training.llama.conftest import write_dataset
    from training.storage import open_objects

    desk = Desk(tmp_path_factory.mktemp("desk"))
    objects = open_objects(str(desk.root), region=None, endpoint_url=None)
    write_dataset(objects.at("datasets/words"), validation_tokens=600)
    yield desk
    desk.close()
