"""An index of made-up packages, and the environment of pip without this machine's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.program.package_index import PackageIndex, serve_index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    """An empty index on loopback."""
    folder = tmp_path / "index"
    folder.mkdir()
    with serve_index(folder) as site:
        yield site


@pytest.fixture
def pip_environment(tmp_path: Path) -> dict[str, str]:
    """The variables that pip gets; its answers must not depend on who runs the tests."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "1",
    }
