"""`submit --requirements`: the wheels exist, or a job collects them first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.program.requirements import read_requirements
from jobs.submit.choose import wheels_run
from tests.jobs.conftest import Cli
from tests.jobs.programs import command_of, dry_run, on_cluster, record, submitted
from tests.jobs.test_refusals import assert_refused
from tests.support.schemas import conforms
from trainium_catalogue import contract
from trainium_emulators.aws import quotas

IMAGE = "image"
"""Image of every job definition of the deployment."""
WORDS = ("./train.py", "--name", "x", "--requirements", "requirements.txt")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a program with requirements, and change into its folder."""
    (tmp_path / "train.py").write_text("import einops\n")
    (tmp_path / "requirements.txt").write_text("einops  # shapes\n-r more.txt\n")
    (tmp_path / "more.txt").write_text("lightning>=2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def key(program: Path) -> str:
    """Return the key of the program's wheels."""
    return read_requirements(program / "requirements.txt").key(IMAGE)


def collected(cli: Cli, key: str) -> None:
    cli.put(f"wheels/{key}/complete.json", {"format": 1})


def test_wheels_job_precedes_program_job(cli: Cli, program: Path, key: str) -> None:
    said = submitted(cli, *WORDS, "--nodes", "2")
    (first,), (job,) = cli.jobs(wheels_run(key)), cli.jobs("x")
    assert "dependencies: 2 required; first, as run wheels-" in said
    assert job["dependsOn"] == [{"jobId": first["jobId"]}]
    assert cli.keys("runs/x/code/")[0].endswith(".json")
    assert cli.read(contract.requirements_key("x", key)) == b"einops\nlightning>=2\n"
    assert record(cli)[0]["requirements"] == {"key": key, "text": "einops\nlightning>=2\n"}


def test_dry_run_shows_both_jobs_and_sends_nothing(cli: Cli, program: Path, key: str) -> None:
    document = dry_run(cli, *WORDS, "--nodes", "2")
    assert document["wheels"]["payload"]["containerOverrides"]["command"] == [
        *contract.launch_command("wheels"), "--for-run", "x", "--key", key,
    ]  # fmt: skip
    assert document["wheels"]["collected"] is False
    assert document["payload"]["dependsOn"] == [{"jobId": "JOB-ID-OF-THE-WHEELS-JOB"}]
    command = command_of(document)
    assert command[command.index("--wheels") + 1] == key
    payloads = json.loads(cli.run("submit", "--dry-run", *WORDS).stdout)
    assert [item["jobName"] for item in payloads] == [wheels_run(key), "x"]
    assert cli.keys() == []


def test_existing_wheels_are_not_collected_again(cli: Cli, program: Path, key: str) -> None:
    collected(cli, key)
    said = submitted(cli, *WORDS)
    assert "dependencies: 2 required, already collected" in said
    assert cli.jobs(wheels_run(key)) == []
    (job,) = cli.jobs("x")
    assert not job.get("dependsOn")


def test_wheels_job_needs_quota(
    cli: Cli, program: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.parameter(contract.SSM_SETTINGS, "{}")
    monkeypatch.setitem(quotas.VALUES, "L-34B43A08", 0)

    refused = cli.run("submit", *WORDS, "--yes")

    assert refused.exit_code == 2
    assert "L-34B43A08 (All Standard Spot Instance Requests)" in refused.stderr
    assert cli.jobs(wheels_run(key)) == []
    collected(cli, key)
    submitted(cli, *WORDS)


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("torch<2.9", "has torch 2.9.x, which is not replaced"),
        ("Torch_NeuronX==2.8.0.2.10", "has torch-neuronx 2.9.0.2.12.22436+0f1dac25"),
        ("numpy @ https://example.com/numpy.whl", "the image has its own numpy"),
        ("torch==2.4.1 --hash=sha256:" + 64 * "0", "has torch 2.9.x"),
    ],
)
def test_package_fixed_in_image_is_refused(cli: Cli, program: Path, line: str, has: str) -> None:
    cli.parameter(contract.SSM_SETTINGS, "{}")
    (program / "more.txt").write_text(f"# of mine\n{line}\n")

    for more in ((), ("--dry-run",)):
        refused = cli.run("submit", *WORDS, "--yes", *more)
        assert_refused(refused, f"more.txt, line 2: {line}: the image", has, "remove the line")
    assert cli.keys() == []


def remarks(printed: str) -> str:
    """Drop the phrase among the exclusions of the cost that mentions the image."""
    return printed.replace("pulling the image", "")


@pytest.mark.parametrize(
    "line",
    [
        "torch==2.9.1",
        "torch-neuronx==2.9.0.2.12.22436",
        "torch==2.4 ; sys_platform == 'win32'",
        "torch==2.4 ; python_version < '3.12'",
        "optimum-neuron @ https://example.com/optimum.whl",
    ],
)
def test_requirement_satisfied_by_image_is_accepted(cli: Cli, program: Path, line: str) -> None:
    cli.parameter(contract.SSM_SETTINGS, "{}")
    (program / "more.txt").write_text(f"{line}\n")

    assert "the image" not in remarks(submitted(cli, *WORDS))


