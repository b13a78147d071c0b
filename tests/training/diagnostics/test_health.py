"""The final check of the image's build: it covers all imports, and names missing ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from training.diagnostics import health
from trainium_catalogue.models.presets import Family

ROOT = Path(__file__).resolve().parents[3]
TRAINING = ROOT / "training"
OURS = {"training", "trainium_catalogue"}


def imported(source: str) -> set[str]:
    """Return third-party packages that a module imports, except for types."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        waiting += ast.iter_child_nodes(node)
    return found - OURS - sys.stdlib_module_names


def test_every_package_imported_by_training_is_checked() -> None:
    wanted = {name for path in TRAINING.rglob("*.py") for name in imported(path.read_text())}

    known = {name.partition(".")[0] for name in (*health.MODULES, *health.NEURON_MODULES)}
    assert wanted - known == set()


def test_the_classes_of_every_family_are_checked() -> None:
    # They are imported by a name derived from the family's.
    wanted = {f"transformers.models.{family}.modeling_{family}" for family in Family}

    assert wanted <= set(health.MODULES)


def test_every_data_file_is_checked() -> None:
    files = {path for path in TRAINING.rglob("*") if path.suffix in (".json", ".gz")}

    assert files == {Path(path) for path in health.DATA}


def test_a_missing_module_is_named_with_the_reason() -> None:
    assert health.failed_imports(["json", "no_such_module"]) == [
        "no_such_module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"
    ]


def test_a_module_that_exits_during_import_is_a_problem() -> None:
    def leave(name: str) -> None:
        raise SystemExit(3)

    assert health.failed_imports(["leaving"], leave) == [
        "leaving cannot be imported: SystemExit: 3"
    ]


def test_an_image_without_a_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "DATA", (Path("/nowhere/golden.json"),))
    monkeypatch.setattr(health, "MODULES", ("json",))

    assert health.main() == 1
    assert "health: /nowhere/golden.json is missing" in capsys.readouterr().err


# The tests above cover its parts.
@pytest.mark.full
def test_this_machine_is_healthy_and_reports_its_versions() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "training.diagnostics.health"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'constructs'}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "health: transformers 4." in done.stdout
    assert "workloads can be imported; this image trains on CPUs only" in done.stdout
