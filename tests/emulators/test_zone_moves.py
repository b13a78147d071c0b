"""The function that moves jobs between zones, with real boto3 on the emulated Batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from jobs.aws import Aws
from jobs.batch.service import BatchService
from jobs.batch.zones import ended_recently
from jobs.bucket.name_hold import NameHold, hold_name
from jobs.bucket.objects import Bucket
from jobs.deployment import read_deployment
from jobs.errors import Refusal
from jobs.job import Job, RunSummary
from jobs.teardown.work import UnfinishedJobs
from notifier.function import move_handler
from notifier.moves import ZoneMoves
from tests.emulators.batch_queues import container_of, create_queue
from tests.emulators.conftest import Server, serving_aws
from tests.support.limits import scaled
from trainium_catalogue import contract
from trainium_catalogue.workloads import Hardware
from trainium_emulators.aws.batch.scheduler import FULL_ZONES

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
ENDED = ("SUCCEEDED", "FAILED")
PYTHON = """#!/bin/sh
echo "$@"
env | grep "AWS_BATCH\\|TRAINIUM_RUN"
until [ -e "$GO" ]; do sleep 0.1; done
"""
"""Replaces the nodes' interpreter: prints its arguments and environment, and waits."""


@dataclass(slots=True)
class Deployment:
    """Two zones, and a queue for each; nodes run a script in place of a workload."""

    server: Server
    folder: Path
    zones: list[str] = field(default_factory=list)

    @property
    def go(self) -> Path:
        """File that ends the running nodes."""
        return self.folder / "go"

    def client(self, service: str) -> Any:
        return self.server.client(service)

    def parameter(self, name: str, value: str) -> None:
        full = name if name.startswith("/") else contract.ssm_parameter("default", name)
        self.client("ssm").put_parameter(Name=full, Value=value, Type="String", Overwrite=True)

    def prepare(self) -> None:
        python = self.folder / "bin" / "python"
        python.parent.mkdir()
        python.write_text(PYTHON)
        python.chmod(0o755)
        batch = self.client("batch")
        subnets = self.client("ec2").describe_subnets()["Subnets"][:2]
        self.zones += [subnet["AvailabilityZoneId"] for subnet in subnets]
        location = {"LocationConstraint": "us-west-2"}
        self.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration=location)
        made = [
            {"zone": zone, **create_queue(self.server, f"queue-{zone}", "trn1.32xlarge", 512,
                                          subnet=subnet["SubnetId"])}
            for zone, subnet in zip(self.zones, subnets, strict=True)
        ]  # fmt: skip
        path = f"{python.parent}:{os.environ['PATH']}"
        container = container_of(self.server, ["false"], GO=str(self.go), PATH=path)
        first = made[0]
        order = [{"order": 1, "computeEnvironment": first["compute_environment"]}]
        cpu_queue = batch.create_job_queue(
            jobQueueName="cpu", state="ENABLED", priority=1, computeEnvironmentOrder=order
        )["jobQueueArn"]
        values = {
            contract.SSM_CONTRACT_VERSION: contract.CONTRACT_VERSION,
            contract.SSM_ORCHESTRATORS: "batch",
            contract.SSM_INSTANCE_TYPE: "trn1.32xlarge",
            contract.SSM_MAX_NODES: "4",
            contract.SSM_NEURON_RELEASE: "2.28.0",
            contract.SSM_BUCKET: "bucket",
            contract.SSM_JOB_QUEUE: first["job_queue"],
            contract.SSM_CPU_JOB_QUEUE: cpu_queue,
            contract.SSM_COMPUTE_ENVIRONMENT: first["compute_environment"],
            contract.SSM_BATCH_ZONES: json.dumps({"zones": made}),
            contract.SSM_LOG_GROUP: "group",
            contract.SSM_JOB_TIME_LIMIT_HOURS: "24",
        }
        for workload in ("all-reduce", "llama2-7b"):
            definition = batch.register_job_definition(
                jobDefinitionName=workload,
                type="multinode",
                nodeProperties={
                    "numNodes": 4,
                    "mainNode": 0,
                    "nodeRangeProperties": [{"targetNodes": "0:", "container": container}],
                },
            )["jobDefinitionArn"]
            values[contract.ssm_job_definition(workload)] = definition
        for name, value in values.items():
            self.parameter(name, value)

    def fill(self, *zones: str) -> None:
        """Remove the capacity of zones."""
        self.parameter(FULL_ZONES, ",".join(zones) or "none")

    def jobs(self, run: str) -> list[Json]:
        """All jobs of a run, oldest first."""
        batch = self.client("batch")
        wanted = [{"name": "JOB_NAME", "values": [run]}]
        ids = [
            item["jobId"]
            for zone in self.zones
            for item in batch.list_jobs(jobQueue=f"queue-{zone}", filters=wanted)["jobSummaryList"]
        ]
        return sorted(batch.describe_jobs(jobs=ids)["jobs"], key=lambda job: job["createdAt"])

    def wait(self, run: str, *states: str) -> Json:
        """Wait until the newest job of a run is in a state."""
        deadline = time.monotonic() + scaled(20)
        while (job := self.jobs(run)[-1])["status"] not in states:
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
        return job

    def zone_of(self, job: Json) -> str:
        return str(job["jobQueue"]).rpartition("queue-")[2]

    def blocked(self, run: str, *, patience: int = 0) -> None:
        """Submit three nodes that find no capacity."""
        flags = ("--name", run, "--zone-patience", str(patience), "--yes")
        result = self.run("submit", "all-reduce", "--nodes", "3", "--iterations", "7", *flags)
        assert result.exit_code == 0, result.stderr
        self.wait_for_reason(run)

    def wait_for_reason(self, run: str) -> None:
        deadline = time.monotonic() + scaled(20)
        while "CAPACITY" not in self.wait(run, "RUNNABLE").get("statusReason", ""):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    @contextmanager
    def hosts(self, number: int) -> Iterator[None]:
        """Create an Auto Scaling group in the first zone, as Batch does."""
        scaling, name = self.client("autoscaling"), f"nodes-of-queue-{self.zones[0]}-asg-1"
        subnet = self.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
        scaling.create_launch_configuration(
            LaunchConfigurationName=name, ImageId="ami-1", InstanceType="trn1.32xlarge"
        )
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchConfigurationName=name,
            MinSize=number,
            MaxSize=number,
            VPCZoneIdentifier=subnet,
        )
        try:
            yield
        finally:
            scaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
            scaling.delete_launch_configuration(LaunchConfigurationName=name)

    def run(self, *words: str) -> Result:
        from jobs.cli import app

        return CliRunner().invoke(app, list(words))