def test_constraints_and_stored_requirements_are_compared(cli: Cli, program: Path) -> None:
    (program / "more.txt").write_text("einops\n-c limits.txt\n")
    (program / "limits.txt").write_text("torch<2.9\n")
    assert "image" not in remarks(submitted(cli, *WORDS))
    for job in (*cli.jobs("x"), *cli.jobs(wheels_run(record(cli)[0]["requirements"]["key"]))):
        cli.backend_job(job["jobId"]).status = "FAILED"
    cli.parameter(contract.SSM_SETTINGS, "{}")

    assert_refused(cli.run("submit", *WORDS, "--yes"), "limits.txt, line 1: torch<2.9: the")
    assert_refused(
        cli.run("submit", "./train.py", "--name", "x", "--yes"),
        "the run's requirements: torch<2.9: the",
    )


def test_versions_of_unknown_image_are_noted(cli: Cli, program: Path) -> None:
    cli.parameter(contract.SSM_SETTINGS, json.dumps({"image_uri": "example.com/image:1"}))
    (program / "more.txt").write_text("torch==2.4.1\nnumpy<3\n")

    said = submitted(cli, *WORDS)

    assert "more.txt, line 1: torch==2.4.1: it must be exactly the version in the image" in said
    assert "numpy" not in said


def test_module_may_come_from_required_package(cli: Cli, program: Path) -> None:
    flags = ("--name", "x", "--requirements", "requirements.txt")
    submitted(cli, "-m", "einops.layers.torch", *flags)

    assert record(cli)[0]["module"] == "einops.layers.torch"


def test_resumed_run_keeps_requirements(cli: Cli, program: Path, key: str) -> None:
    submitted(cli, *WORDS)
    collected(cli, key)
    found = dry_run(cli, "./train.py", "--name", "x")
    assert found["wheels"]["key"] == key
    assert found["plan"]["program"]["changes"] == []
    (program / "requirements.txt").write_text("einops\n")
    changed = dry_run(cli, *WORDS)
    assert changed["wheels"]["key"] != key
    assert any("requirements" in line for line in changed["plan"]["program"]["changes"])


def test_empty_file_drops_requirements(cli: Cli, program: Path) -> None:
    submitted(cli, *WORDS)
    (program / "none.txt").write_text("# nothing any more\n")
    found = dry_run(cli, "./train.py", "--name", "x", "--requirements", "none.txt")
    assert found["wheels"] is None
    assert "--wheels" not in command_of(found)


def test_workload_file_names_requirements(cli: Cli, program: Path, key: str) -> None:
    (program / "workload.toml").write_text(
        'name = "mine"\nscript = "train.py"\nrequirements = "requirements.txt"\n'
    )
    assert dry_run(cli, ".", "--name", "x")["wheels"]["key"] == key


def test_invalid_lines_are_refused_before_upload(cli: Cli, program: Path) -> None:
    (program / "requirements.txt").write_text("einops\n-e .\n")
    assert_refused(
        cli.run("submit", *WORDS, "--yes"), "requirements.txt, line 2: -e . is local code"
    )
    assert cli.keys() == []


def test_requirements_of_built_in_workload_are_refused(cli: Cli, program: Path) -> None:
    result = cli.run("submit", "all-reduce", "--requirements", "requirements.txt", "--yes")
    assert_refused(result, "all-reduce is not a program of your own", "omit --requirements")


def test_cluster_with_other_image_is_refused(cli: Cli, program: Path) -> None:
    on_cluster(cli, image="image:2")
    result = cli.run("submit", *WORDS, "--on", "eks", "--dry-run")
    assert_refused(result, "cluster's jobs run image:2, but wheels are collected in image")


def test_cluster_job_does_not_depend_on_wheels_job(cli: Cli, program: Path, key: str) -> None:
    on_cluster(cli, image=IMAGE)
    found = dry_run(cli, *WORDS, "--on", "eks")
    assert found["payload"]["kind"] == "Job"
    assert contract.ENV_AFTER_JOB not in json.dumps(found["payload"])
    assert found["wheels"]["payload"]["jobName"] == wheels_run(key)


def test_active_run_collects_no_wheels(cli: Cli, program: Path, key: str) -> None:
    submitted(cli, *WORDS)
    cli.with_nodes(cli.jobs("x")[0]["jobId"], {}, status="RUNNING")
    result = cli.run("submit", "--json", *WORDS)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    conforms("jobs-submit", found)
    assert (found["action"], found["wheels"]) == ("already-running", None)
    assert len(cli.jobs(wheels_run(key))) == 1
