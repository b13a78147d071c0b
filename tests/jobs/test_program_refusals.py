"""Refusals of a program before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.conftest import Cli
from tests.jobs.programs import dry_run, git
from tests.jobs.test_refusals import assert_refused
from trainium_catalogue import contract


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (("./trian.py",), ["there is no file ./trian.py", "did you mean 'train.py'?"]),
        (("trian",), ["unknown workload 'trian'", "specify its path: ./train.py"]),
        (("pkg",), ["unknown workload 'pkg'", "for the folder of that name, write ./pkg"]),
        (("train",), ["unknown workload 'train'", "for the file of that name, write ./train.py"]),
        (("program",), ["program cannot be submitted by that name", "submit ./train.py"]),
        (("",), ["no workload or program specified"]),
        ((), ["no workload or program specified", "./train.py", "-m mypkg.train"]),
        (("./pkg",), ["./pkg is a folder without a workload.toml", "specify a file in it"]),
        (("-m", "pkg.modle"), ["neither pkg/modle.py nor", "did you mean 'model'?", "--workdir"]),
        (("-m", "trl.scripts.sft"), ["there is no trl in", "--workdir", "--requirements"]),
        (
            ("--lr", "1", "all-reduce"),
            ["--lr comes before the workload", "submit llama2-7b --lr"],
        ),
        (("-m", "pkg"), ["-m pkg is a package without a __main__.py", "pkg.model"]),
        (("-m", "pkg/model.py"), ["written with dots and without .py", "instead: ./train.py"]),
        (("./train.py", "-m", "pkg.model"), ["./train.py and -m pkg.model are two programs"]),
        (("./train.py", "--compile"), ["the graphs of a program are not known before it runs"]),
        (
            ("all-reduce", "--", "--epochs", "3"),
            ["-- --epochs 3: all-reduce is not a program of your own", "without the --"],
        ),
        (
            ("all-reduce", "--workdir", "."),
            ["--workdir: all-reduce is not a program", "omit --wor"],
        ),
        (("all-reduce", "--env", "A=1"), ["--env: all-reduce is not a program of your own"]),
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_invalid_program_name_is_refused(
    cli: Cli, program: Path, words: tuple[str, ...], fragments: list[str]
) -> None:
    assert_refused(cli.run("submit", "--name", "x", "--yes", *words), *fragments)
    assert cli.keys() == []


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("A", "--env A: a variable is NAME=VALUE"),
        ("2A=1", "--env 2A=1: a variable is NAME=VALUE"),
        ("TRAINIUM_RUN=x", "--env TRAINIUM_RUN: this project sets it"),
        ("AWS_REGION=x", "--env AWS_REGION: it would redirect the launcher's AWS calls"),
        ("LOCAL_RANK=0", "--env LOCAL_RANK: torchrun sets it"),
        ("MASTER_PORT=1", "--env MASTER_PORT: torchrun sets it"),
        ("PYTHONPATH=src", "--env PYTHONPATH: it would change what torchrun itself imports"),
        ("WANDB_API_KEY=0123456789abcdef", "--env WANDB_API_KEY: it looks like a credential"),
        ("X=hf_" + 34 * "a", "--env X: it looks like a credential"),
    ],
)
def test_invalid_variable_is_refused(cli: Cli, program: Path, variable: str, says: str) -> None:
    result = cli.run("submit", "./train.py", "--name", "x", "--yes", "--env", variable)

    assert_refused(result, says)
    assert "0123456789abcdef" not in result.stderr


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (
            ("--checkpoint-dir", "/ckpt"),
            [
                "checkpoint-dir=/ckpt is not valid; it must be a folder below the program's "
                "folder, such as out, which the program receives as one of its arguments"
            ],
        ),
        (("--checkpoint-dir", "../x"), ["checkpoint-dir=../x is not valid"]),
        (("--checkpoint-dir", "~/x"), ["checkpoint-dir=~/x is not valid"]),
        (("--checkpoint-dir", ""), ["--checkpoint-dir '' is not a folder name", "such as out"]),
        (("--checkpoint-dir", "./"), ["is the program's own folder", "such as"]),
        (("--checkpoint-dir", "pkg/.."), ["checkpoint-dir=pkg/.. is not valid"]),
        (("--exclude", "*.py"), ["train.py is not packed", "--include"]),
        (("--workdir", "pkg"), ["./train.py is not below --workdir pkg"]),
        (("--workdir", "nowhere"), ["--workdir nowhere is not a folder"]),
        (
            ("--epochs", "3"),
            [
                "--epochs is not an option of submit",
                "as in: submit ./train.py -- --epochs; known:",
            ],
        ),
        (
            ("--snapshot-every", "3"),
            [
                "--snapshot-every is not an option of submit; did you mean 'snapshot-every-s'?; "
                "arguments of"
            ],
        ),
        (("3",), ["'3' is not a parameter; put arguments of the program after --: -- 3"]),
        (("--resume-arguments=--resume 'out",), ["--resume-arguments --resume 'out: no closing"]),
        (("--dataset", "wikki"), ["no dataset 'wikki'", "did you mean 'wiki'?"]),
        (("--dataset", "half"), ["dataset 'half' is incomplete", "--input s3://bucket/datasets"]),
        (("--dataset", "../x"), ["there is no dataset '../x'"]),
        (("--input", "s3://bucket/runs/y/"), ["may read only under datasets/, corpora/"]),
        (
            ("--input", "s3://bucket/corpora/none/"),
            ["there are no such objects; specify the prefix"],
        ),
        (("--input", "corpora"), ["input=corpora is not valid; it must be s3://BUCKET/PREFIX"]),
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_program_that_would_fail_on_nodes_is_refused(
    cli: Cli, program: Path, words: tuple[str, ...], fragments: list[str]
) -> None:
    cli.put("datasets/wiki/manifest.json", {})
    cli.put("datasets/half/part-0")
    before = cli.keys()

    assert_refused(cli.run("submit", "./train.py", *words, "--name", "x", "--yes"), *fragments)
    assert cli.keys() == before


@pytest.mark.parametrize(
    ("name", "data", "fragments"),
    [
        ("a.ipynb", b"{}", ["a.ipynb is a notebook", "jupyter nbconvert --to script", "a.py"]),
        ("a.sh", b"echo", ["a.sh is a shell script", "specify the .py file"]),
        ("run", b"#!/bin/bash\n", ["run is a shell script"]),
        ("a.bin", b"\x7fELF", ["a.bin is not a Python file"]),
        ("a.py", b" \n\n", ["a.py is empty; specify a Python program"]),
        ("a.py", b"# later\n", ["a.py has no statement"]),
        ("a.py", b"def f(:\n", ["a.py, line 1: invalid syntax"]),
    ],
)
def test_non_program_files_are_refused(
    cli: Cli, program: Path, name: str, data: bytes, fragments: list[str]
) -> None:
    (program / name).write_bytes(data)

    assert_refused(cli.run("submit", f"./{name}", "--name", "x", "--yes"), *fragments)
    assert cli.keys() == []


def test_input_outside_deployment_must_be_in_data_uris(cli: Cli, program: Path) -> None:
    cli.client("s3").create_bucket(
        Bucket="team-data", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    cli.parameter(contract.SSM_SETTINGS, json.dumps({"data_uris": "s3://team-data/wiki"}))
    words = ("submit", "./train.py", "--name", "x", "--yes", "--input")

    assert_refused(
        cli.run(*words, "s3://team-data/books/"),
        "has no access to it, only to s3://team-data/wiki",
        "data_uris=s3://team-data/wiki,s3://team-data/books/",
    )
    assert_refused(cli.run(*words, "s3://team-data/wiki/en/"), "there are no such objects")
    cli.client("s3").put_object(Bucket="team-data", Key="wiki/en/a", Body=b"x")
    assert cli.run(*words, "s3://team-data/wiki/en/").exit_code == 0


def test_stored_bundle_with_other_bytes_is_refused(cli: Cli, program: Path) -> None:
    code = dry_run(cli, "./train.py")["plan"]["program"]["code"]
    cli.put(f"runs/x/code/{code}.tar.gz", b"something else")

    assert_refused_last(
        cli.run("submit", "./train.py", "--name", "x", "--yes"),
        "does not match the hash in its name",
        f"aws s3 rm s3://bucket/runs/x/code/{code}.tar.gz",
    )
    assert cli.jobs("x") == []


def assert_refused_last(result: Any, *fragments: str) -> None:
    """Check a refusal that follows the plan."""
    assert result.exit_code == 2, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("refused: ")
    assert [part for part in fragments if part not in last] == [], last


def test_long_arguments_are_refused_with_alternative(cli: Cli, program: Path) -> None:
    assert_refused(
        cli.run("submit", "./train.py", "--name", "x", "--yes", "--", "x" * 9000),
        "at most 8,192", "put long ones into a file in the",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--key", "sk-" + "a1" * 20], "argument --key: it looks like a credential"),
        (["--key=hf_" + "a1" * 17], "argument --key: it looks like a credential"),
        (["ghp_" + "a1" * 18], "argument ghp_a1...: it looks like a credential"),
    ],
)
def test_argument_resembling_key_is_refused(
    cli: Cli, program: Path, words: list[str], shown: str
) -> None:
    result = cli.run("submit", "./train.py", "--name", "x", "--yes", "--", *words)

    assert_refused(result, shown, "make the program read it from elsewhere")
    assert "a1a1" not in result.stderr


def test_checkpoint_folder_with_code_is_refused(cli: Cli, program: Path) -> None:
    words = ("submit", "./train.py", "--name", "x", "--dry-run", "--checkpoint-dir")

    assert_refused(
        cli.run(*words, "pkg"),
        "--checkpoint-dir pkg contains pkg/__init__.py and 1 more", "specify another folder",
        "--exclude pkg",
    )  # fmt: skip
    assert cli.run(*words, "pkg", "--exclude", "pkg").exit_code == 0
    (program / "out").mkdir()
    (program / "out" / "base.json").write_text("{}")
    git(program, "init", "-q")
    assert cli.run(*words, "out").exit_code == 0
    git(program, "add", "out")
    assert_refused(cli.run(*words, "out"), "contains out/base.json (Python code, or")


def test_program_ignored_by_git_is_refused(cli: Cli, program: Path) -> None:
    (program / ".gitignore").write_text("train.py\n")
    git(program, "init", "-q")

    words = ("submit", "./train.py", "--name", "x", "--yes")
    assert_refused(cli.run(*words), "train.py is not packed", "git ignores it")
    assert cli.run(*words, "--include", "train.py").exit_code == 0


def test_progress_pattern_is_validated_before_submission(cli: Cli, program: Path) -> None:
    words = ("submit", "./train.py", "--name", "x", "--yes", "--progress-pattern")

    assert_refused(cli.run(*words, "(?P<step>"), "--progress-pattern (?P<step>: not a regular")
    assert_refused(cli.run(*words, "step \\d+"), "has no group for the step", "(?P<step>")
    assert cli.run(*words, "after (?P<step>\\d+)").exit_code == 0


@pytest.mark.parametrize("requirements", [(), ("--requirements", "requirements.txt")])
def test_module_in_src_layout_is_refused_with_workdir(
    cli: Cli, program: Path, requirements: tuple[str, ...]
) -> None:
    (program / "src" / "mypkg").mkdir(parents=True)
    (program / "src" / "mypkg" / "train.py").write_text("x = 1\n")
    (program / "requirements.txt").write_text("einops\n")

    words = ("submit", "-m", "mypkg.train", "--dry-run", *requirements)

    assert_refused(cli.run(*words), "mypkg is in src", "add --workdir src", "sys.path.insert(0, ")
    result = cli.run(*words, "--workdir", "src")
    assert result.exit_code == 0, result.stderr
