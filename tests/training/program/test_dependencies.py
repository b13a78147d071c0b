"""Collected wheels on a node: installed offline, and found by the program before the image's."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.limits import scaled
from tests.training.program.bundles import program
from tests.training.program.conftest import KEY, environment_of_pip
from tests.training.program.package_index import PackageIndex, serve_index
from training.program.preparation import judged
from training.program.wheels import packages
from training.program.wheels.collect import collect
from training.program.wheels.install import DependenciesRefused, install_wheels
from training.storage import LocalObjects
from trainium_catalogue.exit_codes import ExitCode

if TYPE_CHECKING:
    from tests.training.conftest import Cluster

Install = Callable[[LocalObjects], Path]
TOOL = {
    "p4_tool/__init__.py": "def main(): print('from the command')\n",
    "p4_tool/words.txt": "data\n",
    "p4_space/tool.py": "NAME = 'tool'\n",
    "p4_hook.pth": "import sys; sys.p4_hook = 'ran'\n",
    "p4_tool-1.0.dist-info/entry_points.txt": (
        "[console_scripts]\np4-tool = p4_tool:main\n[p4.plugins]\ntool = p4_tool:main\n"
    ),
}


def install_at(folder: Path, wheels: LocalObjects) -> Path:
    """Install wheels on this node; any index in its settings does not exist."""
    env = environment_of_pip(folder)
    env |= {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_TARGET": "/nowhere"}
    install_wheels(wheels, folder=folder / "fetched", target=folder / "site", env=env)
    assert not (folder / "fetched").exists()
    return folder / "site"


def mark_complete(wheels: LocalObjects, files: dict[str, bytes], lock: bytes) -> None:
    """Mark a set of files complete, as anyone with write access to wheels/ can."""
    for name, data in files.items():
        wheels.put(name, data)
    wheels.put("requirements.lock", lock)
    document = {
        "format": 1,
        "key": KEY,
        "image": {
            "python": ".".join(map(str, sys.version_info[:3])),
            "packages": packages.fixed_versions(packages.installed()),
        },
        "lock_sha256": hashlib.sha256(lock).hexdigest(),
        "wheels": [
            {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        ],
    }
    wheels.put("complete.json", json.dumps(document).encode())


@pytest.fixture
def install(tmp_path: Path) -> Install:
    return partial(install_at, tmp_path)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a node's installation: packages with requirements, another version, a tool."""
    folder = tmp_path_factory.mktemp("node")
    wheels = LocalObjects(folder / "wheels")
    (folder / "index").mkdir()
    with serve_index(folder / "index") as index:
        index.add("p4-model", "1.0", ["p4-layers", "numpy"])
        index.add("p4-layers", "2.1")
        index.add("safetensors", "0.4.2")
        index.add("p4-tool", "1.0", files=TOOL)
        index.add("p4-other", "1.0", files={"p4_space/other.py": "NAME = 'other'\n"})
        text = index.text("p4-model", "safetensors==0.4.2", "p4-tool", "p4-other")
        environment = environment_of_pip(folder)
        collect(wheels, key=KEY, text=text, environment=environment, report=lambda step: None)
    return install_at(folder, wheels)


def python(site: Path, code: str) -> str:
    """Return the standard output of a program whose worker uses ``site``."""
    start = "from training.program import worker\nimport sys\n"
    start += f"worker._add_packages_folder({str(site)!r})\n"
    ended = subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_program_sees_its_requirements_and_the_images_packages(site: Path) -> None:
    code = "import p4_model, p4_layers, numpy\n"
    code += "print(p4_model.VERSION, p4_layers.VERSION, numpy.__version__)"
    assert python(site, code).split() == ["1.0", "2.1", version("numpy")]


def test_a_program_sees_its_own_version_of_a_package_of_the_image(site: Path) -> None:
    code = "import safetensors, importlib.metadata as m\n"
    code += "print(safetensors.VERSION, m.version('safetensors'))"
    assert python(site, code).split() == ["0.4.2", "0.4.2"]


