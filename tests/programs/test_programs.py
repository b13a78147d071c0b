"""Public programs, unmodified, on the real launcher: a killed node costs only time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import page
from tests.programs.catalogue import PublicProgram, public_programs
from tests.programs.rehearsed import command, pinned, rehearse, results_in, resumed
from tests.programs.trial import try_program

PROGRAMS = public_programs()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            program, id=name, marks=pytest.mark.full if program.quick else pytest.mark.programs
        )
        for name, program in PROGRAMS.items()
    ],
)
def test_a_killed_node_does_not_change_the_result(program: PublicProgram, tmp_path: Path) -> None:
    if missing := program.missing():
        pytest.skip(missing)

    trial = try_program(program, tmp_path)

    assert program.agree(trial.undisturbed, trial.survived), trial
    assert trial.resumed == bool(program.checkpoint_dir), trial


# Its packages are collected from the index, like a user's.
@pytest.mark.programs
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", [name for name, each in PROGRAMS.items() if each.on_neuron])
def test_a_program_for_neuron_is_submitted_to_a_deployment_for_trn2(
    name: str, tmp_path: Path
) -> None:
    if missing := PROGRAMS[name].missing():
        pytest.skip(missing)

    found = rehearse(PROGRAMS[name], ["batch"], tmp_path)["batch"]

    assert found.problems == ()
    on_cpu = page.results()[name]["undisturbed"]
    assert float(found.result) == pytest.approx(float(on_cpu), rel=1e-3)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_result_is_recorded_for_every_program(program: PublicProgram) -> None:
    found = page.results()[program.name]

    assert set(found) >= {"undisturbed", "survived"}
    for result in found.values():
        assert program.agree(found["undisturbed"], result), found


def test_try_rehearses_a_program(tmp_path: Path) -> None:
    program = PROGRAMS["trl-sft"]

    words = command(program, ["batch", "eks"], tmp_path)

    assert words[2:7] == ["rehearsal", "run", "-m", "trl.scripts.sft", "--workdir"]
    assert words[words.index("--orchestrators") + 1] == "batch,eks"
    assert words[words.index("--checkpoint-dir") + 1] == "out"
    assert f"resume-arguments={program.resume_later}" in words
    assert words[words.index("--") + 1 :] == program.argv
    assert pinned(program) == ["trl==1.16.0", "accelerate==1.15.0", "datasets==5.0.1"]


def test_results_of_both_attempts_are_read_from_the_followed_output(tmp_path: Path) -> None:
    lines = (
        "node 0 | {'loss': 2.5}",
        "node 1 | {'loss': 9.5}",
        "node 0, attempt 2 | {'loss': 1.5}",
        "node 0, attempt 2 | {'loss': 1.25}",
    )
    (tmp_path / "eks-program-kill-child.log").write_text("\n".join(lines))

    assert results_in(PROGRAMS["run_clm"], tmp_path, "eks") == (["2.5"], ["1.5", "1.25"])
    assert results_in(PROGRAMS["run_clm"], tmp_path, "batch") == ([], [])


def test_results_agree_to_the_last_digit_or_within_the_programs_band() -> None:
    exact, random = PROGRAMS["run_clm"], PROGRAMS["run_mlm"]

    assert exact.agree("5.1113", "5.1113")
    assert not exact.agree("5.1113", "5.111")
    assert random.agree("5.6376", "5.7")
    assert not random.agree("5.6376", "5.8")


@pytest.mark.parametrize(
    ("files", "expected"), [("0 files, 0 bytes", False), ("5 files, 1 MB", True)]
)
def test_an_empty_snapshot_cannot_be_resumed_from(
    tmp_path: Path, files: str, expected: bool
) -> None:
    line = f"node 0, attempt 2 | launch: snapshot 1 of 20:14:05, {files}, restored in 0.2 s"
    (tmp_path / "batch-program-kill-child.log").write_text(line)

    assert resumed(tmp_path, "batch") is expected
