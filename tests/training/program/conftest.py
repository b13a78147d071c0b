"""An index of synthetic packages, and a pip independent of this machine's settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.training.program.package_index import PackageIndex, serve_index
from training.program.wheels.collect import collect
from training.storage import LocalObjects

KEY = "0123456789abcdef" * 2
Collect = Callable[..., LocalObjects]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    """Serve an empty index on loopback."""
    folder = tmp_path / "index"
    folder.mkdir()
    with serve_index(folder) as site:
        yield site


@pytest.fixture
def pip_environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment variables of pip."""
    return environment_of_pip(tmp_path)


def environment_of_pip(home: Path) -> dict[str, str]:
    """Return an environment in which pip ignores the settings of the user who runs the tests."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "1",
    }


@pytest.fixture
def wheels(tmp_path: Path) -> LocalObjects:
    """Return the folder in which nodes without a bucket look for the wheels of ``KEY``."""
    return LocalObjects(tmp_path / "build" / "wheels" / KEY)


@pytest.fixture
def collected(
    wheels: LocalObjects, index: PackageIndex, pip_environment: dict[str, str]
) -> Collect:
    """Collect requirements from the index."""

    def run(*requirements: str) -> LocalObjects:
        text = index.text(*requirements)
        collect(wheels, key=KEY, text=text, environment=pip_environment, report=lambda step: None)
        return wheels

    return run
