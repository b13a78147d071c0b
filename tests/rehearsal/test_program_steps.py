"""The steps of a program: the submitted command, and the checks of a job's results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rehearsal.deployment.state import EXAMPLE, RehearsedProgram, Settings
from rehearsal.receipt import NodeAttempt, RunRecord
from rehearsal.steps import program

OWN = RehearsedProgram(
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


def test_program_is_submitted_with_user_command() -> None:
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
def test_submit_names_plane_if_there_is_a_choice(
    orchestrators: tuple[str, ...], on: str, words: tuple[str, ...]
) -> None:
    argv = program.submission(settings(orchestrators=orchestrators), on, "kill-child").argv

    assert argv[4 : argv.index("--name")] == words


def test_user_parameters_override_rehearsal_parameters() -> None:
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
def test_node_kill_is_default_fault(changes: dict[str, Any], faults: tuple[str, ...]) -> None:
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


def test_program_ending_too_soon_fails_with_remedy() -> None:
    check = program._not_hit(settings(), ended(3.0), kept=["step-1.pt"])

    assert not check.ok
    assert (
        "finished before the fault was injected: it took 3 s, with a snapshot every 2 s"
        in check.detail
    )
    assert "--set snapshot-every-s" in check.detail


@pytest.mark.parametrize(
    ("folder", "words"),
    [(None, "nothing to its checkpoint folder:"), ("out", "nothing to its checkpoint folder out:")],
)
def test_program_without_checkpoints_fails_with_remedy(folder: str | None, words: str) -> None:
    check = program._not_hit(settings(program=replace(OWN, checkpoint_dir=folder)), ended(42.0),
                             kept=[])  # fmt: skip

    assert not check.ok
    assert "it ran for 42 s" in check.detail
    assert words in check.detail
    assert "--checkpoint-dir" in check.detail


def test_program_without_awaited_file_fails_with_file_list() -> None:
    given = settings(program=replace(OWN, fault_after="*.ckpt"))

    check = program._not_hit(given, ended(42.0), kept=["config.yaml", "metrics.csv"])

    assert not check.ok
    assert "no snapshot had a file that matches --fault-after *.ckpt" in check.detail
    assert "the last one contains config.yaml, metrics.csv" in check.detail


def test_bundle_options_are_passed_to_submit() -> None:
    given = replace(OWN, workdir="/my work", include=("a.pt", "b c"), exclude=("data",))

    argv = program.submission(settings(program=given), "batch", "kill-child").argv

    start = argv.index("--workdir")
    assert argv[start : argv.index("--yes")] == (
        *("--workdir", "/my work", "--include", "a.pt", "--include", "b c"),
        *("--exclude", "data"),
    )


def test_module_is_submitted_with_environment_and_resume_option() -> None:
    mine = RehearsedProgram(module="trl.scripts.sft", workdir="/my work", env=("HF_HUB_OFFLINE=1",))
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
    mine = RehearsedProgram(module="mypkg.train", workdir=str(tmp_path))

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
    mine = RehearsedProgram(file=str(tmp_path / "train.py"))

    why = program.refused(settings(program=mine))

    assert why is None if words is None else words in str(why)


def test_key_is_refused_before_anything_is_deployed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / ".env").write_text("KEY=1\n")
    mine = RehearsedProgram(file=str(tmp_path / "train.py"))

    assert ".env" in str(program.refused(settings(program=mine)))
    assert program.refused(settings(program=replace(mine, exclude=(".env",)))) is None


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
        (
            "ended",
            False,
            "not shown: every restored file is empty, or this machine's kernel",
        ),
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
