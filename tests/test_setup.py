"""Each layer of the setup contains the imported packages."""

from __future__ import annotations

import ast
import shutil
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import setup

ROOT = Path(__file__).resolve().parent.parent
GPU_PROGRAMS = ROOT / "tests" / "jobs" / "port"
"""Programs that are only parsed."""
SITE_PACKAGES = Path(pytest.__file__).parent.parent
OURS = {
    "app", "benchmarks", "jobs", "node_scaler", "notifier", "rehearsal", "stacks", "tests", "tools",
    "training", "trainium_catalogue", "trainium_constructs", "trainium_emulators",
}  # fmt: skip
NOT_INSTALLED = {"torch_xla", "torch_neuronx", "neuronx_distributed", "libneuronxla"}
"""Only on a Neuron device, and for tests/nxd."""
NOT_REHEARSED = {"pyarrow"}
"""Reads a user's own Parquet."""


def requirements(name: str) -> list[Requirement]:
    """Every requirement of a file and of those that it includes."""
    found = []
    for line in (ROOT / name).read_text().splitlines():
        if line.startswith("-r "):
            found += requirements(line.removeprefix("-r "))
        elif line and not line.startswith(("#", "-e ")):
            found.append(Requirement(line))
    return found


def with_dependencies(wanted: list[Requirement]) -> set[str]:
    """Names of distributions that are installed for them, theirs included."""
    found: set[tuple[str, str]] = set()
    waiting = [(each.name, extra) for each in wanted for extra in ("", *each.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (key := (canonicalize_name(name), extra)) in found:
            continue
        found.add(key)
        try:
            needed = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue  # for another platform
        for each in needed:
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                waiting += [(each.name, more) for more in ("", *each.extras)]
    return {name for name, _ in found}


def modules_in(folder: Path) -> list[Path]:
    """Modules of a folder that run here."""
    if folder.is_file():
        return [folder]
    return [
        path
        for path in folder.rglob("*.py")
        if "node_modules" not in path.parts and path.parent != GPU_PROGRAMS
    ]


@cache
def imports_in(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Imports anywhere in a module."""
    tree = ast.walk(ast.parse(path.read_text()))
    return tuple(node for node in tree if isinstance(node, (ast.Import, ast.ImportFrom)))


def imports(folder: Path) -> set[str]:
    """Third-party top-level packages that a folder's modules import."""
    found = set()
    for path in modules_in(folder):
        for node in imports_in(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            found |= {name.partition(".")[0] for name in names}
    return found - sys.stdlib_module_names - OURS


# --- what each layer holds -----------------------------------------------------------------------


def missing(folder: str, layer: str) -> set[str]:
    """Packages that a folder's modules import and that the layer's requirements do not bring."""
    installed = with_dependencies([*requirements(setup.LAYERS[layer]), Requirement(setup.TORCH)])
    installed |= set(setup.DATA_ONLY)
    providers = packages_distributions()
    return {
        name
        for name in imports(ROOT / folder) - NOT_INSTALLED
        if not {canonicalize_name(p) for p in providers.get(name, ())} & installed
    }


@pytest.mark.parametrize(
    "folder",
    [
        "app.py", "stacks", "constructs/trainium_constructs", "jobs", "node_scaler", "notifier",
        "training", "emulators/trainium_emulators", "rehearsal",
    ],
)  # fmt: skip
def test_rehearsal_imports_are_in_requirements(folder: str) -> None:
    assert missing(folder, "rehearsal") - NOT_REHEARSED == set()


@pytest.mark.parametrize("folder", ["tests", "tools", "training"])
def test_test_imports_are_in_requirements(folder: str) -> None:
    assert missing(folder, "tests") == set()


@pytest.mark.parametrize("layer", setup.LAYERS)
def test_every_requirement_has_the_version_of_the_lock_file(layer: str) -> None:
    lock = {each.name: each for each in map(Requirement, lock_lines())}
    locked = {canonicalize_name(name): str(each.specifier) for name, each in lock.items()}

    for each in [*requirements(setup.LAYERS[layer]), Requirement(setup.TORCH)]:
        assert locked[canonicalize_name(each.name)] == str(each.specifier), each
    assert all(canonicalize_name(name) in locked for name in ("uv", *setup.DATA_ONLY))


def lock_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("folder", sorted(OURS - {"benchmarks"}))
def test_every_imported_module_exists(folder: str) -> None:
    names = modules(source_of(folder)) - NOT_REHEARSED

    assert [name for name in sorted(names) if find_spec(name) is None] == []


def modules(folder: Path) -> set[str]:
    """Dotted names of third-party modules that a folder's modules import."""
    found = set()
    for path in modules_in(folder):
        if "nxd" in path.parts:
            continue
        for node in imports_in(path):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif node.module and not node.level:
                found.add(node.module)
                if node.module == "aws_cdk":
                    found |= {f"aws_cdk.{a.name}" for a in node.names if a.name[:4] == "aws_"}
    skipped = sys.stdlib_module_names | OURS | NOT_INSTALLED
    return {name for name in found if name.partition(".")[0] not in skipped}


def source_of(name: str) -> Path:
    """Folder or file of one of this project's packages."""
    places = (ROOT, ROOT / "constructs", ROOT / "emulators")
    (found,) = [p for place in places for p in (place / name, place / f"{name}.py") if p.exists()]
    return found


# --- what is prepared ----------------------------------------------------------------------------


def test_modules_compiled_ahead_exist() -> None:
    names = {
        alias.name
        for program in setup.WARM
        for node in ast.walk(ast.parse(program))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    own = {name for name in names if name.partition(".")[0] in OURS}

    assert {"app", "jobs.cli"} < own
    assert [name for name in own if find_spec(name) is None] == []


def test_the_reason_of_an_npm_failure_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / "tools" / "cdk" / name, tmp_path)
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    with pytest.raises(SystemExit, match=r"npm-cli\.js ci .* failed, see above"):
        setup.install_npm_packages(tmp_path)
    assert "ECONNREFUSED" in capfd.readouterr().err
