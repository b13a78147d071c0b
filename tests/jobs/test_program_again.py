"""Resubmission of a program's run: resume, changes and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.submit import plan
from tests.jobs.conftest import SCRIPT, Cli
from tests.jobs.programs import command_of, dry_run, ended, record, running, snapshot, submitted
from tests.jobs.test_refusals import assert_refused


def test_resubmission_resumes_from_newest_snapshot(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x", "--", "--epochs", "3")
    ended(cli)
    for number, files in ((7, 1), (8, 2)):
        cli.put(f"runs/x/snapshots/{number:08d}.json", snapshot(number, files))
    cli.put("runs/x/snapshots/attempt-1/node-0.json", {})

    said = submitted(cli, "./train.py", "--name", "x")

    assert "run x: resumes from snapshot 8, 2026-11-22T14:00:08+00:00 (" in said
    assert "ago): 2 files, 2 kB" in said
    assert "changed" not in said
    first, second = record(cli)
    assert first["argv"] == second["argv"] == ["--epochs", "3"]
    assert len([key for key in cli.keys("runs/x/code/") if key.endswith(".gz")]) == 1


def test_confirmation_mentions_changes(
    cli: Cli, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(cli, "./train.py", "--name", "x")
    ended(cli)
    asked: list[str] = []
    monkeypatch.setattr(plan, "confirm", lambda what, *, question, declined: asked.append(question))

    for text in (SCRIPT, "print(2)\n"):
        (program / "train.py").write_text(text)
        assert cli.run("submit", "./train.py", "--name", "x").exit_code == 0
        ended(cli)

    assert asked == ["submit it?", "submit it with these changes?"]


def test_changed_code_is_listed_and_confirmed(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x", "--keep-snapshots", "5", "--", "--epochs", "3")
    ended(cli)
    (program / "train.py").write_text(SCRIPT + "print('more')\nprint('and more')\n")
    (program / "pkg" / "model.py").unlink()
    (program / "pkg" / "data.py").write_text("N = 1\n")

    words = ("submit", "./train.py", "--name", "x", "--nodes", "2", "--keep-snapshots", "2")
    result = cli.run(*words, "--", "--epochs", "4")

    assert result.exit_code == 2
    assert (
        "changed: files: train.py changed (+2 -0), pkg/data.py added (1 line), pkg/model.py "
        "removed (1 line)\n"
    ) in result.stderr
    assert "changed: arguments: --epochs 4; were --epochs 3\n" in result.stderr
    assert "changed: --keep-snapshots: 2, was 5\n" in result.stderr
    assert "changed: nodes: 2, were 1\n" in result.stderr
    assert len(record(cli)) == 1
    assert "needs confirmation, but standard input is not a terminal; add --yes" in result.stderr
    assert cli.run(*words, "--yes", "--", "--epochs", "4").exit_code == 0
    assert len(record(cli)) == 2


def test_changed_executable_bit_is_listed(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x")
    ended(cli)
    (program / "pkg" / "model.py").chmod(0o755)

    result = cli.run("submit", "./train.py", "--name", "x")

    assert "changed: files: pkg/model.py is executable\n" in result.stderr


def test_omitted_options_keep_their_values(cli: Cli, program: Path) -> None:
    words = ("--peer-timeout-s", "9", "--checkpoint-dir", "out")
    submitted(cli, "./train.py", "--name", "x", *words, "--", "--epochs", "3")
    ended(cli)

    command = command_of(dry_run(cli, "./train.py", "--name", "x", "--snapshot-every-s", "9"))

    assert command[-9:] == [
        "--peer-timeout-s", "9.0", "--checkpoint-dir", "out", "--snapshot-every-s", "9.0",
        "--", "--epochs", "3",
    ]  # fmt: skip
    assert command_of(dry_run(cli, "./train.py", "--name", "x", "--"))[-1] == "out"


def test_number_of_nodes_is_kept(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x", "--nodes", "2")
    ended(cli)

    again = dry_run(cli, "./train.py", "--name", "x")

    assert again["nodes"] == 2
    assert again["plan"]["program"]["changes"] == []
    assert dry_run(cli, "./train.py", "--name", "x", "--nodes", "1")["nodes"] == 1
    assert dry_run(cli, "-m", "pkg.model", "--name", "x")["nodes"] == 1


def test_other_script_of_run_gets_no_old_arguments(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x", "--", "--epochs", "3")
    ended(cli)

    document = dry_run(cli, "-m", "pkg.model", "--name", "x")

    assert "--epochs" not in command_of(document)
    assert document["plan"]["program"]["changes"] == [
        "program: -m pkg.model, was train.py", "arguments: none; were --epochs 3",
    ]  # fmt: skip


def test_running_program_is_joined_and_other_one_refused(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x", "--", "--epochs", "3")
    running(cli)
    words = ("submit", "./train.py", "--name", "x", "--yes")

    joined = cli.run(*words)

    assert joined.exit_code == 0, joined.stderr
    assert "run x is already RUNNING" in joined.stderr
    assert "nothing was submitted" in joined.stderr
    assert_refused(
        cli.run(*words, "--", "--epochs", "4"),
        "run x is already RUNNING", "(arguments: --epochs 4; were --epochs 3)",
        "python -m jobs stop x",
    )  # fmt: skip
    assert_refused(cli.run(*words, "--keep-snapshots", "9"), "(--keep-snapshots: 9, was not given")
    assert_refused(cli.run(*words, "--nodes", "2"), "(nodes: 2, were 1)")
    assert_refused(cli.run("submit", "-m", "pkg.model", "--name", "x"), "was train.py")
    (program / "train.py").write_text("print(2)\n")
    assert_refused(cli.run(*words), "(files: train.py changed (+1 -3))", "code x --diff .`")
    assert len(record(cli)) == 1


def test_job_with_unknown_program_is_not_joined(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x")
    running(cli)
    cli.client("s3").delete_object(Bucket="bucket", Key="runs/x/program.json")

    assert_refused(
        cli.run("submit", "./train.py", "--name", "x", "--yes"),
        "its program is unknown: the bucket has no program.json for it",
    )


def test_run_of_built_in_workload_is_not_continued_by_program(cli: Cli, program: Path) -> None:
    cli.put("runs/x/run.json", {"workload": "llama-tiny", "values": {}})

    assert_refused(
        cli.run("submit", "./train.py", "--name", "x", "--yes"),
        "run x is a run of llama-tiny", "use another --name",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"format": 2}, "it has format 2, but this checkout reads 1"),
        ({"format": 1}, "it has no 'submissions'"),
        (b"{", "it is not JSON"),
    ],
)
def test_unreadable_record_is_refused(cli: Cli, program: Path, found: Any, says: str) -> None:
    cli.put("runs/x/program.json", found)

    assert_refused(
        cli.run("submit", "./train.py", "--name", "x", "--yes"), "program.json cannot be us", says
    )


def test_deleted_files_do_not_prevent_resume(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x")
    ended(cli)
    code = record(cli)[0]["code"]
    (program / "train.py").write_text("print(2)\n")

    cli.client("s3").delete_object(Bucket="bucket", Key=f"runs/x/code/{code}.tar.gz")
    assert "changed: files: train.py changed\n" in submitted(cli, "./train.py", "--name", "x")
    ended(cli)
    cli.client("s3").delete_object(
        Bucket="bucket", Key=f"runs/x/code/{record(cli)[1]['code']}.json"
    )
    (program / "train.py").write_text("print(3)\n")
    said = submitted(cli, "./train.py", "--name", "x")
    assert "changed: files: changed; the earlier list of files no longer exists" in said


def test_stored_value_that_became_invalid_is_refused(cli: Cli, program: Path) -> None:
    (program / "workload.toml").write_text(
        'name = "mine"\nscript = "train.py"\n[parameters.depth]\ndefault = 3\n'
    )
    submitted(cli, "./", "--name", "x", "--depth", "9")
    ended(cli)
    (program / "workload.toml").write_text(
        'name = "mine"\nscript = "train.py"\n[parameters.depth]\ndefault = 3\nmaximum = 4\n'
    )

    assert_refused(
        cli.run("submit", "./", "--name", "x", "--yes"),
        "run x has an invalid parameter: --depth=9 is too large; the maximum is 4; pass another",
    )
    said = submitted(cli, "./", "--name", "x", "--depth", "4")
    assert "changed: arguments: --depth 4; were --depth 9\n" in said
    assert "changed: --depth" not in said
