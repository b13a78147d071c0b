"""`submit --requirements`: the wheels are there, or a job that collects them goes first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.program.requirements import read_requirements
from jobs.submit.choose import wheels_run
from tests.jobs.conftest import Desk
from tests.jobs.programs import command_of, dry_run, on_cluster, record, submitted
from tests.jobs.test_refusals import assert_refused
from tests.support.schemas import conforms
from trainium_catalogue import contract
from trainium_emulators.aws import quotas

IMAGE = "image"
"""Of every job definition of the desk."""
WORDS = ("./train.py", "--name", "x", "--requirements", "requirements.txt")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a program that requires something, and go to its folder."""
    (tmp_path / "train.py").write_text("import einops\n")
    (tmp_path / "requirements.txt").write_text("einops  # shapes\n-r more.txt\n")
    (tmp_path / "more.txt").write_text("lightning>=2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def key(program: Path) -> str:
    """Key of the program's wheels."""
    return read_requirements(program / "requirements.txt").key(IMAGE)


def collected(desk: Desk, key: str) -> None:
    desk.put(f"wheels/{key}/complete.json", {"format": 1})


def test_a_job_collects_the_wheels_and_the_programs_job_depends_on_it(
    desk: Desk, program: Path, key: str
) -> None:
    said = submitted(desk, *WORDS, "--nodes", "2")
    (first,), (job,) = desk.jobs(wheels_run(key)), desk.jobs("x")
    assert "dependencies: 2 required; first, as run wheels-" in said
    assert job["dependsOn"] == [{"jobId": first["jobId"]}]
    assert desk.keys("runs/x/code/")[0].endswith(".json")
    body = desk.client("s3").get_object(Bucket="bucket", Key=contract.requirements_key("x", key))[
        "Body"
    ]
    assert body.read() == b"einops\nlightning>=2\n"
    assert record(desk)[0]["requirements"] == {"key": key, "text": "einops\nlightning>=2\n"}


def test_a_dry_run_shows_both_jobs_and_sends_nothing(desk: Desk, program: Path, key: str) -> None:
    document = dry_run(desk, *WORDS, "--nodes", "2")
    assert document["wheels"]["payload"]["containerOverrides"]["command"] == [
        *contract.launch_command("wheels"), "--for-run", "x", "--key", key,
    ]  # fmt: skip
    assert document["wheels"]["collected"] is False
    assert document["payload"]["dependsOn"] == [{"jobId": "JOB-ID-OF-THE-WHEELS-JOB"}]
    command = command_of(document)
    assert command[command.index("--wheels") + 1] == key
    payloads = json.loads(desk.run("submit", "--dry-run", *WORDS).stdout)
    assert [item["jobName"] for item in payloads] == [wheels_run(key), "x"]
    assert desk.keys() == []


def test_wheels_that_are_there_are_not_collected_again(desk: Desk, program: Path, key: str) -> None:
    collected(desk, key)
    said = submitted(desk, *WORDS)
    assert "dependencies: 2 required, collected already" in said
    assert desk.jobs(wheels_run(key)) == []
    (job,) = desk.jobs("x")
    assert not job.get("dependsOn")


def test_the_job_that_collects_them_needs_a_quota_too(
    desk: Desk, program: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.parameter(contract.SSM_SETTINGS, "{}")
    monkeypatch.setitem(quotas.VALUES, "L-34B43A08", 0)

    refused = desk.run("submit", *WORDS, "--yes")

    assert refused.exit_code == 2
    assert "L-34B43A08 (All Standard Spot Instance Requests)" in refused.stderr
    assert desk.jobs(wheels_run(key)) == []
    collected(desk, key)
    submitted(desk, *WORDS)


def test_another_image_needs_other_wheels(desk: Desk, program: Path, key: str) -> None:
    definition = desk.client("batch").register_job_definition(
        jobDefinitionName="wheels",
        type="container",
        containerProperties={
            "image": "image:2",
            "command": contract.launch_command("wheels"),
            "resourceRequirements": [
                {"type": "VCPU", "value": "16"},
                {"type": "MEMORY", "value": "57344"},
            ],
        },
    )
    desk.parameter(contract.ssm_job_definition(contract.WHEELS), definition["jobDefinitionArn"])
    assert dry_run(desk, *WORDS)["wheels"]["key"] != key


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("torch==2.4.1", "has torch 2.9.x, which stays as it is"),
        ("torch<2.9", "has torch 2.9.x"),
        ("Torch_NeuronX==2.8.0.2.10", "has torch-neuronx 2.9.0.2.12.22436+0f1dac25"),
        ("neuronx-cc>=2.24", "has neuronx-cc 2.23.6484.0+3b612583"),
        ("numpy @ https://example.com/numpy.whl", "the image has its own numpy"),
        ("torchvision @ https://example.com/v.whl", "the image has its own torchvision"),
        ("torch==2.4.1 --hash=sha256:" + 64 * "0", "has torch 2.9.x"),
    ],
)
def test_what_stays_in_the_image_is_not_replaced(
    desk: Desk, program: Path, line: str, has: str
) -> None:
    desk.parameter(contract.SSM_SETTINGS, "{}")
    (program / "more.txt").write_text(f"# of mine\n{line}\n")

    for more in ((), ("--dry-run",)):
        refused = desk.run("submit", *WORDS, "--yes", *more)
        assert_refused(refused, f"more.txt, line 2: {line}: the image", has, "leave the line out")
    assert desk.keys() == []


