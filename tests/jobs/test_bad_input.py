"""Random command lines of every command: a refusal is one message and changes nothing."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import Result

from jobs.cli import app
from jobs.output.console import printable
from tests.jobs.conftest import Cli

COMMANDS: dict[str, Any] = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
CODES = (0, 1, 2)
"""Exit codes in docs/interfaces.md except for interrupts and unwritable output."""
ENDLESS = ("--follow", "-f", "--every", "--wait")
"""Options that wait for a job, which random words may have started."""
WORDS = (
    *("", " ", "x", "nightly", "gone", "default", "none", "all", "true", "null", "--", "-", "-x"),
    *("0", "-1", "1", "2", "1.5", "1e400", "nan", "-inf", "9" * 400, "0x10", "٣", "1,2"),
    *("a" * 5000, "a b", "a=b", "=", "KEY=", "é漢", "\udcff", "\x1b[2J\r\u202e", "a\nb", "%s{0}"),
    *("[/bold]", "'", '"', "$(x)", "~", "~nobody-at-all/x", ".", "..", "/", "../../x"),
    *("/dev/null", "/dev/zero", "/proc/self/mem", "./missing.py", "./" + "a" * 300, "./folder"),
    *("./train.py", "./broken.py", "./binary.py", "./notes.ipynb", "./run.sh", "./odd", "./me.py"),
    *("./data.bin", "./empty", "./tokenizer.json", "requirements.txt", "train.py", "pkg.train"),
    *("s3://", "s3:///x", "s3://bucket", "s3://bucket/corpora/mine/", "s3://nowhere/x"),
    *("all-reduce", "llama2-7b", "prepare", "tokenize", "export", "verify", "bert", "pretrain"),
    *("wikicorpus", "iterations=x", "max-bytes=-1", "batch", "eks", "us-west-2", "eu-nowhere-1"),
)
ENVIRONMENTS: tuple[dict[str, str | None], ...] = (
    *[{}] * 6,
    {"AWS_REGION": "the moon"},
    {"AWS_REGION": ""},
    {"AWS_REGION": None},
    {"AWS_PROFILE": "nobody"},
    {"AWS_ENDPOINT_URL": "foo"},
    {"AWS_ENDPOINT_URL": "http://127.0.0.1:99999"},
    {"AWS_CONFIG_FILE": "/dev/null/x"},
    {"AWS_CONFIG_FILE": "binary.py"},
    {"AWS_ACCESS_KEY_ID": None},
    {"AWS_ACCESS_KEY_ID": "\x1b[2J"},
    {"AWS_MAX_ATTEMPTS": "x"},
    {"AWS_CA_BUNDLE": "/nowhere", "AWS_ENDPOINT_URL": "https://127.0.0.1:1"},
    {"KUBECONFIG": ":::"},
    {"TRAINIUM_DEPLOYMENT": "\x1b[2J"},
    {"TRAINIUM_PROCESSES_PER_NODE": "many"},
)


@pytest.fixture
def place(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Change into a folder of odd files; the deployment has a run and data."""
    job = cli.submitted("nightly")
    cli.backend_job(job).status = "SUCCEEDED"
    cli.put("corpora/mine/a.txt")
    cli.put("datasets/half/shard-0")
    odd = tmp_path / "odd"
    for name in ("odd", "folder", "pkg"):
        (tmp_path / name).mkdir()
    files: dict[str, str | bytes] = {
        "train.py": "print(1)\n",
        "broken.py": "def f(:\n",
        "binary.py": bytes(range(256)),
        "notes.ipynb": "{}",
        "run.sh": "#!/bin/sh\n",
        "data.bin": b"\0" * 100,
        "empty": "",
        "tokenizer.json": "[]",
        "requirements.txt": "-e .\n${X}\n\xff = 3\n-r -r\n@ @\n",
        "odd/workload.toml": "script = 3\nnodes = 'x'\n[parameters]\nx = []\n",
        "pkg/train.py": "import pkg.gone\n",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("latin-1"))
    (tmp_path / "me.py").symlink_to("me.py")
    os.mkfifo(odd / "queue")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return cli


def command_line(name: str, chance: random.Random, words: tuple[str, ...]) -> list[str]:
    """Return a random command line of a command."""
    argv: list[str] = []
    for parameter in COMMANDS[name].params:
        is_argument = parameter.param_type_name == "argument"
        if not is_argument and (chance.random() > 0.35 or parameter.opts[-1] in ENDLESS):
            continue
        if is_argument and chance.random() > 0.9:
            continue
        if not is_argument:
            argv.append(chance.choice([*parameter.opts, *parameter.secondary_opts]))
        if is_argument or not parameter.is_flag or chance.random() > 0.95:
            argv.append(chance.choice(words))
    if chance.random() < 0.3:
        argv += chance.choices(words, k=chance.randint(1, 3))
    if chance.random() < 0.15:
        chance.shuffle(argv)
    argv = [word for word in argv if word not in ENDLESS]
    before = ["--region", chance.choice(words)] if chance.random() < 0.05 else []
    return [*before, name, *argv]


def state(cli: Cli) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the state that a refusal must not change: objects and jobs."""
    listed = cli.client("s3").list_objects_v2(Bucket="bucket").get("Contents", ())
    jobs = [
        job["jobId"]
        for queue in ("queue", "cpu-queue")
        for job in cli.client("batch").list_jobs(
            jobQueue=queue, filters=[{"name": "AFTER_CREATED_AT", "values": ["1"]}]
        )["jobSummaryList"]
    ]
    return [(item["Key"], item["ETag"]) for item in listed], sorted(jobs)


def complaint(result: Result) -> str:
    """Return what is wrong with the outcome of a command, or an empty text."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return "".join(traceback.format_exception(result.exception)[-4:])
    if result.exit_code not in CODES:
        return f"exit code {result.exit_code}"
    if printable(result.stderr, keep="\n\t") != result.stderr:
        return "control characters"
    return "no message" if result.exit_code == 2 and not result.stderr.strip() else ""


def check_command_lines(cli: Cli, name: str, seeds: Iterator[int] | range) -> None:
    before = state(cli)
    for seed in seeds:
        chance = random.Random(f"{name} {seed}")
        argv = command_line(name, chance, WORDS)
        variables = chance.choice(ENVIRONMENTS)
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in variables.items():
                if value is None:
                    patch.delenv(variable)
                else:
                    patch.setenv(variable, value)
            result = cli.run(*argv)
        if wrong := complaint(result):
            # In ASCII, because a report to another process cannot contain every text.
            pytest.fail(ascii((wrong, seed, argv, variables, result.stderr)), pytrace=False)
        if result.exit_code == 2:
            assert state(cli) == before, ascii((seed, argv))
        else:
            before = state(cli)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line_never_ends_in_traceback(place: Cli, name: str) -> None:
    check_command_lines(place, name, range(3))


# test_command_line_never_ends_in_traceback tries a few of each command.
@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_many_command_lines_never_end_in_traceback(place: Cli, name: str) -> None:
    check_command_lines(place, name, range(3, 50))
