"""A user's own program, submitted: the bundle in the bucket, the record, the job."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.jobs.conftest import Desk
from tests.jobs.test_refusals import assert_refused
from trainium_catalogue import contract

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "import sys\n\nprint(sys.argv)\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a program of two files, and go there."""
    folder = tmp_path / "mine"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "model.py").write_text("WIDTH = 8\n")
    monkeypatch.chdir(folder)
    return folder


def dry_run(desk: Desk, *words: str) -> dict[str, Any]:
    result = desk.run("submit", "--dry-run", "--json", *words)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def command_of(document: dict[str, Any]) -> list[str]:
    (node_range,) = document["payload"]["nodeOverrides"]["nodePropertyOverrides"]
    command: list[str] = node_range["containerOverrides"]["command"]
    return command


def submitted(desk: Desk, *words: str) -> str:
    """Submit; return what it said."""
    result = desk.run("submit", "--yes", *words)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stderr


def record(desk: Desk, run: str = "x") -> list[dict[str, Any]]:
    key = contract.run_key(run, contract.RUN_PROGRAM)
    body = desk.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read()
    found: list[dict[str, Any]] = json.loads(body)["submissions"]
    return found


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
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_what_names_no_program_is_refused(
    desk: Desk, program: Path, words: tuple[str, ...], fragments: list[str]
) -> None:
    assert_refused(desk.run("submit", "--name", "x", "--yes", *words), *fragments)
    assert desk.keys() == []
