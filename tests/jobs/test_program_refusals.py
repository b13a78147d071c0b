"""What is refused of a program before anything is sent."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.conftest import Desk
from tests.jobs.programs import (
    dry_run,
    git,
)
from tests.jobs.test_refusals import assert_refused
from trainium_catalogue import contract


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (("./trian.py",), ["there is no file ./trian.py", "did you mean 'train.py'?"]),
        (("trian",), ["unknown workload 'trian'", "give its path: ./train.py"]),
        (("pkg",), ["unknown workload 'pkg'", "for the folder of that name write ./pkg"]),
        (("train",), ["unknown workload 'train'", "for the file of that name write ./train.py"]),
        (("program",), ["program is not submitted by its name", "submit ./train.py"]),
        (("",), ["nothing to submit is named"]),
        ((), ["nothing to submit is named", "./train.py", "-m mypkg.train"]),
        (("./pkg",), ["./pkg is a folder without a workload.toml", "name a file of it"]),
        (("-m", "pkg.modle"), ["neither pkg/modle.py nor", "did you mean 'model'?", "--workdir"]),
        (("-m", "trl.scripts.sft"), ["there is no trl in", "--workdir", "--requirements"]),
        (
            ("--lr", "1", "all-reduce"),
            ["--lr stands before what it belongs to", "submit llama2-7b --lr"],
        ),
        (("-m", "pkg"), ["-m pkg is a package without a __main__.py", "pkg.model"]),
        (("-m", "pkg/model.py"), ["written with dots and without .py", "instead: ./train.py"]),
        (("./train.py", "-m", "pkg.model"), ["./train.py and -m pkg.model name two programs"]),
        (("./train.py", "--compile"), ["only the program itself knows its graphs"]),
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
        (("--checkpoint-dir", "~/x"), ["checkpoint-dir=~/x cannot be"]),
        (("--checkpoint-dir", ""), ["--checkpoint-dir '' names no folder", "such as out"]),
        (("--checkpoint-dir", "./"), ["is the folder of the program itself", "such as"]),
        (("--checkpoint-dir", "pkg/.."), ["checkpoint-dir=pkg/.. cannot be"]),
        (("--exclude", "*.py"), ["train.py is not among the files that go along", "--include"]),
        (("--workdir", "pkg"), ["./train.py is not below --workdir pkg"]),
        (("--workdir", "nowhere"), ["--workdir nowhere is not a folder"]),
        (
            ("--epochs", "3"),
            ["--epochs is no option of submit", "as in: submit ./train.py -- --epochs; known are"],
        ),
        (
            ("--snapshot-every", "3"),
            ["--snapshot-every is no option of submit; did you mean 'snapshot-every-s'?; what is"],
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


@pytest.mark.parametrize("requirements", [(), ("--requirements", "requirements.txt")])
def test_a_module_in_the_src_layout_is_refused_with_the_workdir_that_has_it(
    desk: Desk, program: Path, requirements: tuple[str, ...]
) -> None:
    (program / "src" / "mypkg").mkdir(parents=True)
    (program / "src" / "mypkg" / "train.py").write_text("x = 1\n")
    (program / "requirements.txt").write_text("einops\n")

    words = ("submit", "-m", "mypkg.train", "--dry-run", *requirements)

    assert_refused(desk.run(*words), "mypkg is in src", "add --workdir src", "sys.path.insert(0, ")
    result = desk.run(*words, "--workdir", "src")
    assert result.exit_code == 0, result.stderr