@pytest.mark.parametrize(
    "line",
    [
        "torch>=2.4",
        "torch==2.9.*",
        "torch==2.9.1",
        "torch-neuronx==2.9.0.2.12.22436",
        "numpy<3",
        "torch==2.4 ; sys_platform == 'win32'",
        "torch==2.4 ; python_version < '3.12'",
        "torchmetrics==1.4",
        "optimum-neuron==0.4.5",
        "optimum-neuron @ https://example.com/optimum.whl",
    ],
)
def test_what_the_image_satisfies_is_taken(desk: Desk, program: Path, line: str) -> None:
    desk.parameter(contract.SSM_SETTINGS, "{}")
    (program / "more.txt").write_text(f"{line}\n")

    assert "the image" not in submitted(desk, *WORDS)


def test_a_constraint_and_kept_requirements_are_compared_too(desk: Desk, program: Path) -> None:
    (program / "more.txt").write_text("einops\n-c limits.txt\n")
    (program / "limits.txt").write_text("torch<2.9\n")
    assert "image" not in submitted(desk, *WORDS)
    for job in (*desk.jobs("x"), *desk.jobs(wheels_run(record(desk)[0]["requirements"]["key"]))):
        desk.backend_job(job["jobId"]).status = "FAILED"
    desk.parameter(contract.SSM_SETTINGS, "{}")

    assert_refused(desk.run("submit", *WORDS, "--yes"), "limits.txt, line 1: torch<2.9: the")
    assert_refused(
        desk.run("submit", "./train.py", "--name", "x", "--yes"),
        "the run's requirements: torch<2.9: the",
    )


def test_versions_of_an_image_that_is_not_known_are_remarked(desk: Desk, program: Path) -> None:
    desk.parameter(contract.SSM_SETTINGS, json.dumps({"image_uri": "example.com/image:1"}))
    (program / "more.txt").write_text("torch==2.4.1\nnumpy<3\n")

    said = submitted(desk, *WORDS)

    assert "more.txt, line 1: torch==2.4.1: it has to be exactly the version in the image" in said
    assert "numpy" not in said


def test_a_module_may_be_of_a_package_that_is_required(desk: Desk, program: Path) -> None:
    flags = ("--name", "x", "--requirements", "requirements.txt")
    submitted(desk, "-m", "einops.layers.torch", *flags)

    assert record(desk)[0]["module"] == "einops.layers.torch"


def test_a_run_that_goes_on_keeps_its_requirements(desk: Desk, program: Path, key: str) -> None:
    submitted(desk, *WORDS)
    collected(desk, key)
    found = dry_run(desk, "./train.py", "--name", "x")
    assert found["wheels"]["key"] == key
    assert found["plan"]["program"]["changes"] == []
    (program / "requirements.txt").write_text("einops\n")
    changed = dry_run(desk, *WORDS)
    assert changed["wheels"]["key"] != key
    assert any("requirements" in line for line in changed["plan"]["program"]["changes"])


def test_an_empty_file_drops_the_requirements(desk: Desk, program: Path) -> None:
    submitted(desk, *WORDS)
    (program / "none.txt").write_text("# nothing any more\n")
    found = dry_run(desk, "./train.py", "--name", "x", "--requirements", "none.txt")
    assert found["wheels"] is None
    assert "--wheels" not in command_of(found)


def test_a_workload_file_names_the_requirements(desk: Desk, program: Path, key: str) -> None:
    (program / "workload.toml").write_text(
        'name = "mine"\nscript = "train.py"\nrequirements = "requirements.txt"\n'
    )
    assert dry_run(desk, ".", "--name", "x")["wheels"]["key"] == key


def test_bad_lines_are_refused_before_anything_is_sent(desk: Desk, program: Path) -> None:
    (program / "requirements.txt").write_text("einops\n-e .\n")
    assert_refused(desk.run("submit", *WORDS, "--yes"), "requirements.txt, line 2: -e . is code")
    assert desk.keys() == []


def test_a_built_in_workload_takes_no_requirements(desk: Desk, program: Path) -> None:
    result = desk.run("submit", "all-reduce", "--requirements", "requirements.txt", "--yes")
    assert_refused(result, "all-reduce is no program of your own", "leave --requirements out")


def test_a_cluster_with_another_image_is_refused(desk: Desk, program: Path) -> None:
    on_cluster(desk, image="image:2")
    result = desk.run("submit", *WORDS, "--on", "eks", "--dry-run")
    assert_refused(result, "cluster's jobs run image:2, and wheels are collected in image")


def test_on_a_cluster_nothing_depends_on_the_job_that_collects(
    desk: Desk, program: Path, key: str
) -> None:
    on_cluster(desk, image=IMAGE)
    found = dry_run(desk, *WORDS, "--on", "eks")
    assert found["payload"]["kind"] == "Job"
    assert contract.ENV_AFTER_JOB not in json.dumps(found["payload"])
    assert found["wheels"]["payload"]["jobName"] == wheels_run(key)


def test_a_run_that_goes_on_already_collects_nothing(desk: Desk, program: Path, key: str) -> None:
    submitted(desk, *WORDS)
    desk.with_nodes(desk.jobs("x")[0]["jobId"], {}, status="RUNNING")
    result = desk.run("submit", "--json", *WORDS)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    conforms("jobs-submit", found)
    assert (found["action"], found["wheels"]) == ("already-running", None)
    assert len(desk.jobs(wheels_run(key))) == 1
