"""`jobs shell` on Batch: the host, and whether it accepts sessions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from jobs.batch.shell import find_instance, session_command
from jobs.errors import Refusal
from jobs.job import Job
from tests.jobs.conftest import Cli
from tests.jobs.fakes import JOB_ID, FakeBatch, FakeClock, child, parent, scene
from tests.jobs.samples import JOB
from tests.jobs.test_refusals import assert_refused

INSTANCE = "arn:aws:ecs:us-west-2:123456789012:container-instance/cluster-of-batch/abc"


@dataclass
class FakeEcs:
    """moto's Batch has no instances."""

    asked: Mapping[str, Any] | None = None

    def describe_container_instances(self, **kwargs: Any) -> Mapping[str, Any]:
        self.asked = kwargs
        return {"containerInstances": [{"ec2InstanceId": "i-0abc"}]}


def job(status: str = "RUNNING") -> Job:
    return replace(JOB, job_id=JOB_ID, status=status)


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
    assert_refused(
        running.run("shell", "nightly", "--node", "1"),
        "host i-0abc accepts no sessions",
        "-c trainium:node_shell=true",
    )


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
    assert_refused(
        running.run("shell", "nightly", "--", "neuron-top"),
        "install the AWS CLI with its Session Manager plugin",
        "aws ssm start-session --region us-west-2 --target i-0abc",
    )


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
