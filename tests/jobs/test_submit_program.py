"""A user's own program, submitted: the bundle in the bucket, the record, the job, the plan."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from tests.jobs.conftest import Desk
from tests.jobs.programs import (
    command_of,
    dry_run,
    ended,
    git,
    on_cluster,
    record,
    submitted,
)
from training.core import arguments
from trainium_catalogue import contract


def test_a_dry_run_prints_the_job_and_sends_nothing(desk: Desk, program: Path) -> None:
    words = ("./train.py", "--nodes", "2", "--name", "x", "--", "--epochs", "3")
    document = dry_run(desk, *words)

    command = command_of(document)
    code = command[command.index("--code") + 1]
    assert command == [
        *contract.launch_command("program"), "--code", code, "--script", "train.py",
        "--", "--epochs", "3",
    ]  # fmt: skip
    assert document["workload"] == "program"
    assert document["plan"]["program"]["code"] == code
    assert desk.keys() == []


def test_arguments_to_resume_with_reach_the_launcher_as_a_value(desk: Desk, program: Path) -> None:
    given = "--resume-arguments=--resume out/epoch_*"
    document = dry_run(desk, "./train.py", "--checkpoint-dir", "out", given)

    command = command_of(document)
    assert given in command
    read = arguments.parse(command[len(contract.launch_command("program")) - 1 :])
    assert read.values["resume-arguments"] == "--resume out/epoch_*"
    assert read.values["checkpoint-dir"] == "out"


def test_the_bundle_and_the_record_are_in_the_bucket_before_the_job(
    desk: Desk, program: Path
) -> None:
    submitted(desk, "./train.py", "--nodes", "2", "--name", "x", "--", "--epochs", "3")

    (entry,) = record(desk)
    code = entry["code"]
    assert desk.keys("runs/x/") == [
        f"runs/x/code/{code}.json", f"runs/x/code/{code}.tar.gz", "runs/x/program.json",
        "runs/x/submission.json",
    ]  # fmt: skip
    assert len(desk.jobs("x")) == 1
    assert entry["script"] == "train.py"
    assert entry["argv"] == ["--epochs", "3"]
    assert entry["num_nodes"] == 2


def test_the_archive_has_the_hash_of_its_name_and_the_files_of_its_list(
    desk: Desk, program: Path
) -> None:
    submitted(desk, "./train.py", "--name", "x")
    code = record(desk)[0]["code"]
    s3 = desk.client("s3")

    data = s3.get_object(Bucket="bucket", Key=f"runs/x/code/{code}.tar.gz")["Body"].read()
    listing = json.loads(
        s3.get_object(Bucket="bucket", Key=f"runs/x/code/{code}.json")["Body"].read()
    )

    assert hashlib.sha256(data).hexdigest() == code == listing["sha256"]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == [file["path"] for file in listing["files"]]
    assert [file["path"] for file in listing["files"]] == [
        "pkg/__init__.py", "pkg/model.py", "train.py",
    ]  # fmt: skip


def test_arguments_reach_the_program_word_by_word(desk: Desk, program: Path) -> None:
    words = ("--name", "a b", "$HOME", "--json", "", "--", "x")

    document = dry_run(desk, "./train.py", "--", *words)

    assert command_of(document)[-len(words) - 1 :] == ["--", *words]


def test_a_module_runs_in_the_current_folder(desk: Desk, program: Path) -> None:
    document = dry_run(desk, "-m", "pkg.model", "--keep-snapshots", "5", "--", "--lr", "0.1")

    command = command_of(document)
    assert command[-7:] == ["--module", "pkg.model", "--keep-snapshots", "5", "--", "--lr", "0.1"]


def test_on_a_cluster_the_command_is_the_same(desk: Desk, program: Path) -> None:
    on_cluster(desk)

    found = dry_run(desk, "./train.py", "--on", "eks", "--name", "x", "--", "--epochs", "3")

    (task,) = [task for task in found["payload"]["spec"]["tasks"] if task["replicas"] == 1]
    (container,) = task["template"]["spec"]["containers"]
    assert [*container["command"]][-3:] == ["--", "--epochs", "3"]


def test_variables_reach_the_nodes_and_stay_with_the_run(desk: Desk, program: Path) -> None:
    (program / "workload.toml").write_text(
        'script = "train.py"\n[env]\nXLA_IR_DEBUG = "1"\nNCCL_DEBUG = "WARN"\n'
    )
    flags = ("--env", "NEURON_CC_FLAGS=--optlevel 1", "--env", "NCCL_DEBUG=INFO")

    submitted(desk, ".", "--name", "x", *flags)
    ended(desk)

    assert record(desk)[-1]["parameters"] == {
        "env": "NCCL_DEBUG=INFO 'NEURON_CC_FLAGS=--optlevel 1'"
    }
    command = command_of(dry_run(desk, ".", "--name", "x"))
    whole = "NCCL_DEBUG=INFO 'NEURON_CC_FLAGS=--optlevel 1' XLA_IR_DEBUG=1"
    assert command[command.index("--env") + 1] == whole


def test_a_program_without_a_suffix_may_say_that_it_is_python(desk: Desk, program: Path) -> None:
    (program / "train").write_text("#!/usr/bin/env python3\nprint(1)\n")

    assert "train" in command_of(dry_run(desk, "./train"))


def test_options_of_submit_among_the_arguments_are_remarked(desk: Desk, program: Path) -> None:
    words = ("submit", "--dry-run", "./train.py", "--")

    said = desk.run(*words, "--nodes", "2", "--name=x", "--lr", "1").stderr

    assert "--nodes, --name after -- goes to the program" in said
    assert "after --" not in desk.run(*words, "--lr", "1").stderr


def test_an_argument_that_looks_like_a_key_is_remarked_once(desk: Desk, program: Path) -> None:
    said = submitted(desk, "./train.py", "--name", "x", "--", "--api-key", "a1" * 20)

    assert said.count("--api-key looks like a key") == 1
    assert "a1a1" not in said.split("looks like a key")[1].splitlines()[0]


def test_the_folder_for_checkpoints_does_not_go_along(desk: Desk, program: Path) -> None:
    (program / "out").mkdir()
    (program / "out" / "a.pt").write_text("x")
    words = ("./train.py", "--name", "x", "--checkpoint-dir", "out/")

    assert dry_run(desk, *words)["plan"]["program"]["files"] == 3
    assert dry_run(desk, *words)["plan"]["program"]["left_out"] == ["out/"]


def test_the_plan_says_what_git_ignores(desk: Desk, program: Path) -> None:
    git(program, "init", "-q")
    (program / ".gitignore").write_text("*.bin\ndata/\n__pycache__/\n")
    (program / "data").mkdir()
    (program / "__pycache__").mkdir()
    names = ("data/a", "data/b", "w1.bin", "w2.bin", "w3.bin", "__pycache__/x")
    for name in names:
        (program / name).write_text("x")
    words = ("submit", "--dry-run", "./train.py")

    assert "git ignores data/, w1.bin, w2.bin and 1 more, so" in desk.run(*words).stderr
    assert "git ignores data/, so" in desk.run(*words, "--include", "*.bin").stderr


def test_the_plan_says_what_is_kept(desk: Desk, program: Path) -> None:
    words = ("submit", "--dry-run", "./train.py", "--name", "x")
    only = "kept: only what it writes to TRAINIUM_CHECKPOINT_DIR; a program with a folder of its"

    assert only in desk.run(*words).stderr
    assert "kept: ckpts/\n" in desk.run(*words, "--checkpoint-dir", "ckpts").stderr
    (program / "pkg" / "model.py").write_text("import os\nos.environ['TRAINIUM_CHECKPOINT_DIR']\n")
    assert "kept:" not in desk.run(*words).stderr
