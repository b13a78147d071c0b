"""Invalid command lines, and a Python without the CLI's dependencies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import COMMANDS
from tests.jobs.conftest import Cli
from tests.support.limits import scaled
from tests.support.schemas import conforms
from tools import setup

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("scale", "--json", "--nodes", "many"), "Invalid value for '--nodes': 'many'"),
        (("list", "--json", "--limit", "many"), "Invalid value for '--limit': 'many'"),
        (("lst", "--json"), "No such command 'lst'"),
    ],
)
def test_invalid_command_line_prints_document(words: tuple[str, ...], says: str) -> None:
    result = Cli("").run(*words)
    document = json.loads(result.stdout)

    conforms("jobs-scale", document)
    assert document["refused"] == "usage"
    assert says in document["message"]
    assert result.exit_code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_does_not_show_names_of_functions(command: str) -> None:
    result = Cli("").run(command, "--help")

    assert result.exit_code == 0
    assert re.findall(r"<\w*_\w*>", result.stdout) == []


def test_invalid_command_line_without_json_prints_no_document() -> None:
    result = Cli("").run("scale", "--nodes", "many")

    assert (result.exit_code, result.stdout) == (2, "")


def test_python_without_virtual_environment_gets_hint() -> None:
    # -S ignores installed packages.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "jobs", "list"],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
        timeout=scaled(30),
    )

    assert done.returncode == 2
    assert done.stderr.startswith("refused: module typer is not installed for ")
    assert done.stderr.endswith("run `make setup` once, then `. .venv/bin/activate`\n")
    assert done.stderr.count("\n") == 1


def test_trainium_command_works_from_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [setup.VENV / "bin" / "trainium", "--help"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert "Usage: trainium [OPTIONS] COMMAND" in done.stdout
