"""The pages about programs name every option that programs have."""

from __future__ import annotations

from pathlib import Path

import typer

from jobs.cli import app as jobs
from jobs.program.parameters import PLATFORM_PARAMETERS
from rehearsal.cli.commands import app as rehearsal
from trainium_catalogue.workloads import LAUNCH_PARAMETERS

DOCS = Path(__file__).resolve().parents[2] / "docs"
OF_OTHERS = {
    "--compile",
    "--set",
    "--help",
    "--json",
    "--deployment",
    "--region",
    "--check-only",
    "--max-usd",
    "--zone-patience",
}
"""Options of `submit` that are not for programs, or for every command."""


def options(app: typer.Typer, command: str) -> set[str]:
    """Return the long options of a command."""
    found = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    return {word for item in found for word in item.opts if word.startswith("--")}


def test_pages_name_every_submit_option_for_programs() -> None:
    page = "".join((DOCS / name).read_text() for name in ("own-program.md", "snapshots.md"))
    parameters = {f"--{item.name}" for item in (*PLATFORM_PARAMETERS, *LAUNCH_PARAMETERS)}

    wanted = parameters | options(jobs, "submit") - OF_OTHERS

    assert {word for word in wanted if word not in page} == {"--module"}  # it says -m
    assert "submit -m " in page


def test_pages_name_every_rehearsal_option_for_programs() -> None:
    pages = "".join((DOCS / name).read_text() for name in ("own-program.md", "rehearsal.md"))
    whole = {"--quick", "--workload", "--instance-type", "--containers", "--help"}

    wanted = options(rehearsal, "run") - whole

    assert {word for word in wanted if word not in pages} == {"--folder", "--addresses", "--json"}
