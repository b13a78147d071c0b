"""A user's own program, submitted: the bundle in the bucket, the record, the job."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jobs.submit import plan
from tests.jobs.conftest import Desk
from tests.jobs.programs import (
    SCRIPT,
    command_of,
    dry_run,
    ended,
    record,
    running,
    snapshot,
    submitted,
)
from tests.jobs.test_refusals import assert_refused
from trainium_catalogue import contract

ROOT = Path(__file__).resolve().parents[2]


def test_a_dry_run_prints_the_job_and_sends_nothing(desk: Desk, program: Path) -> None:
    words = ("./train.py", "--nodes", "2", "--name", "x", "--", "--epochs", "3")
    document = dry_run(desk, *words)

    schema = json.loads((ROOT / "docs" / "schemas" / "jobs-submit.schema.json").read_text())
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    command = command_of(document)
    code = command[command.index("--code") + 1]
    assert command == [
        *contract.launch_command("program"), "--code", code, "--script", "train.py",
        "--", "--epochs", "3",
    ]  # fmt: skip
    assert document["workload"] == "program"
    assert document["plan"]["program"]["code"] == code
    assert desk.keys() == []


def test_the_bundle_and_the_record_are_in_the_bucket_before_the_job(
    desk: Desk, program: Path
) -> None:
    submitted(desk, "./train.py", "--nodes", "2", "--name", "x", "--", "--epochs", "3")

    (entry,) = record(desk)
    code = entry["code"]
    assert desk.keys("runs/x/") == [
        f"runs/x/code/{code}.json", f"runs/x/code/{code}.tar.gz", "runs/x/program.json",
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


def test_a_run_without_a_name_is_named_after_the_file(desk: Desk, program: Path) -> None:
    assert dry_run(desk, "./train.py")["run"].startswith("train-")


def test_on_a_cluster_the_command_is_the_same(
    desk: Desk, program: Path, document: Callable[..., Any]
) -> None:
    for name, value in {
        contract.SSM_ORCHESTRATORS: "eks",
        contract.SSM_EKS_CLUSTER: "cluster",
        contract.SSM_EKS_NAMESPACE: "jobs",
        contract.SSM_EKS_QUEUE: "trainium",
        contract.SSM_EKS_NODE_GROUP: "nodes",
        contract.SSM_EKS_IMAGE: "image",
        contract.SSM_EKS_JOB_TIME_LIMIT_HOURS: "24",
    }.items():
        desk.parameter(name, value)

    found = dry_run(desk, "./train.py", "--name", "x", "--", "--epochs", "3")

    (task,) = [task for task in found["payload"]["spec"]["tasks"] if task["replicas"] == 1]
    (container,) = task["template"]["spec"]["containers"]
    assert [*container["command"]][-3:] == ["--", "--epochs", "3"]


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (("./trian.py",), ["there is no file ./trian.py", "did you mean 'train.py'?"]),
        (("trian",), ["unknown workload 'trian'", "give its path: ./train.py"]),
        (("pkg",), ["unknown workload 'pkg'", "for the folder of that name write ./pkg"]),
        (("train",), ["unknown workload 'train'", "for the file of that name write ./train.py"]),
        (("program",), ["program is not submitted by its name", "submit ./train.py"]),
        ((), ["nothing to submit is named", "./train.py", "-m mypkg.train"]),
        (("./pkg",), ["./pkg is a folder without a workload.toml", "name a file of it"]),
        (("-m", "pkg.modle"), ["neither pkg/modle.py nor", "did you mean 'model'?", "--workdir"]),
        (("-m", "trl.scripts.sft"), ["there is no trl in", "--workdir", "--requirements"]),
        (
            ("--lr", "1", "all-reduce"),
            ["--lr stands before what it belongs to", "submit llama2-7b --lr"],
        ),
        (("-m", "pkg"), ["-m pkg is a package without a __main__.py", "pkg.model"]),
        (("-m", "pkg/model.py"), ["written with dots and without .py", "submit ./train.py"]),
        (("./train.py", "-m", "pkg.model"), ["./train.py and -m pkg.model name two programs"]),
        (("./train.py", "--compile"), ["nobody but the program itself knows its graphs"]),
        (
            ("all-reduce", "--", "--epochs", "3"),
            ["-- --epochs 3: all-reduce is no program of your own", "without the --"],
        ),
        (("all-reduce", "--workdir", "."), ["--workdir: all-reduce is no program", "leave --wor"]),
        (("all-reduce", "--include", "*"), ["--include: all-reduce is no program of your own"]),
        (("all-reduce", "--exclude", "*"), ["--exclude: all-reduce is no program of your own"]),
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_what_names_no_program_is_refused(
    desk: Desk, program: Path, words: tuple[str, ...], fragments: list[str]
) -> None:
    assert_refused(desk.run("submit", "--name", "x", "--yes", *words), *fragments)
    assert desk.keys() == []


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


def test_without_a_snapshot_it_begins_anew(desk: Desk, program: Path) -> None:
    submitted(desk, "./train.py", "--name", "x")
    ended(desk)

    assert "run x: no snapshot yet, begins anew" in submitted(desk, "./train.py", "--name", "x")


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


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("A", "--env A: a variable is NAME=VALUE"),
        ("2A=1", "--env 2A=1: a variable is NAME=VALUE"),
        ("TRAINIUM_RUN=x", "--env TRAINIUM_RUN: this project sets it itself"),
        ("AWS_REGION=x", "--env AWS_REGION: it would redirect what the launcher does in AWS"),
        ("LOCAL_RANK=0", "--env LOCAL_RANK: torchrun sets it"),
        ("MASTER_PORT=1", "--env MASTER_PORT: torchrun sets it"),
        ("PYTHONPATH=src", "--env PYTHONPATH: it would change what torchrun itself imports"),
        ("WANDB_API_KEY=0123456789abcdef", "--env WANDB_API_KEY: it looks like a key"),
        ("X=hf_" + 34 * "a", "--env X: it looks like a key"),
    ],
)
def test_a_variable_that_cannot_be_given_is_refused(
    desk: Desk, program: Path, variable: str, says: str
) -> None:
    result = desk.run("submit", "./train.py", "--name", "x", "--yes", "--env", variable)

    assert_refused(result, says)
    assert "0123456789abcdef" not in result.stderr


def test_a_built_in_workload_takes_no_variables(desk: Desk) -> None:
    words = ("submit", "all-reduce", "--yes", "--env", "A=1")

    assert_refused(desk.run(*words), "--env: all-reduce is no program of your own")


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


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (
            ("--checkpoint-dir", "/ckpt"),
            [
                "checkpoint-dir=/ckpt cannot be; it takes a folder below the program's own, such "
                "as out, which the program is told with an argument of its own"
            ],
        ),
        (("--checkpoint-dir", "../x"), ["checkpoint-dir=../x cannot be"]),
        (("--checkpoint-dir", "./"), ["is the folder of the program itself", "such as"]),
        (("--checkpoint-dir", "pkg/.."), ["checkpoint-dir=pkg/.. cannot be"]),
        (("--exclude", "*.py"), ["train.py is not among the files that go along", "--include"]),
        (("--workdir", "pkg"), ["./train.py is not below --workdir pkg"]),
        (("--workdir", "nowhere"), ["--workdir nowhere is not a folder"]),
        (
            ("--epochs", "3"),
            ["--epochs is no option of submit", "as in: submit ./train.py -- --epochs; known are"],
        ),
        (("3",), ["'3' is not a parameter; arguments of the program come after --: -- 3"]),
        (("--resume-arguments=--resume 'out",), ["--resume-arguments --resume 'out: no closing"]),
        (("--dataset", "wikki"), ["no dataset 'wikki'", "did you mean 'wiki'?"]),
        (("--dataset", "half"), ["dataset 'half' is not complete", "--input s3://bucket/datasets"]),
        (("--dataset", "../x"), ["there is no dataset '../x'"]),
        (("--input", "s3://bucket/runs/y/"), ["may read below datasets/, corpora/"]),
        (("--input", "s3://bucket/corpora/none/"), ["nothing is there; name the prefix"]),
        (("--input", "corpora"), ["input=corpora cannot be; it takes s3://BUCKET/PREFIX"]),
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_what_would_fail_on_the_nodes_is_refused(
    desk: Desk, program: Path, words: tuple[str, ...], fragments: list[str]
) -> None:
    desk.put("datasets/wiki/manifest.json", {})
    desk.put("datasets/half/part-0")
    before = desk.keys()

    assert_refused(desk.run("submit", "./train.py", *words, "--name", "x", "--yes"), *fragments)
    assert desk.keys() == before


@pytest.mark.parametrize(
    ("name", "data", "fragments"),
    [
        ("a.ipynb", b"{}", ["a.ipynb is a notebook", "jupyter nbconvert --to script", "a.py"]),
        ("a.sh", b"echo", ["a.sh is a shell script", "name the .py file"]),
        ("run", b"#!/bin/bash\n", ["run is a shell script"]),
        ("a.bin", b"\x7fELF", ["a.bin is no Python file"]),
        ("a.py", b" \n\n", ["a.py is empty; name a file that holds a program"]),
        ("a.py", b"# later\n", ["a.py has no statement"]),
        ("a.py", b"def f(:\n", ["a.py, line 1: invalid syntax"]),
    ],
)
def test_files_that_are_no_programs_are_refused(
    desk: Desk, program: Path, name: str, data: bytes, fragments: list[str]
) -> None:
    (program / name).write_bytes(data)

    assert_refused(desk.run("submit", f"./{name}", "--name", "x", "--yes"), *fragments)
    assert desk.keys() == []


def test_a_program_without_a_suffix_may_say_that_it_is_python(desk: Desk, program: Path) -> None:
    (program / "train").write_text("#!/usr/bin/env python3\nprint(1)\n")

    assert "train" in command_of(dry_run(desk, "./train"))


def test_data_outside_the_deployment_has_to_be_among_its_uris(desk: Desk, program: Path) -> None:
    desk.client("s3").create_bucket(
        Bucket="team-data", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    desk.parameter(contract.SSM_SETTINGS, json.dumps({"data_uris": "s3://team-data/wiki"}))
    words = ("submit", "./train.py", "--name", "x", "--yes", "--input")

    assert_refused(
        desk.run(*words, "s3://team-data/books/"),
        "may not read there, it may read s3://team-data/wiki",
        "data_uris=s3://team-data/wiki,s3://team-data/books/",
    )
    assert_refused(desk.run(*words, "s3://team-data/wiki/en/"), "nothing is there")
    desk.client("s3").put_object(Bucket="team-data", Key="wiki/en/a", Body=b"x")
    assert desk.run(*words, "s3://team-data/wiki/en/").exit_code == 0


def test_a_bundle_in_the_bucket_with_other_bytes_is_refused(desk: Desk, program: Path) -> None:
    code = dry_run(desk, "./train.py")["plan"]["program"]["code"]
    desk.put(f"runs/x/code/{code}.tar.gz", b"something else")

    assert_refused_last(
        desk.run("submit", "./train.py", "--name", "x", "--yes"),
        "does not hold the bytes that its name says",
        f"aws s3 rm s3://bucket/runs/x/code/{code}.tar.gz",
    )
    assert desk.jobs("x") == []


def assert_refused_last(result: Any, *fragments: str) -> None:
    """Check a refusal after the plan was shown."""
    assert result.exit_code == 2, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("refused: ")
    assert [part for part in fragments if part not in last] == [], last


def test_long_arguments_are_refused_with_the_way_around(desk: Desk, program: Path) -> None:
    assert_refused(
        desk.run("submit", "./train.py", "--name", "x", "--yes", "--", "x" * 9000),
        "at most 8192", "put long ones into a file of the",
    )  # fmt: skip


def test_options_of_submit_among_the_arguments_are_remarked(desk: Desk, program: Path) -> None:
    words = ("submit", "--dry-run", "./train.py", "--")

    said = desk.run(*words, "--nodes", "2", "--name=x", "--lr", "1").stderr

    assert "--nodes, --name after -- goes to the program" in said
    assert "after --" not in desk.run(*words, "--lr", "1").stderr


def test_an_argument_that_looks_like_a_key_is_remarked_once(desk: Desk, program: Path) -> None:
    said = submitted(desk, "./train.py", "--name", "x", "--", "--api-key", "a1" * 20)

    assert said.count("--api-key looks like a key") == 1
    assert "a1a1" not in said.split("looks like a key")[1].splitlines()[0]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--key", "sk-" + "a1" * 20], "argument --key: it has the form of a key"),
        (["--key=hf_" + "a1" * 17], "argument --key: it has the form"),
        (["ghp_" + "a1" * 18], "argument ghp_a1...: it has the form"),
    ],
)
def test_an_argument_in_the_form_of_a_key_is_refused(
    desk: Desk, program: Path, words: list[str], shown: str
) -> None:
    result = desk.run("submit", "./train.py", "--name", "x", "--yes", "--", *words)

    assert_refused(result, shown, "let the program read it from elsewhere")
    assert "a1a1" not in result.stderr


def test_a_run_of_a_built_in_workload_is_not_continued_by_a_program(
    desk: Desk, program: Path
) -> None:
    desk.put("runs/x/run.json", {"workload": "llama-tiny", "values": {}})

    assert_refused(
        desk.run("submit", "./train.py", "--name", "x", "--yes"),
        "run x is one of llama-tiny", "give another --name",
    )  # fmt: skip


def test_the_folder_for_checkpoints_does_not_go_along(desk: Desk, program: Path) -> None:
    (program / "out").mkdir()
    (program / "out" / "a.pt").write_text("x")
    words = ("./train.py", "--name", "x", "--checkpoint-dir", "out/")

    assert dry_run(desk, *words)["plan"]["program"]["files"] == 3
    assert dry_run(desk, *words)["plan"]["program"]["left_out"] == ["out/"]


def test_a_folder_for_checkpoints_that_holds_code_is_refused(desk: Desk, program: Path) -> None:
    words = ("submit", "./train.py", "--name", "x", "--dry-run", "--checkpoint-dir")

    assert_refused(
        desk.run(*words, "pkg"),
        "--checkpoint-dir pkg holds pkg/__init__.py and 1 more", "name another folder",
        "--exclude pkg",
    )  # fmt: skip
    assert desk.run(*words, "pkg", "--exclude", "pkg").exit_code == 0
    (program / "out").mkdir()
    (program / "out" / "base.json").write_text("{}")
    git(program, "init", "-q")
    assert desk.run(*words, "out").exit_code == 0
    git(program, "add", "out")
    assert_refused(desk.run(*words, "out"), "--checkpoint-dir out holds out/base.json, which git")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


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


def test_a_program_that_git_ignores_is_refused(desk: Desk, program: Path) -> None:
    (program / ".gitignore").write_text("train.py\n")
    subprocess.run(["git", "init", "-q"], cwd=program, check=True)

    words = ("submit", "./train.py", "--name", "x", "--yes")
    assert_refused(desk.run(*words), "train.py is not among the files", "git ignores it")
    assert desk.run(*words, "--include", "train.py").exit_code == 0


def test_a_progress_pattern_is_read_before_anything_is_spent(desk: Desk, program: Path) -> None:
    words = ("submit", "./train.py", "--name", "x", "--yes", "--progress-pattern")

    assert_refused(desk.run(*words, "(?P<step>"), "--progress-pattern (?P<step>: not a regular")
    assert_refused(desk.run(*words, "step \\d+"), "has no group for the step", "(?P<step>")
    assert desk.run(*words, "after (?P<step>\\d+)").exit_code == 0
