"""Submission of a user's program: bundle, record, job and plan."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from tests.jobs.conftest import Cli
from tests.jobs.programs import command_of, dry_run, ended, git, on_cluster, record, submitted
from training.core import arguments
from trainium_catalogue import contract


def test_dry_run_prints_job_and_sends_nothing(cli: Cli, program: Path) -> None:
    words = ("./train.py", "--nodes", "2", "--name", "x", "--", "--epochs", "3")
    document = dry_run(cli, *words)

    command = command_of(document)
    code = command[command.index("--code") + 1]
    assert command == [
        *contract.launch_command("program"), "--code", code, "--script", "train.py",
        "--", "--epochs", "3",
    ]  # fmt: skip
    assert document["workload"] == "program"
    assert document["plan"]["program"]["code"] == code
    assert cli.keys() == []


def test_resume_arguments_reach_launcher_as_one_value(cli: Cli, program: Path) -> None:
    given = "--resume-arguments=--resume out/epoch_*"
    document = dry_run(cli, "./train.py", "--checkpoint-dir", "out", given)

    command = command_of(document)
    assert given in command
    read = arguments.parse(command[len(contract.launch_command("program")) - 1 :])
    assert read.values["resume-arguments"] == "--resume out/epoch_*"
    assert read.values["checkpoint-dir"] == "out"


def test_bundle_and_record_are_uploaded_before_job(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--nodes", "2", "--name", "x", "--", "--epochs", "3")

    (entry,) = record(cli)
    code = entry["code"]
    (job,) = cli.jobs("x")
    assert cli.keys("runs/x/") == [
        f"runs/x/code/{code}.json", f"runs/x/code/{code}.tar.gz", "runs/x/program.json",
        f"runs/x/results/attempts/{job['jobId']}/submission.json", "runs/x/submission.json",
    ]  # fmt: skip
    assert entry["script"] == "train.py"
    assert entry["argv"] == ["--epochs", "3"]
    assert entry["num_nodes"] == 2


def test_archive_matches_its_hash_and_file_list(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x")
    code = record(cli)[0]["code"]

    data = cli.read(f"runs/x/code/{code}.tar.gz")
    listing = json.loads(cli.read(f"runs/x/code/{code}.json"))

    assert hashlib.sha256(data).hexdigest() == code == listing["sha256"]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == [file["path"] for file in listing["files"]]
    assert [file["path"] for file in listing["files"]] == [
        "pkg/__init__.py", "pkg/model.py", "train.py",
    ]  # fmt: skip


def test_arguments_reach_program_verbatim(cli: Cli, program: Path) -> None:
    words = ("--name", "a b", "$HOME", "--json", "", "--", "x")

    document = dry_run(cli, "./train.py", "--", *words)

    assert command_of(document)[-len(words) - 1 :] == ["--", *words]


def test_module_runs_in_current_folder(cli: Cli, program: Path) -> None:
    document = dry_run(cli, "-m", "pkg.model", "--keep-snapshots", "5", "--", "--lr", "0.1")

    command = command_of(document)
    assert command[-7:] == ["--module", "pkg.model", "--keep-snapshots", "5", "--", "--lr", "0.1"]


def test_command_is_same_on_cluster(cli: Cli, program: Path) -> None:
    on_cluster(cli)

    found = dry_run(cli, "./train.py", "--on", "eks", "--name", "x", "--", "--epochs", "3")

    (task,) = [task for task in found["payload"]["spec"]["tasks"] if task["replicas"] == 1]
    (container,) = task["template"]["spec"]["containers"]
    assert [*container["command"]][-3:] == ["--", "--epochs", "3"]


def test_variables_reach_nodes_and_are_kept_with_run(cli: Cli, program: Path) -> None:
    (program / "workload.toml").write_text(
        'script = "train.py"\n[env]\nXLA_IR_DEBUG = "1"\nNCCL_DEBUG = "WARN"\n'
    )
    flags = ("--env", "NEURON_CC_FLAGS=--optlevel 1", "--env", "NCCL_DEBUG=INFO")

    submitted(cli, ".", "--name", "x", *flags)
    ended(cli)

    assert record(cli)[-1]["parameters"] == {
        "env": "NCCL_DEBUG=INFO 'NEURON_CC_FLAGS=--optlevel 1'"
    }
    command = command_of(dry_run(cli, ".", "--name", "x"))
    whole = "NCCL_DEBUG=INFO 'NEURON_CC_FLAGS=--optlevel 1' XLA_IR_DEBUG=1"
    assert command[command.index("--env") + 1] == whole


def test_program_without_suffix_needs_python_shebang(cli: Cli, program: Path) -> None:
    (program / "train").write_text("#!/usr/bin/env python3\nprint(1)\n")

    assert "train" in command_of(dry_run(cli, "./train"))


def test_submit_options_among_arguments_are_noted(cli: Cli, program: Path) -> None:
    words = ("submit", "--dry-run", "./train.py", "--")

    said = cli.run(*words, "--nodes", "2", "--name=x", "--lr", "1").stderr

    assert "--nodes, --name after -- will be passed to the program" in said
    assert "after --" not in cli.run(*words, "--lr", "1").stderr


def test_argument_resembling_credential_is_noted_once(cli: Cli, program: Path) -> None:
    said = submitted(cli, "./train.py", "--name", "x", "--", "--api-key", "a1" * 20)

    assert said.count("--api-key looks like a credential") == 1
    assert "a1a1" not in said.split("looks like a credential")[1].splitlines()[0]


def test_checkpoint_folder_is_excluded(cli: Cli, program: Path) -> None:
    (program / "out").mkdir()
    (program / "out" / "a.pt").write_text("x")
    words = ("./train.py", "--name", "x", "--checkpoint-dir", "out/")

    assert dry_run(cli, *words)["plan"]["program"]["files"] == 3
    assert dry_run(cli, *words)["plan"]["program"]["left_out"] == ["out/"]


def test_plan_lists_files_ignored_by_git(cli: Cli, program: Path) -> None:
    git(program, "init", "-q")
    (program / ".gitignore").write_text("*.bin\ndata/\n__pycache__/\n")
    (program / "data").mkdir()
    (program / "__pycache__").mkdir()
    names = ("data/a", "data/b", "w1.bin", "w2.bin", "w3.bin", "__pycache__/x")
    for name in names:
        (program / name).write_text("x")
    words = ("submit", "--dry-run", "./train.py")

    assert "git ignores data/, w1.bin, w2.bin and 1 more, so" in cli.run(*words).stderr
    assert "git ignores data/, so" in cli.run(*words, "--include", "*.bin").stderr


def test_plan_shows_saved_folder(cli: Cli, program: Path) -> None:
    words = ("submit", "--dry-run", "./train.py", "--name", "x")
    only = "saved: only files in TRAINIUM_CHECKPOINT_DIR; a program that writes to another folder"

    assert only in cli.run(*words).stderr
    assert "saved: ckpts/\n" in cli.run(*words, "--checkpoint-dir", "ckpts").stderr
    (program / "pkg" / "model.py").write_text("import os\nos.environ['TRAINIUM_CHECKPOINT_DIR']\n")
    assert "saved:" not in cli.run(*words).stderr
