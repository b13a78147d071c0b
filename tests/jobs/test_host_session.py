"""`jobs shell` on Batch: the host, and whether it accepts sessions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from jobs.batch.shell import find_instance, session_command
from jobs.errors import Refusal
from jobs.job import Job, JobKind, Shape
from tests.jobs.conftest import Cli
from tests.jobs.fakes import JOB_ID, FakeBatch, FakeClock, child, parent, scene

INSTANCE = "arn:aws:ecs:us-west-2:123456789012:container-instance/cluster-of-batch/abc"


@dataclass
class FakeEcs:
    """moto's Batch has no instances."""

    asked: Mapping[str, Any] | None = None

    def describe_container_instances(self, **kwargs: Any) -> Mapping[str, Any]:
        self.asked = kwargs
        return {"containerInstances": [{"ec2InstanceId": "i-0abc"}]}


def job(status: str = "RUNNING") -> Job:
    return Job(
        job_id=JOB_ID,
        run="nightly",
        workload="all-reduce",
        status=status,
        status_reason=None,
        created_at_ms=1,
        started_at_ms=1,
        stopped_at_ms=None,
        shape=Shape(kind=JobKind.NODES, size=2),
        job_queue="queue",
        depends_on=(),
        max_attempts=3,
        attempts=(),
        nodes=(),
    )


def batch(container: Mapping[str, Any]) -> FakeBatch:
    clock = FakeClock()
    second = {**child("RUNNING"), "container": container}
    nodes = scene(parent("RUNNING"), child("RUNNING"), second)
    return FakeBatch(clock, scenes=[(0.0, nodes)])


def test_host_of_node_is_read_from_its_cluster() -> None:
    ecs = FakeEcs()
    host = find_instance(batch({"containerInstanceArn": INSTANCE}), ecs, job(), 1)

    assert host == "i-0abc"
    assert ecs.asked == {"cluster": "cluster-of-batch", "containerInstances": [INSTANCE]}


@pytest.mark.parametrize(
    ("container", "status"),
    [({}, "RUNNABLE"), ({"containerInstanceArn": INSTANCE}, "FAILED")],
    ids=["no host yet", "ended"],
)
def test_stopped_node_has_no_host(container: Mapping[str, Any], status: str) -> None:
    with pytest.raises(Refusal, match=f"the job is {status}, not RUNNING"):
        find_instance(batch(container), FakeEcs(), job(status), 1)


def test_session_is_a_shell_or_one_command() -> None:
    shell = session_command("i-0abc", "us-west-2", [])
    one = session_command("i-0abc", "us-west-2", ["sh", "-c", "echo a b"])

    assert shell == [
        "aws", "ssm", "start-session", "--region", "us-west-2", "--target", "i-0abc",
    ]  # fmt: skip
    assert json.loads(one[-1]) == {"command": ["sh -c 'echo a b'"]}


@pytest.fixture
def running(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    job_id = cli.submitted("nightly")
    container = {"containerInstanceArn": INSTANCE}
    cli.with_nodes(job_id, {"container": container}, {"container": container})
    monkeypatch.setattr("jobs.aws.Aws.ecs", lambda _: FakeEcs())
    return cli


def test_host_without_sessions_is_refused_with_setting(
    running: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.aws.Aws.managed_instances", lambda _: Managed(()))
    result = running.run("shell", "nightly", "--node", "1")

    assert result.exit_code == 2
    assert "host i-0abc accepts no sessions" in result.stderr
    assert "-c trainium:node_shell=true" in result.stderr


@dataclass
class Managed:
    """moto has no managed instances."""

    statuses: Sequence[str] = ("Online",)

    def describe_instance_information(self, **kwargs: Any) -> Mapping[str, Any]:
        assert kwargs["Filters"][0]["Values"] == ["i-0abc"]
        return {"InstanceInformationList": [{"PingStatus": status} for status in self.statuses]}


def test_missing_session_manager_shows_command(
    running: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.aws.Aws.managed_instances", lambda _: Managed())
    monkeypatch.setenv("PATH", "/nowhere")
    result = running.run("shell", "nightly", "--", "neuron-top")

    assert result.exit_code == 2
    assert "install the AWS CLI with its Session Manager plugin" in result.stderr
    assert "aws ssm start-session --region us-west-2 --target i-0abc" in result.stderr


def test_session_exits_with_code_of_cli(running: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def run(words: list[str]) -> subprocess.CompletedProcess[bytes]:
        started.append(words)
        return subprocess.CompletedProcess(words, 7)

    monkeypatch.setattr("jobs.aws.Aws.managed_instances", lambda _: Managed())
    monkeypatch.setattr("jobs.commands.shell.shutil.which", lambda name: name)
    monkeypatch.setattr("jobs.commands.shell.subprocess.run", run)

    assert running.run("shell", "nightly").exit_code == 7
    assert started == [session_command("i-0abc", "us-west-2", [])]
