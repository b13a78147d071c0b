"""The steps of a program: the submitted command, and the checks of a job's results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rehearsal.deployment.state import EXAMPLE, RehearsedProgram
from rehearsal.receipt import NodeAttempt, RunRecord
from rehearsal.steps import program
from tests.rehearsal.rehearsals import settings

OWN = RehearsedProgram(
    file="/my work/train.py",
    argv=("--epochs", "3", "--note", "two words"),
    checkpoint_dir="out",
    requirements="/my work/requirements.txt",
)


def test_program_is_submitted_with_user_command() -> None:
    shown = program.submission(settings(nodes=3, program=OWN), "batch", "kill-child")

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
def test_submit_names_plane_if_there_is_a_choice(
    orchestrators: tuple[str, ...], on: str, words: tuple[str, ...]
) -> None:
    argv = program.submission(
        settings(orchestrators=orchestrators, program=OWN), on, "kill-child"
    ).argv

    assert argv[4 : argv.index("--name")] == words


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({}, ("kill-child",)),
        ({"nodes": 1}, ("kill-main",)),
        ({"faults": ("hang-child", "reclaim-main")}, ("hang-child", "reclaim-main")),
        ({"faults": ("no-capacity",), "program": EXAMPLE}, ("kill-child",)),
    ],
)
def test_node_kill_is_default_fault(changes: dict[str, Any], faults: tuple[str, ...]) -> None:
    assert program.fault_kinds(settings(**{"program": OWN, **changes})) == faults


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


def test_program_ending_too_soon_fails_with_remedy() -> None:
    check = program._not_hit(settings(program=OWN), ended(3.0), kept=["step-1.pt"])

    assert not check.ok
    assert (
        "finished before the fault was injected: it took 3 s, with a snapshot every 2 s"
        in check.detail
    )
    assert "--set snapshot-every-s" in check.detail


def test_program_without_checkpoints_fails_with_remedy() -> None:
    check = program._not_hit(settings(program=OWN), ended(42.0), kept=[])

    assert not check.ok
    assert "it ran for 42 s and wrote nothing to its checkpoint folder out: set" in check.detail
    assert "--checkpoint-dir" in check.detail


def test_program_without_awaited_file_fails_with_file_list() -> None:
    given = settings(program=replace(OWN, fault_after="*.ckpt"))

    check = program._not_hit(given, ended(42.0), kept=["config.yaml", "metrics.csv"])

    assert not check.ok
    assert "no snapshot had a file that matches --fault-after *.ckpt" in check.detail
    assert "the last one contains config.yaml, metrics.csv" in check.detail


def test_module_is_submitted_with_environment_files_and_resume_option() -> None:
    mine = RehearsedProgram(
        module="trl.scripts.sft", workdir="/my work", env=("HF_HUB_OFFLINE=1",),
        include=("a.pt", "b c"), exclude=("data",),
    )  # fmt: skip
    resume = "--resume_from_checkpoint out/checkpoint-*"
    given = settings(nodes=2, program=mine, parameters=(f"resume-arguments={resume}",))

    argv = program.submission(given, "batch", "kill-child").argv

    assert argv[:5] == ("submit", "-m", "trl.scripts.sft", "--nodes", "2")
    assert f"--resume-arguments={resume}" in argv
    start = argv.index("--workdir")
    assert argv[start : argv.index("--yes")] == (
        *("--workdir", "/my work", "--include", "a.pt", "--include", "b c"),
        *("--exclude", "data", "--env", "HF_HUB_OFFLINE=1"),
    )


def test_submit_checks_the_file_without_a_deployment(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def f(:\n")
    mine = RehearsedProgram(file=str(tmp_path / "train.py"))

    assert "train.py, line 1" in str(program.refused(settings(program=mine)))


def test_local_paths_and_modules_are_reported_before_deployment(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text("import helpers\n")
    (tmp_path / "helpers.py").write_text("x = 1\n")
    argv = ("--data", str(tmp_path))
    mine = RehearsedProgram(file=str(tmp_path / "mine" / "train.py"), argv=argv)
    said: list[str] = []

    assert program.refused(settings(program=mine), said.append) is None
    assert f"argument {tmp_path}: a local path" in said[0]
    assert f"helpers is in {tmp_path}, which is not packed" in said[0]


def test_refusal_is_found_at_end_of_submit_output() -> None:
    assert program._refusal("left out: x\nrefused: too large; leave\ndata out\n") == (
        "too large; leave\ndata out"
    )
    assert program._refusal("it is not refused: no\n") is None


@pytest.mark.parametrize(
    ("given", "files", "ok"),
    [
        (RehearsedProgram(module="pkg.train"), [], True),  # of the image
        (RehearsedProgram(module="pkg.train"), None, False),
        (replace(OWN, file=__file__), [{"sha256": "0" * 64}], False),
    ],
)
def test_files_run_by_nodes_are_compared(
    given: RehearsedProgram, files: list[dict[str, str]] | None, ok: bool
) -> None:
    class Bucket:
        def document(self, key: str) -> dict[str, Any]:
            if key.endswith("program.json"):
                return {"submissions": [{"code": "c" * 64}]}
            assert key == f"runs/mine/code/{'c' * 64}.json"
            return {} if files is None else {"files": files}

    bucket: Any = Bucket()
    assert program._check_code(settings(program=given), "mine", bucket).ok is ok


@pytest.mark.parametrize(
    ("line", "ok", "detail"),
    [
        ("reads a restored file: epoch-2.pt", True, "it read epoch-2.pt"),
        (
            "read none of the restored files (3 files), so it has started over; let it ...",
            False,
            "not shown: it read none of the restored files (3 files), so it has started over",
        ),
        ("ended", False, "not shown: every restored file is empty, or this machine's kernel"),
    ],
)
def test_program_must_use_restored_files(line: str, ok: bool, detail: str) -> None:
    check = program._check_use(f"node 0, attempt 2 | launch: program: {line}\n", "")

    assert check.ok is ok
    assert check.detail.startswith(detail)


@pytest.mark.parametrize(
    ("second", "ok", "detail"),
    [
        ("epoch 3 of 9", True, "it started at step 3, and the first attempt at step 1"),
        ("epoch 1 of 9", False, "not shown: it started over, at step 1, and the first attempt"),
        ("launch: epoch 3", False, "not shown: no line of the second attempt matches --progress-p"),
    ],
)
def test_program_with_known_steps_is_judged_by_steps(second: str, ok: bool, detail: str) -> None:
    said = [
        "node 0 | epoch 1 of 9",
        "node 0 | epoch 4 of 9",
        "node 0, attempt 2 | launch: program: reads a restored file: config.json",
        f"node 0, attempt 2 | {second}",
        "node 0, attempt 2 | epoch 5" if ok else "node 0, attempt 2 | bye",
    ]

    check = program._check_use("\n".join(said), r"epoch (?P<step>\d+)")

    assert check.ok is ok
    assert check.detail.startswith(detail)
