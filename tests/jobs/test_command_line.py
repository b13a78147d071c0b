"""Command lines that cannot be read, and a Python without what the CLI needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.conftest import Desk
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
def test_a_wrong_command_line_has_a_document_too(words: tuple[str, ...], says: str) -> None:
    result = Desk("").run(*words)
    document = json.loads(result.stdout)

    conforms("jobs-scale", document)
    assert document["refused"] == "usage"
    assert says in document["message"]
    assert result.exit_code == 2


def test_a_wrong_command_line_without_json_prints_no_document() -> None:
    result = Desk("").run("scale", "--nodes", "many")

    assert (result.exit_code, result.stdout) == (2, "")


def test_outside_the_virtual_environment_one_line_says_how_to_get_in() -> None:
    # -S leaves out what is installed.
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


def test_trainium_is_the_same_program_from_any_folder(tmp_path: Path) -> None:
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
