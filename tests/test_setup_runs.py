"""Setup installs the packages of a target once, and states the remedy if it cannot."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools import setup

ROOT = Path(__file__).parents[1]
PYTHON = """\
#!/bin/sh
# Stands for the Python that runs tools/setup.py: writes down the layer.
mkdir -p .venv build/programs build/baselines
echo "$2" >> asked
test ! -e broken
"""


@dataclass
class Checkout:
    """The Makefile in a separate folder, where nothing is installed yet."""

    folder: Path

    def make(self, *targets: str) -> int:
        """Call the real make."""
        python = f"PYTHON={self.folder / 'python'}"
        return subprocess.run(["make", "-s", python, *targets], cwd=self.folder).returncode

    def raise_version(self, name: str) -> None:
        """Change a lock file after the installation."""
        newest = max(path.stat().st_mtime for path in self.folder.rglob("*"))
        os.utime(self.folder / name, (newest + 1, newest + 1))

    @property
    def asked(self) -> list[str]:
        """Layers that were requested."""
        return (self.folder / "asked").read_text().split()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    text = Path(shutil.copy(ROOT / "Makefile", tmp_path)).read_text()
    for name in re.findall(r"[\w./-]+(?:\.txt|\.toml|\.json|\.mjs|setup\.py)(?=[\s\\])", text):
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return Checkout(tmp_path)


def test_tests_layer_includes_rehearsal_layer(
    checkout: Checkout,
) -> None:
    for name in ("setup", "setup-tests", "setup"):
        checkout.make(name)

    assert checkout.asked == ["rehearsal", "tests"]


@pytest.mark.parametrize(("layer", "base"), [("benchmarks", "rehearsal"), ("programs", "tests")])
def test_extra_layer_is_installed_once_after_product(
    checkout: Checkout, layer: str, base: str
) -> None:
    for _ in range(2):
        checkout.make(f"setup-{layer}")

    assert checkout.asked == [base, layer]


def test_raised_version_is_installed(checkout: Checkout) -> None:
    checkout.make("setup")
    checkout.raise_version("requirements.txt")
    checkout.make("setup")

    assert checkout.asked == ["rehearsal", "rehearsal"]


def test_test_tool_does_not_affect_rehearsal(checkout: Checkout) -> None:
    checkout.make("setup")
    checkout.raise_version("requirements-dev.txt")
    checkout.make("setup")

    assert checkout.asked == ["rehearsal"]


def test_interrupted_setup_is_not_considered_complete(checkout: Checkout) -> None:
    (checkout.folder / "broken").touch()
    assert checkout.make("setup-tests")
    (checkout.folder / "broken").unlink()
    assert not checkout.make("setup-tests")

    assert checkout.asked == ["tests", "tests"]


# --- refusals ------------------------------------------------------------------------------------


def test_old_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    monkeypatch.setattr(sys, "version", "3.10.2 (main)")

    with pytest.raises(SystemExit, match=r"this is Python 3.10.2; run make with PYTHON=/path"):
        setup.main("rehearsal")


def test_cuda_packages_are_refused_with_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "torch_index", lambda: ())
    monkeypatch.setattr(setup, "uv", lambda *_, **__: " + nvidia-cublas==13\n + torch==2.13.0\n")

    with pytest.raises(SystemExit, match=r"with gigabytes of CUDA.*PIP_FIND_LINKS.* make setup"):
        setup.install_packages("requirements.txt")


def test_failing_command_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^setup: .*python.* failed, see above"):
        setup.run(sys.executable, "-c", "raise SystemExit('no such package')")

    assert "no such package" in capfd.readouterr().err


# --- the index -----------------------------------------------------------------------------------


def test_uv_uses_pip_index_configuration() -> None:
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


def test_existing_uv_settings_are_kept() -> None:
    given = {"UV_DEFAULT_INDEX": "https://mine.test", "SSL_CERT_FILE": "/mine.crt"}
    listed = "global.index-url='https://a.test'\nglobal.cert='/etc/ca.crt'\n"

    assert setup.settings_of_uv(listed, given) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}


def test_pip_no_index_setting_is_passed_to_uv() -> None:
    assert setup.settings_of_uv(":env:.no-index='1'\n", {})["UV_NO_INDEX"] == "1"
    assert setup.settings_of_uv(":env:.no-index='0'\n", {})["UV_NO_INDEX"] == "0"
