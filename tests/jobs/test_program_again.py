"""A program's run, submitted again: what it continues, what has changed, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.submit import plan
from tests.jobs.conftest import SCRIPT, Desk
from tests.jobs.programs import (
    command_of,
    dry_run,
    ended,
    record,
    running,
    snapshot,
    submitted,
)
from tests.jobs.test_refusals import assert_refused


def test_the_same_again_continues_from_the_newest_snapshot(desk: Desk, program: Path) -> None:
    submitted(desk, "./train.py", "--name", "x", "--", "--epochs", "3")
    ended(desk)
    for number, files in ((7, 1), (8, 2)):
        desk.put(f"runs/x/snapshots/{number:08d}.json", snapshot(number, files))
    desk.put("runs/x/snapshots/attempt-1/node-0.json", {})

    said = submitted(desk, "./train.py", "--name", "x")

    assert "run x: continues from snapshot 8, 2026-11-22T14:00:08+00:00 (" in said
    assert "ago): 2 files, 2 kB" in said
    assert "changed" not in said
    first, second = record(desk)
    assert first["argv"] == second["argv"] == ["--epochs", "3"]
    assert len([key for key in desk.keys("runs/x/code/") if key.endswith(".gz")]) == 1


def test_the_question_says_that_something_changed(
    desk: Desk, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(desk, "./train.py", "--name", "x")
    ended(desk)
    asked: list[str] = []
    monkeypatch.setattr(plan, "confirm", lambda what, *, question, declined: asked.append(question))

    for text in (SCRIPT, "print(2)\n"):
        (program / "train.py").write_text(text)
        assert desk.run("submit", "./train.py", "--name", "x").exit_code == 0
        ended(desk)

    assert asked == ["submit it?", "submit it, with what changed?"]


def test_other_code_says_what_changed_and_asks(desk: Desk, program: Path) -> None:
    submitted(desk, "./train.py", "--name", "x", "--keep-snapshots", "5", "--", "--epochs", "3")
    ended(desk)
    (program / "train.py").write_text(SCRIPT + "print('more')\nprint('and more')\n")
    (program / "pkg" / "model.py").unlink()
    (program / "pkg" / "data.py").write_text("N = 1\n")

    words = ("submit", "./train.py", "--name", "x", "--nodes", "2", "--keep-snapshots", "2")
    result = desk.run(*words, "--", "--epochs", "4")

    assert result.exit_code == 2
    assert (
        "changed: files: train.py changed (+2 -0), pkg/data.py added (1 line), pkg/model.py "
        "removed (1 line)\n"
    ) in result.stderr
    assert "changed: arguments: --epochs 4; were --epochs 3\n" in result.stderr
    assert "changed: --keep-snapshots: 2, was 5\n" in result.stderr
    assert "changed: nodes: 2, were 1\n" in result.stderr
    assert len(record(desk)) == 1
    assert "is asked about, and standard input is not a terminal; add --yes" in result.stderr
    assert desk.run(*words, "--yes", "--", "--epochs", "4").exit_code == 0
    assert len(record(desk)) == 2


def test_a_file_that_is_executable_now_is_a_change(desk: Desk, program: Path) -> None:
    submitted(desk, "./train.py", "--name", "x")
    ended(desk)
    (program / "pkg" / "model.py").chmod(0o755)

    result = desk.run("submit", "./train.py", "--name", "x")

    assert "changed: files: pkg/model.py is executable\n" in result.stderr


def test_what_is_not_given_again_stays_as_it_was(desk: Desk, program: Path) -> None:
    words = ("--peer-timeout-s", "9", "--checkpoint-dir", "out")
    submitted(desk, "./train.py", "--name", "x", *words, "--", "--epochs", "3")
    ended(desk)

    command = command_of(dry_run(desk, "./train.py", "--name", "x", "--snapshot-every-s", "9"))

    assert command[-9:] == [
        "--peer-timeout-s", "9.0", "--checkpoint-dir", "out", "--snapshot-every-s", "9.0",
        "--", "--epochs", "3",
    ]  # fmt: skip
    assert command_of(dry_run(desk, "./train.py", "--name", "x", "--"))[-1] == "out"


def test_the_number_of_nodes_stays_as_it_was(desk: Desk, program: Path) -> None:
    submitted(desk, "./train.py", "--name", "x", "--nodes", "2")
    ended(desk)

    again = dry_run(desk, "./train.py", "--name", "x")

    assert again["nodes"] == 2
    assert again["plan"]["program"]["changes"] == []
    assert dry_run(desk, "./train.py", "--name", "x", "--nodes", "1")["nodes"] == 1
    assert dry_run(desk, "-m", "pkg.model", "--name", "x")["nodes"] == 1


def test_another_script_of_the_run_gets_no_arguments_of_the_first(
    desk: Desk, program: Path
) -> None:
    submitted(desk, "./train.py", "--name", "x", "--", "--epochs", "3")
    ended(desk)

    document = dry_run(desk, "-m", "pkg.model", "--name", "x")

    assert "--epochs" not in command_of(document)
    assert document["plan"]["program"]["changes"] == [
        "program: -m pkg.model, was train.py", "arguments: none; were --epochs 3",
    ]  # fmt: skip


def test_a_program_that_runs_is_joined_and_another_one_refused(desk: Desk, program: Path) -> None:
    submitted(desk, "./train.py", "--name", "x", "--", "--epochs", "3")
    running(desk)
    words = ("submit", "./train.py", "--name", "x", "--yes")

    joined = desk.run(*words)

    assert joined.exit_code == 0, joined.stderr
    assert "run x is RUNNING already" in joined.stderr
    assert "nothing was submitted" in joined.stderr
    assert_refused(
        desk.run(*words, "--", "--epochs", "4"),
        "run x is RUNNING already", "(arguments: --epochs 4; were --epochs 3)",
        "python -m jobs stop x",
    )  # fmt: skip
    assert_refused(desk.run(*words, "--keep-snapshots", "9"), "(--keep-snapshots: 9, was not given")
    assert_refused(desk.run(*words, "--nodes", "2"), "(nodes: 2, were 1)")
    assert_refused(desk.run("submit", "-m", "pkg.model", "--name", "x"), "was train.py")
    (program / "train.py").write_text("print(2)\n")
    assert_refused(desk.run(*words), "(files: train.py changed (+1 -3))", "code x --diff .`")
    assert len(record(desk)) == 1


def test_a_job_whose_program_is_not_known_is_not_joined(desk: Desk, program: Path) -> None:
    submitted(desk, "./train.py", "--name", "x")
    running(desk)
    desk.client("s3").delete_object(Bucket="bucket", Key="runs/x/program.json")

    assert_refused(
        desk.run("submit", "./train.py", "--name", "x", "--yes"),
        "what it runs is not known: the bucket has no program.json of it",
    )


def test_a_run_of_a_built_in_workload_is_not_continued_by_a_program(
    desk: Desk, program: Path
) -> None:
    desk.put("runs/x/run.json", {"workload": "llama-tiny", "values": {}})

    assert_refused(
        desk.run("submit", "./train.py", "--name", "x", "--yes"),
        "run x is one of llama-tiny", "give another --name",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"format": 2}, "it has format 2, and this checkout reads 1"),
        ({"format": 1}, "it has no 'submissions'"),
        (b"{", "cannot be used"),
        (b"[]", "cannot be used"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(
    desk: Desk, program: Path, found: Any, says: str
) -> None:
    desk.put("runs/x/program.json", found)

    assert_refused(
        desk.run("submit", "./train.py", "--name", "x", "--yes"), "program.json cannot be us", says
    )


def test_files_that_are_gone_do_not_keep_a_run_from_going_on(desk: Desk, program: Path) -> None:
    submitted(desk, "./train.py", "--name", "x")
    ended(desk)
    code = record(desk)[0]["code"]
    (program / "train.py").write_text("print(2)\n")

    desk.client("s3").delete_object(Bucket="bucket", Key=f"runs/x/code/{code}.tar.gz")
    assert "changed: files: train.py changed\n" in submitted(desk, "./train.py", "--name", "x")
    ended(desk)
    desk.client("s3").delete_object(
        Bucket="bucket", Key=f"runs/x/code/{record(desk)[1]['code']}.json"
    )
    (program / "train.py").write_text("print(3)\n")
    said = submitted(desk, "./train.py", "--name", "x")
    assert "changed: files: other than before; the list of the earlier ones is gone" in said


def test_a_stored_value_that_no_longer_fits_is_refused(desk: Desk, program: Path) -> None:
    (program / "workload.toml").write_text(
        'name = "mine"\nscript = "train.py"\n[parameters.depth]\ndefault = 3\n'
    )
    submitted(desk, "./", "--name", "x", "--depth", "9")
    ended(desk)
    (program / "workload.toml").write_text(
        'name = "mine"\nscript = "train.py"\n[parameters.depth]\ndefault = 3\nmaximum = 4\n'
    )

    assert_refused(
        desk.run("submit", "./", "--name", "x", "--yes"),
        "run x had --depth=9 is too large; the most is 4; give --depth another value",
    )
    said = submitted(desk, "./", "--name", "x", "--depth", "4")
    assert "changed: arguments: --depth 4; were --depth 9\n" in said
    assert "changed: --depth" not in said
