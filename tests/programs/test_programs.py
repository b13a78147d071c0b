"""Public programs, unmodified, on the real launcher: a killed node changes nothing but the time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs.catalogue import ROOT, PublicProgram, public_programs
from tests.programs.trial import try_program

PROGRAMS = public_programs()
PAGE = ROOT / "docs" / "programs.md"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=name, marks=() if program.quick else pytest.mark.full)
        for name, program in PROGRAMS.items()
    ],
)
def test_a_killed_node_does_not_change_the_result(program: PublicProgram, tmp_path: Path) -> None:
    if missing := program.missing():
        pytest.skip(missing)

    trial = try_program(program, tmp_path)

    assert trial.same(program.band), trial
    assert trial.went_on == bool(program.checkpoint_dir), trial


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_page_has_every_program_with_its_command(program: PublicProgram) -> None:
    page = re.sub(r"[ \\\n]+", " ", PAGE.read_text())

    assert f"| {program.name} |" in page
    assert program.submission in page


def test_every_program_has_one_source_and_one_entry() -> None:
    for program in PROGRAMS.values():
        assert bool(program.package) != bool(program.repository), program.name
        assert bool(program.script) != bool(program.module), program.name
        assert bool(program.repository) == bool(program.commit), program.name


def test_a_program_is_given_at_most_one_argument_for_resuming() -> None:
    for program in PROGRAMS.values():
        words = f"{program.resume} {program.resume_later}".split()
        assert len([word for word in words if word.startswith("-") or "=" in word]) <= 1