def look(left_ms: Callable[[], int] = lambda: 300_000) -> None:
    """Call the function as its schedule does."""
    move_handler({}, SimpleNamespace(get_remaining_time_in_millis=left_ms))


def next_zone_of(zones: Deployment, run: str) -> str | None:
    """Read the zone to which a run moves from `status`."""
    document = json.loads(zones.run("status", run, "--json").stdout)
    there: str | None = document["zone"]["next_zone"]
    return there


def compiled_first(zones: Deployment, run: str) -> None:
    """Submit a job that waits for its compile job, which finds no capacity."""
    manifest = json.dumps({"vocab_size": 32000, "num_tokens": 10**9}).encode()
    key = f"{contract.DATASETS_PREFIX}wiki/{contract.DATASET_MANIFEST}"
    zones.client("s3").put_object(Bucket="bucket", Key=key, Body=manifest)
    words = ("llama2-7b", "--nodes", "4", "--dataset", "wiki", "--compile", "--name", run)
    result = zones.run("submit", *words, "--zone-patience", "0", "--yes")
    assert result.exit_code == 0, result.stderr
    zones.wait_for_reason(f"{run}-compile")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("server")
    with serving_aws("--addresses", "127.0.54", temporary=folder) as running:
        made = Deployment(running, folder)
        made.prepare()
        yield made


