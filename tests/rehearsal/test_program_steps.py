"""The steps of a program: the command that is typed, and what is made of what a job left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rehearsal.deployment.state import EXAMPLE, ProgramOptions, Settings
from rehearsal.receipt import NodeAttempt, RunRecord
from rehearsal.steps import program

OWN = ProgramOptions(
    file="/my work/train.py",
    argv=("--epochs", "3", "--note", "two words"),
    checkpoint_dir="out",
    requirements="/my work/requirements.txt",
)


def settings(**changes: Any) -> Settings:
    values: dict[str, Any] = {
        "orchestrators": ("batch",),
        "nodes": 2,
        "processes_per_node": 1,
        "processes_of": {"program": 2},
        "instance_type": "trn1.32xlarge",
        "workloads": ("program",),
        "faults": (),
        "parameters": (),
        "containers": False,
        "addresses": "127.0.0",
        "program": OWN,
    }
    return Settings(**{**values, **changes})


def test_a_program_is_submitted_as_its_user_would() -> None:
    shown = program.submission(settings(nodes=3), "batch", "kill-child")

    assert shown.argv == (
        *("submit", "/my work/train.py", "--nodes", "3", "--name", "own-program-batch-kill-child"),
        *("--snapshot-every-s", "2", "--peer-timeout-s", "10", "--join-timeout-s", "120"),
        *("--checkpoint-dir", "out", "--requirements", "/my work/requirements.txt"),
        *("--yes", "--follow", "--", "--epochs", "3", "--note", "two words"),
    )


@pytest.mark.parametrize(
    ("orchestrators", "on", "words"),
    [
        (("batch",), "batch", ()),
        (("batch", "eks"), "batch", ("--on", "batch")),
        (("batch", "eks"), "eks", ("--on", "eks", "--scale")),
    ],
)
def test_where_it_runs_is_said_if_there_is_a_choice(
    orchestrators: tuple[str, ...], on: str, words: tuple[str, ...]
) -> None:
    argv = program.submission(settings(orchestrators=orchestrators), on, "kill-child").argv

    assert argv[4 : argv.index("--name")] == words


def test_the_users_parameters_win_over_the_rehearsals() -> None:
    given = settings(parameters=("snapshot-every-s=9", "max-bytes=1024"))

    assert program.parameters(given)["snapshot-every-s"] == "9"
    assert "max-bytes" not in program.parameters(given)


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({}, ("kill-child",)),
        ({"nodes": 1}, ("kill-main",)),
        ({"faults": ("hang-child", "reclaim-main")}, ("hang-child", "reclaim-main")),
        ({"faults": ("no-capacity",), "program": EXAMPLE}, ("kill-child",)),
    ],
)
def test_a_node_is_killed_if_nothing_else_was_asked_for(
    changes: dict[str, Any], faults: tuple[str, ...]
) -> None:
    assert program.fault_kinds(settings(**changes)) == faults


def ended(seconds: float) -> RunRecord:
    node = NodeAttempt(node=0, attempt=1, exit_code=0, reason=None, seconds=seconds)
    return RunRecord(
        run="own-program-batch-kill-child",
        fault=None,
        summary="no fault",
        expected="0 SUCCEEDED",
        seen="0 SUCCEEDED",
        differences=[],
        job_id="1",
        status="SUCCEEDED",
        status_reason=None,
        jobs_exit_code=0,
        attempts=[0],
        nodes=[node],
        sizes=[],
        seconds=99.0,
    )


def test_a_program_that_was_over_too_soon_fails_and_is_told_what_helps() -> None:
    check = program._not_hit(settings(), ended(3.0), kept=["step-1.pt"])

    assert not check.ok
    assert (
        "over before a snapshot had a file: it took 3 s, with a snapshot every 2 s" in check.detail
    )
    assert "--set snapshot-every-s" in check.detail


@pytest.mark.parametrize(
    ("folder", "words"),
    [(None, "nothing to the folder that is kept"), ("out", "nothing to out, which is kept")],
)
def test_a_program_that_keeps_nothing_fails_and_is_told_what_helps(
    folder: str | None, words: str
) -> None:
    check = program._not_hit(settings(program=replace(OWN, checkpoint_dir=folder)), ended(42.0),
                             kept=[])  # fmt: skip

    assert not check.ok
    assert "it ran 42 s" in check.detail
    assert words in check.detail
    assert "--checkpoint-dir" in check.detail


def test_a_program_without_the_awaited_file_fails_and_is_told_what_it_has() -> None:
    given = settings(program=replace(OWN, fault_after="*.ckpt"))

    check = program._not_hit(given, ended(42.0), kept=["config.yaml", "metrics.csv"])

    assert not check.ok
    assert "no snapshot had a file that matches --fault-after *.ckpt" in check.detail
    assert "the last one has config.yaml, metrics.csv" in check.detail


def test_what_goes_along_is_told_to_submit() -> None:
    given = replace(OWN, workdir="/my work", include=("a.pt", "b c"), exclude=("data",))

    argv = program.submission(settings(program=given), "batch", "kill-child").argv

    start = argv.index("--workdir")
    assert argv[start : argv.index("--yes")] == (
        *("--workdir", "/my work", "--include", "a.pt", "--include", "b c"),
        *("--exclude", "data"),
    )


def test_a_module_is_submitted_with_its_environment_and_how_it_resumes() -> None:
    mine = ProgramOptions(module="trl.scripts.sft", workdir="/my work", env=("HF_HUB_OFFLINE=1",))
    resume = "--resume_from_checkpoint out/checkpoint-*"
    given = settings(program=mine, parameters=(f"resume-arguments={resume}",))

    argv = program.submission(given, "batch", "kill-child").argv

    assert argv[:5] == ("submit", "-m", "trl.scripts.sft", "--nodes", "2")
    assert f"--resume-arguments={resume}" in argv
    start = argv.index("--workdir")
    assert argv[start : argv.index("--yes")] == (
        *("--workdir", "/my work", "--env", "HF_HUB_OFFLINE=1"),
    )


def test_submit_checks_a_module_without_a_deployment(tmp_path: Path) -> None:
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "mypkg" / "train.py").write_text("print(1)\n")
    mine = ProgramOptions(module="mypkg.train", workdir=str(tmp_path))

    assert program.refused(settings(program=mine)) is None
    assert "mypkg" in str(program.refused(settings(program=replace(mine, module="mypkg.other"))))


@pytest.mark.parametrize(
    ("text", "words"),
    [("print(1)\n", None), ("def f(:\n", "train.py, line 1"), ("# nothing\n", "has no statement")],
)
def test_submit_checks_the_file_without_a_deployment(
    tmp_path: Path, text: str, words: str | None
) -> None:
    (tmp_path / "train.py").write_text(text)
    mine = ProgramOptions(file=str(tmp_path / "train.py"))

    why = program.refused(settings(program=mine))

    assert why is None if words is None else words in str(why)


def test_a_key_is_refused_before_anything_is_deployed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / ".env").write_text("KEY=1\n")
    mine = ProgramOptions(file=str(tmp_path / "train.py"))

    assert ".env" in str(program.refused(settings(program=mine)))
    assert program.refused(settings(program=replace(mine, exclude=(".env",)))) is None


def test_what_only_this_machine_has_is_remarked_before_anything_is_deployed(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text("import helpers\n")
    (tmp_path / "helpers.py").write_text("x = 1\n")
    argv = ("--data", str(tmp_path))
    mine = ProgramOptions(file=str(tmp_path / "mine" / "train.py"), argv=argv)
    said: list[str] = []

    assert program.refused(settings(program=mine), said.append) is None
    assert f"argument {tmp_path}: a path of this machine" in said[0]
    assert f"helpers is in {tmp_path} here, which does not go along" in said[0]


def test_a_refusal_is_found_at_the_end_of_what_submit_says() -> None:
    assert program._refusal("left out: x\nrefused: too large; leave\ndata out\n") == (
        "too large; leave\ndata out"
    )
    assert program._refusal("it is not refused: no\n") is None


@pytest.mark.parametrize(
    ("given", "files", "ok"),
    [
        (ProgramOptions(module="pkg.train"), [], True),  # of the image
        (ProgramOptions(module="pkg.train"), None, False),
        (replace(OWN, file=__file__), [{"sha256": "0" * 64}], False),
    ],
)
def test_the_files_that_the_nodes_ran_are_compared(
    given: ProgramOptions, files: list[dict[str, str]] | None, ok: bool
) -> None:
    class Bucket:
        def document(self, key: str) -> dict[str, Any]:
            if key.endswith("program.json"):
                return {"submissions": [{"code": "c" * 64}]}
            assert key == f"runs/mine/code/{'c' * 64}.json"
            return {} if files is None else {"files": files}

    bucket: Any = Bucket()
    assert program._unchanged(settings(program=given), "mine", bucket).ok is ok


@pytest.mark.parametrize(
    ("line", "ok", "detail"),
    [
        ("reads what was restored: epoch-2.pt", True, "it read epoch-2.pt"),
        (
            "has read none of the 3 files that were restored, so it has started over; let it ...",
            False,
            "not shown: it has read none of the 3 files that were restored, so it has started over",
        ),
        (
            "ended",
            False,
            "not shown: no file that was restored has a content, or this machine's kernel",
        ),
    ],
)
def test_a_program_has_to_use_what_it_got_back(line: str, ok: bool, detail: str) -> None:
    check = program._used(f"node 0, attempt 2 | launch: program: {line}\n", "")

    assert check.ok is ok
    assert check.detail.startswith(detail)


@pytest.mark.parametrize(
    ("second", "ok", "detail"),
    [
        ("epoch 3 of 9", True, "it began at step 3, and the first attempt at step 1"),
        ("epoch 1 of 9", False, "not shown: it has started over, at step 1, and the first attempt"),
        ("launch: epoch 3", False, "not shown: no line of the second attempt has a step for --pro"),
    ],
)
def test_a_program_whose_steps_can_be_told_is_judged_by_them_whatever_it_reads(
    second: str, ok: bool, detail: str
) -> None:
    said = [
        "node 0 | epoch 1 of 9",
        "node 0 | epoch 4 of 9",
        "node 0, attempt 2 | launch: program: reads what was restored: config.json",
        f"node 0, attempt 2 | {second}",
        "node 0, attempt 2 | epoch 5" if ok else "node 0, attempt 2 | bye",
    ]

    check = program._used("\n".join(said), r"epoch (?P<step>\d+)")

    assert check.ok is ok
    assert check.detail.startswith(detail)
