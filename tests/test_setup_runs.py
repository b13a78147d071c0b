"""Set-up installs what a target needs, once, and says what to do where it cannot."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tools import setup


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