@pytest.fixture
def zones(server: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """The first zone is full, and nodes run until the file exists."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "TRAINIUM_DEP"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv(contract.ENV_REGION, "us-west-2")
    monkeypatch.setenv(contract.ENV_DEPLOYMENT, "default")
    monkeypatch.setattr("notifier.moves._SETTLE_S", 0.5)
    server.go.unlink(missing_ok=True)
    server.fill(server.zones[0])
    return server


def cancelled(zones: Deployment, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a job in the state after a call that dies just after cancelling it."""
    zones.blocked(run)
    with monkeypatch.context() as patch:
        patch.setattr(ZoneMoves, "_move", lambda *_: None)
        look()
    zones.wait(run, "FAILED")


def test_job_without_capacity_moves_once_and_finishes(
    zones: Deployment,
) -> None:
    zones.blocked("moved")

    look()

    job = zones.wait("moved", "RUNNING")
    look()
    zones.go.touch()
    zones.wait("moved", "SUCCEEDED")
    look()
    first, second = zones.jobs("moved")
    assert (first["status"], first["attempts"]) == ("FAILED", [])
    assert first["statusReason"].endswith(f"in {zones.zones[0]}: moves to {zones.zones[1]}")
    assert [zones.zone_of(each) for each in (first, second)] == zones.zones
    assert (second["jobId"], second["nodeProperties"]["numNodes"]) == (job["jobId"], 3)
    stream = second["attempts"][0]["container"]["logStreamName"]
    events = zones.client("logs").get_log_events(logGroupName="group", logStreamName=stream)
    said = {event["message"] for event in events["events"]}
    command = "-m training.launch all-reduce --iterations 7"
    assert {command, "AWS_BATCH_JOB_NUM_NODES=3", "TRAINIUM_RUN=moved"} <= said
    assert (second["tags"], second["timeout"]) == (first["tags"], first["timeout"])


def test_job_waits_in_last_zone(zones: Deployment) -> None:
    zones.fill(*zones.zones)
    zones.blocked("nowhere")
    look()

    zones.wait_for_reason("nowhere")
    look()

    assert [zones.zone_of(job) for job in zones.jobs("nowhere")] == zones.zones
    assert zones.wait("nowhere", "RUNNABLE")
    assert zones.run("stop", "nowhere").exit_code == 0


def test_job_stays_until_due_and_status_shows_move_time(
    zones: Deployment,
) -> None:
    zones.blocked("patient", patience=60)
    look()

    (job,) = zones.jobs("patient")
    here, there = zones.zones
    after = job["createdAt"] + 3_600_000
    standing = {"zone": here, "next_zone": there, "moves_after_ms": after}
    for command in ("status", "explain"):
        document = json.loads(zones.run(command, "patient", "--json").stdout)
        assert (document["job_id"], document["zone"]) == (job["jobId"], standing)
        said = " ".join(zones.run(command, "patient").stdout.split())
        assert f"zone {here}; without capacity it moves to {there} within" in said
    listed = json.loads(zones.run("list", "--json").stdout)["runs"]
    assert next(each for each in listed if each["run"] == "patient")["zone"] == here
    zones.run("stop", "patient")


def test_job_that_gets_nodes_is_not_moved(
    zones: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    zones.blocked("late")
    cancel = ZoneMoves._cancel

    def too_late(moves: ZoneMoves, job: Any) -> None:
        zones.fill()
        zones.wait("late", "RUNNING")
        cancel(moves, job)

    monkeypatch.setattr(ZoneMoves, "_cancel", too_late)
    look()

    zones.go.touch()
    assert zones.wait("late", *ENDED)["status"] == "SUCCEEDED"
    assert len(zones.jobs("late")) == 1


@pytest.mark.parametrize("dies", ["before", "after"])
def test_function_crash_around_submission_leaves_one_job(
    zones: Deployment, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    run = f"dies-{dies}"
    zones.blocked(run)

    def die(*_: object, **__: object) -> None:
        raise SystemExit

    assert len(zones.jobs(run)) == 1
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        if dies == "before":
            patch.setattr("notifier.moves.submit_once", die)
        else:
            patch.setattr("notifier.moves.note_submission", die)
            patch.setattr(NameHold, "end", lambda hold, error: None)
        look()
    look()  # the name stays reserved for a while
    assert len(zones.jobs(run)) == {"before": 1, "after": 2}[dies]

    monkeypatch.setattr("jobs.bucket.name_hold._LIMIT", timedelta(0))
    time.sleep(1.1)  # S3 reports ages in seconds
    look()
    look()
    assert [zones.zone_of(job) for job in zones.jobs(run)] == zones.zones
    zones.go.touch()
    assert zones.wait(run, *ENDED)["status"] == "SUCCEEDED"


def test_run_stopped_during_move_stays_stopped(
    zones: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(zones, "stopped", monkeypatch)

    result = zones.run("stop", "stopped", "--json")
    look()

    assert json.loads(result.stdout)["action"] == "stopping"
    assert "will not be moved to another zone" in result.stderr
    assert next_zone_of(zones, "stopped") is None
    assert len(zones.jobs("stopped")) == 1


def test_dependent_job_moves_with_dependency(zones: Deployment) -> None:
    compiled_first(zones, "train")

    look()

    compiles = zones.wait("train-compile", "RUNNING")
    (_, trains) = zones.jobs("train")
    assert zones.zone_of(trains) == zones.zones[1]
    assert trains["dependsOn"] == [{"jobId": compiles["jobId"]}]
    zones.go.touch()
    assert zones.wait("train", *ENDED)["status"] == "SUCCEEDED"


def test_job_fails_if_compile_job_fails_in_next_zone(
    zones: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_first(zones, "fails")
    move = ZoneMoves._move

    def move_compile(moves: ZoneMoves, service: BatchService, job: Job) -> None:
        if job.run == "fails-compile":
            move(moves, service, job)

    with monkeypatch.context() as patch:
        patch.setattr(ZoneMoves, "_move", move_compile)
        look()
    zones.wait("fails", "FAILED")
    assert next_zone_of(zones, "fails") == zones.zones[1]
    compiles = zones.wait("fails-compile", "RUNNING")
    zones.client("batch").terminate_job(jobId=compiles["jobId"], reason="broken")
    zones.wait("fails-compile", "FAILED")

    assert next_zone_of(zones, "fails") is None
    look()
    assert len(zones.jobs("fails")) == 1


def test_repeatedly_failing_move_ends(zones: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    zones.blocked("lost")
    digest = zones.jobs("lost")[0]["tags"][contract.TAG_REQUEST]
    key = contract.request_key("lost", digest)
    zones.client("s3").delete_object(Bucket="bucket", Key=key)

    with pytest.raises(RuntimeError, match=f"does not contain the submitted request {digest}"):
        look()
    assert next_zone_of(zones, "lost") == zones.zones[1]

    with monkeypatch.context() as patch:
        patch.setattr("jobs.batch.zones.MOVED_WITHIN_MS", 0)
        look()
        assert next_zone_of(zones, "lost") is None
    zones.run("stop", "lost")


@pytest.mark.parametrize(("hours", "may_move"), [(23, True), (25, False)])
def test_job_without_end_time_may_move_for_a_day(hours: int, may_move: bool) -> None:
    created_ms = int((time.time() - 3600 * hours) * 1000)
    job = RunSummary(
        run="x", job_id="x", status="FAILED", status_reason=None, created_at_ms=created_ms,
        started_at_ms=None, stopped_at_ms=None, num_nodes=3, hardware=Hardware.TRAINIUM,
    )  # fmt: skip

    assert ended_recently(job) == may_move
    assert not ended_recently(replace(job, stopped_at_ms=created_ms))


def test_run_with_newer_job_elsewhere_is_not_moved(
    zones: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(zones, "elsewhere", monkeypatch)
    bucket = Bucket(client=zones.client("s3"), name="bucket")
    known = {job["jobId"] for job in zones.jobs("elsewhere")}
    with hold_name(bucket, "elsewhere", known=known) as hold:
        hold.job_id = "elsewhere-on-the-cluster"

    monkeypatch.setattr("jobs.bucket.name_hold._LIMIT", timedelta(0))
    time.sleep(1.1)  # S3 reports ages in seconds
    look()

    assert len(zones.jobs("elsewhere")) == 1
    assert next_zone_of(zones, "elsewhere") is None
    with pytest.raises(Refusal, match=r"submitted job elsewhere-on-the-cluster .* submit the run"):
        NameHold(bucket, "elsewhere", known=known, moves=next(iter(known)))


@pytest.mark.parametrize("free", [2, 3])
def test_job_with_started_hosts_is_not_cancelled(zones: Deployment, free: int) -> None:
    run = f"hosts-{free}"
    zones.fill()
    busy = ("--nodes", "1", "--name", f"busy-{free}", "--zone-patience", "0", "--yes")
    assert zones.run("submit", "all-reduce", *busy).exit_code == 0
    zones.wait(f"busy-{free}", "RUNNING")
    zones.fill(zones.zones[0])
    zones.blocked(run)
    with zones.hosts(1 + free):
        look()

    assert len(zones.jobs(run)) == (2 if free < 3 else 1)
    zones.run("stop", run)
    zones.go.touch()
    zones.wait(f"busy-{free}", *ENDED)


def test_ended_job_is_moved_even_without_time_to_cancel_others(
    zones: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(zones, "first", monkeypatch)
    zones.blocked("second")
    left_ms = iter([300_000])

    with pytest.raises(RuntimeError, match="ran out of time"):
        look(lambda: next(left_ms, 59_000))

    assert [len(zones.jobs(run)) for run in ("first", "second")] == [2, 1]
    zones.run("stop", "second")


def test_interrupted_jobs_down_leaves_no_moving_job(
    zones: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(zones, "down", monkeypatch)
    aws = Aws("us-west-2")
    target = read_deployment(aws.ssm(), "default", region="us-west-2")
    work = UnfinishedJobs(aws=aws, target=target, queues=sorted(target.queues), note=print)

    work.end_all(reason="down", limit_s=scaled(20), now=time.monotonic, sleep=time.sleep)
    look()

    assert len(zones.jobs("down")) == 1


# The move itself: test_job_without_capacity_moves_once_and_finishes.
@pytest.mark.full
def test_logs_follow_a_job_to_its_next_zone(zones: Deployment) -> None:
    zones.blocked("followed")
    command = [sys.executable, "-m", "jobs", "logs", "followed", "--follow"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as following:
        assert following.stdout is not None
        first = following.stdout.readline()
        look()
        zones.go.touch()
        said, _ = following.communicate(timeout=scaled(60))

    assert "RUNNABLE: CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY" in first
    assert following.returncode == 0, said
    assert "resubmitted in the next zone" in said
    assert "run followed failed" not in said
    assert "node 0 | TRAINIUM_RUN=followed" in said