def test_commands_data_namespaces_and_path_files_work_as_in_an_environment(site: Path) -> None:
    code = """
import importlib.metadata, importlib.resources, subprocess
import p4_space.other, p4_space.tool
print(importlib.resources.files("p4_tool").joinpath("words.txt").read_text().strip())
print(p4_space.tool.NAME, p4_space.other.NAME)
print([entry.name for entry in importlib.metadata.entry_points(group="p4.plugins")])
print(sys.p4_hook)
print(subprocess.run(["p4-tool"], capture_output=True, text=True, check=True).stdout.strip())
"""
    found = python(site, code).splitlines()
    assert found == ["data", "tool other", "['tool']", "ran", "from the command"]


def test_nothing_is_installed_if_the_image_has_everything(
    wheels: LocalObjects, install: Install
) -> None:
    mark_complete(wheels, {}, b"")
    assert list(install(wheels).iterdir()) == []


def test_wheels_that_were_never_collected_are_refused(
    tmp_path: Path, wheels: LocalObjects, install: Install
) -> None:
    with pytest.raises(DependenciesRefused) as refused:
        install(wheels)
    failure = judged(refused.value, tmp_path)
    assert failure.code is ExitCode.CONFIGURATION
    assert "has no complete set of wheels; submit the program again" in failure.reason


def test_wheels_of_another_image_of_the_same_name_are_refused(
    wheels: LocalObjects, install: Install
) -> None:
    mark_complete(wheels, {}, b"")
    document: dict[str, Any] = json.loads(wheels.get("complete.json"))
    document["image"]["packages"]["torch"] = "1.13.1"
    wheels.put("complete.json", json.dumps(document).encode())
    here = f"in another image .torch 1.13.1, here {version('torch').replace('+', '.')}."
    with pytest.raises(DependenciesRefused, match=here):
        install(wheels)


def test_a_node_installs_wheels_and_its_program_imports_them(
    lone_node: Cluster, wheels: LocalObjects
) -> None:
    model = PackageIndex(lone_node.folder).add("p4-model", "1.0")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    lock = f"p4-model==1.0 --hash=sha256:{digest}\n".encode()
    mark_complete(wheels, {model.name: model.read_bytes()}, lock)
    script = "import multiprocessing, os, p4_model\nprint('rank', os.environ['RANK'], p4_model)\n"
    flags = program(lone_node.folder, script=script)
    lone_node.start(*flags, f"--wheels={KEY}", workload="program")
    assert lone_node.end(within_s=scaled(40)) == {0: 0}, lone_node.all_logs()
    assert "program: dependencies of 0.0 MB installed in " in lone_node.log(0)
    assert "rank 0 <module 'p4_model'" in lone_node.log(0)


@pytest.mark.parametrize("name", ["a.whl", "requirements.lock"])
def test_a_changed_file_is_refused(wheels: LocalObjects, install: Install, name: str) -> None:
    mark_complete(wheels, {"a.whl": b"x"}, b"")
    wheels.put(name, wheels.get(name) + b"#")

    with pytest.raises(
        DependenciesRefused, match=f"{name} differs from what was collected; delete"
    ):
        install(wheels)


@pytest.mark.parametrize("name", ["evil-1.0.tar.gz", "evil-1.0-py3-none-any.whl"])
def test_nothing_is_built_on_a_node(
    tmp_path: Path, wheels: LocalObjects, install: Install, name: str
) -> None:
    victim = tmp_path / "victim"
    source = PackageIndex(tmp_path).add_source("evil", "1.0", build=f"open({str(victim)!r}, 'w')")
    data = source.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    mark_complete(wheels, {name: data}, f"evil==1.0 --hash=sha256:{digest}\n".encode())

    with pytest.raises(DependenciesRefused):
        install(wheels)

    assert not victim.exists()


@pytest.mark.parametrize(
    "line",
    ["--index-url http://127.0.0.1:9/", "./evil.whl --hash=sha256:" + "0" * 64, "evil==1.0"],
)
def test_a_lock_that_gives_pip_options_is_refused(
    wheels: LocalObjects, install: Install, line: str
) -> None:
    mark_complete(wheels, {"a.whl": b"x"}, f"{line}\n".encode())

    with pytest.raises(DependenciesRefused, match=r"requirements\.lock differs"):
        install(wheels)
