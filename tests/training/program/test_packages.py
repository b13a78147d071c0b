"""Which packages of an image are fixed, and the consequences for others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from training.program.wheels.packages import (
    broken_by,
    constraints,
    installed,
)


def install(folder: Path, name: str, version: str, *requires: str) -> None:
    """Write an installation's files."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Requires-Dist: {line}\n" for line in requires]
    (info / "METADATA").write_text("".join(lines))


@pytest.fixture(autouse=True)
def _only_this_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])


def test_their_dependencies_may_be_replaced_within_their_limits(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.9.0", "fsspec>=0.8.5", "numpy", 'extra-thing>1; extra == "all"')
    install(tmp_path, "numpy", "1.26.4")
    install(tmp_path, "fsspec", "2024.6.1")
    install(tmp_path, "extra-thing", "2.0")
    found = constraints(installed())
    assert [item.line for item in found] == ["numpy==1.26.4", "torch==2.9.0", "fsspec>=0.8.5"]
    assert found[2].reason == "the image's torch 2.9.0 needs fsspec>=0.8.5"


def test_a_limit_violated_by_the_image_itself_is_ignored(tmp_path: Path) -> None:
    install(tmp_path, "neuronx-cc", "2.22", "networkx<=2.6.3")
    install(tmp_path, "networkx", "3.1")
    assert [item.line for item in constraints(installed())] == ["neuronx-cc==2.22"]


def test_a_package_that_loses_a_dependency_is_named_unless_also_replaced(tmp_path: Path) -> None:
    install(tmp_path, "transformers", "4.56.2", "tokenizers>=0.22")
    install(tmp_path, "tokenizers", "0.22.2")
    there = installed()
    assert broken_by(there, {"tokenizers": "0.19.1"}) == [
        "the image's transformers 4.56.2 needs tokenizers>=0.22, but gets tokenizers 0.19.1"
    ]
    assert broken_by(there, {"tokenizers": "0.19.1", "transformers": "4.44.2"}) == []
    assert broken_by(there, {"tokenizers": "0.23.0"}) == []


def test_leftovers_of_packages_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "gone-1.0.dist-info").mkdir()
    install(tmp_path, "old", "1.0-build-of-a-tuesday")
    install(tmp_path, "odd", "1.0", "not a requirement !!")
    assert [str(item) for item in installed().values()] == ["odd 1.0"]
