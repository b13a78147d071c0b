"""The image's build context: the code that runs on nodes, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import aws_cdk as cdk
import pytest
import torch

from tests.stacks.synthesis import ROOT
from trainium_constructs import TrainingImage


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the tracked files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    copy = tmp_path_factory.mktemp("checkout")
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return copy


@pytest.fixture(scope="module")
def staged(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stage the context of the image, as a synthesis does."""
    app = cdk.App(outdir=str(tmp_path_factory.mktemp("out")))
    TrainingImage(cdk.Stack(app, "Test"), "Image", context=checkout, base="base:1")
    app.synth()
    (folder,) = Path(app.outdir).glob("asset.*/")
    return folder


def asset_hash(checkout: Path, base_image: str = "base:1") -> str:
    stack = cdk.Stack(cdk.App(), "Test")
    return TrainingImage(stack, "Image", context=checkout, base=base_image).asset_hash


def hash_after_an_edit(checkout: Path, path: str) -> str:
    edited = checkout / path
    edited.parent.mkdir(parents=True, exist_ok=True)
    with edited.open("a") as file:
        file.write("\n# edited\n")
    return asset_hash(checkout)


def test_editing_files_not_run_on_nodes_rebuilds_nothing(checkout: Path) -> None:
    before = asset_hash(checkout)

    for path in (
        "README.md",
        "tests/test_layout.py",
        "jobs/__init__.py",
        "stacks/batch_stack.py",
        "constructs/trainium_constructs/images.py",
        "docs/interfaces.md",
        "pyproject.toml",
        ".venv/lib/python3.11/site-packages/torch.py",
        "training/__pycache__/launch.cpython-311.pyc",
        "trainium_catalogue/__pycache__/ports.cpython-311.pyc",
        "training/.mypy_cache/3.11/launch.data.json",
        "training/notes.md",
    ):
        assert hash_after_an_edit(checkout, path) == before, path


@pytest.mark.parametrize(
    "path",
    [
        "training/__init__.py",
        "node_scaler/plan.py",
        "trainium_catalogue/contract.py",
        "docker/neuron/Dockerfile",
        "docker/neuron/requirements.txt",
    ],
)
def test_editing_node_code_rebuilds_image(checkout: Path, path: str) -> None:
    before = asset_hash(checkout)

    assert hash_after_an_edit(checkout, path) != before


def test_changed_base_image_changes_image(checkout: Path) -> None:
    assert asset_hash(checkout, "base:1") != asset_hash(checkout, "base:2")


def test_build_context_has_exactly_copied_files(staged: Path) -> None:
    folders = {
        str(Path(folder).relative_to(staged))
        for folder, _, files in os.walk(staged)
        if files and Path(folder) != staged
    }

    assert {name for name in folders if not name.startswith("training")} == {
        "docker/neuron",
        "trainium_catalogue",
        "trainium_catalogue/models",
        "trainium_catalogue/parameters",
        "node_scaler",
    }
    assert "training" in folders


def test_build_context_has_every_path_that_the_dockerfile_copies(staged: Path) -> None:
    lines = (ROOT / "docker/neuron/Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]

    assert copied
    assert [name for name in copied if not (staged / name).exists()] == []


def test_build_context_has_every_tracked_training_file(staged: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "training"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()

    assert tracked
    assert [name for name in tracked if not (staged / name).is_file()] == []


def test_dockerfile_passes_hadolint() -> None:
    done = subprocess.run(
        ["hadolint", ROOT / "docker/neuron/Dockerfile"], capture_output=True, text=True, check=False
    )

    assert done.stdout == ""


def libraries_check(package: Path) -> subprocess.CompletedProcess[str]:
    check = ROOT / "docker/neuron/check-libraries.sh"
    return subprocess.run(["bash", check, package], capture_output=True, text=True, check=False)


def test_build_refuses_a_package_whose_library_lacks_another(tmp_path: Path) -> None:
    assert libraries_check(Path(torch.__file__).parent).returncode == 0

    package = tmp_path / "torch_neuronx"
    package.mkdir()
    library = Path(torch._C.__file__).read_bytes()
    (package / "_C.so").write_bytes(library.replace(b"libtorch_python.so", b"libtorch_absent.so"))

    refused = libraries_check(package)
    assert (refused.returncode, refused.stdout.split()[-4:]) == (
        1,
        ["libtorch_absent.so", "=>", "not", "found"],
    )
    # In another package.
    (tmp_path / "libtorch_absent.so").write_bytes(library)
    assert libraries_check(package).returncode == 0
