"""Batch's rules for containers, arrays and dependencies: real processes, emulated server."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import botocore.exceptions
import pytest

from tests.emulators.batch_queues import container_of, create_queue
from tests.emulators.conftest import Server, serving_aws
from tests.support.limits import scaled

Json = dict[str, Any]
TRN1 = "trn1.32xlarge"
SCRIPT = 'env | grep AWS_BATCH_JOB; mktemp; echo working; sleep "$SECONDS_"; exit "$CODE"'
HOST_LOST = [
    {"action": "RETRY", "onStatusReason": "Host EC2*"},
    {"action": "EXIT", "onReason": "*"},
]


@dataclass(frozen=True)
class Batch:
    """Queues for CPU and Trainium hosts; job definitions for a container and several nodes."""

    server: Server

    def client(self, service: str) -> Any:
        return self.server.client(service)

    def prepare(self) -> None:
        batch = self.client("batch")
        subnet = self.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
        create_queue(self.server, "cpu", "m6i.4xlarge", 4, subnet=subnet)
        create_queue(self.server, "gangs", TRN1, 4 * 128, subnet=subnet)
        container = container_of(self.server, ["sh", "-c", SCRIPT], CODE="0", SECONDS_="0")
        batch.register_job_definition(
            jobDefinitionName="script",
            type="container",
            containerProperties=container,
            retryStrategy={"attempts": 2},
        )
        waiting = {**container, "environment": [{"name": "SECONDS_", "value": "600"}]}
        batch.register_job_definition(
            jobDefinitionName="gang",
            type="multinode",
            nodeProperties={
                "numNodes": 2,
                "mainNode": 0,
                "nodeRangeProperties": [{"targetNodes": "0:", "container": waiting}],
            },
        )

    def submit(self, name: str = "job", *, environment: Json | None = None, **given: Any) -> str:
        pairs = [{"name": key, "value": str(v)} for key, v in (environment or {}).items()]
        answer = self.client("batch").submit_job(
            jobName=name,
            jobQueue="cpu",
            jobDefinition="script",
            containerOverrides={"environment": pairs},
            **given,
        )
        return str(answer["jobId"])

    def submit_gang(self) -> str:
        """Submit two nodes that wait."""
        submit = self.client("batch").submit_job
        return str(submit(jobName="gang", jobQueue="gangs", jobDefinition="gang")["jobId"])

    def describe(self, job_id: str) -> Json:
        (job,) = self.client("batch").describe_jobs(jobs=[job_id])["jobs"]
        return dict(job)

    def nodes(self, job_id: str, status: str) -> list[Json]:
        """The nodes of a job that have this status."""
        found = self.client("batch").list_jobs(multiNodeJobId=job_id, jobStatus=status)
        return list(found["jobSummaryList"])

    def end(self, job_id: str) -> Json:
        """Wait for the end of a job."""
        return self.wait(job_id, lambda job: job["status"] in ("SUCCEEDED", "FAILED"))

    def wait(self, job_id: str, condition: Callable[[Json], bool]) -> Json:
        """Wait until a job meets a condition."""
        deadline = time.monotonic() + scaled(30)
        while not condition(job := self.describe(job_id)):
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
        return job

    def arm(self, fault: Json) -> None:
        """Arm a fault for the job it names."""
        name = f"/rehearsal/next-fault/{fault['run']}"
        self.client("ssm").put_parameter(Name=name, Value=json.dumps(fault), Type="String")

    def log(self, job: Json) -> list[str]:
        events = self.client("logs").get_log_events(
            logGroupName="group", logStreamName=job["container"]["logStreamName"]
        )["events"]
        return [event["message"] for event in events]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batch]:
    """This module's own server, which deletes the files that its containers leave."""
    temporary = tmp_path_factory.mktemp("server")
    with serving_aws("--addresses", "127.0.46", temporary=temporary) as server:
        made = Batch(server)
        made.prepare()
        yield made
    assert list(temporary.iterdir()) == []


def test_failed_container_is_retried_by_its_strategy(batch: Batch) -> None:
    job = batch.end(batch.submit(environment={"CODE": 3}))

    codes = [attempt["container"]["exitCode"] for attempt in job["attempts"]]
    assert (job["status"], codes) == ("FAILED", [3, 3])


def test_reclaimed_host_warns_first_and_is_retried(
    batch: Batch,
) -> None:
    batch.arm({"kind": "reclaim-main", "run": "warned", "after": "working"})
    strategy = {"attempts": 2, "evaluateOnExit": HOST_LOST}

    environment = {"SECONDS_": 1}
    job = batch.end(batch.submit("warned", environment=environment, retryStrategy=strategy))

    first, second = job["attempts"]
    assert first["container"]["exitCode"] == 128 + signal.SIGTERM
    assert first["statusReason"].startswith("Host EC2")
    assert second["container"]["exitCode"] == 0


@pytest.mark.parametrize(
    ("awaited", "seconds", "code"), [("*.ckpt", 2, 0), ("*.yaml", 60, 128 + signal.SIGKILL)]
)
def test_fault_can_wait_for_a_file_that_an_object_lists(
    batch: Batch, awaited: str, seconds: int, code: int
) -> None:
    run = f"listed-{code}"
    key = f"runs/{run}/snapshots/0*.json"
    batch.arm({"kind": "kill-main", "run": run, "after_key": key, "after_path": awaited})
    s3 = batch.client("s3")
    location = {"LocationConstraint": "us-west-2"}
    s3.create_bucket(Bucket=run, CreateBucketConfiguration=location)
    for name, other in ("02", b"not JSON"), ("03", b"[]"), ("04", b'{"files": [{}]}'):
        s3.put_object(Bucket=run, Key=f"runs/{run}/snapshots/{name}.json", Body=other)
    body = json.dumps({"files": [{"path": "out/config.yaml"}]}).encode()
    s3.put_object(Bucket=run, Key=f"runs/{run}/snapshots/00000001.json", Body=body)

    job_id = batch.submit(run, environment={"SECONDS_": seconds})

    first = batch.wait(job_id, lambda job: len(job["attempts"]) > 0)["attempts"][0]
    assert first["container"]["exitCode"] == code
    batch.client("batch").terminate_job(jobId=job_id, reason="seen")


def test_ended_node_gets_no_fault(batch: Batch) -> None:
    batch.arm({"kind": "kill-main", "run": "over", "after_key": "runs/over/*"})

    job = batch.end(batch.submit("over"))

    assert (job["status"], len(job["attempts"])) == ("SUCCEEDED", 1)


def test_array_runs_a_child_for_each_index(batch: Batch) -> None:
    parent = batch.end(batch.submit("array", arrayProperties={"size": 3}))

    children = [batch.describe(f"{parent['jobId']}:{index}") for index in range(3)]
    assert parent["status"] == "SUCCEEDED"
    assert parent["arrayProperties"]["statusSummary"]["SUCCEEDED"] == 3
    for index, child in enumerate(children):
        said = set(batch.log(child))
        assert {
            f"AWS_BATCH_JOB_ID={parent['jobId']}:{index}",
            f"AWS_BATCH_JOB_ARRAY_INDEX={index}",
            "AWS_BATCH_JOB_ARRAY_SIZE=3",
        } <= said
        assert child["arrayProperties"]["index"] == index


def test_children_are_listed_by_their_parent_only(batch: Batch) -> None:
    parent = batch.end(batch.submit("listed", arrayProperties={"size": 2}))
    client = batch.client("batch")

    children = client.list_jobs(arrayJobId=parent["jobId"], jobStatus="SUCCEEDED")
    filters = [{"name": "JOB_NAME", "values": ["listed"]}]
    jobs = client.list_jobs(jobQueue="cpu", filters=filters)

    assert len(children["jobSummaryList"]) == 2
    assert [job["jobId"] for job in jobs["jobSummaryList"]] == [parent["jobId"]]
    assert jobs["jobSummaryList"][0]["arrayProperties"]["size"] == 2


def test_terminating_an_array_ends_all_its_children(batch: Batch) -> None:
    job_id = batch.submit(environment={"SECONDS_": 60}, arrayProperties={"size": 3})

    batch.client("batch").terminate_job(jobId=job_id, reason="enough")

    assert batch.end(job_id)["statusReason"] == "enough"
    assert {batch.end(f"{job_id}:{index}")["status"] for index in range(3)} == {"FAILED"}


def test_job_waits_for_dependency(batch: Batch) -> None:
    first = batch.submit("first", environment={"SECONDS_": 1})
    second = batch.submit("second", dependsOn=[{"jobId": first}])
    time.sleep(0.5)
    waiting = batch.describe(second)

    ended = batch.end(second)

    assert (waiting["status"], ended["status"]) == ("PENDING", "SUCCEEDED")
    assert ended["startedAt"] >= batch.describe(first)["stoppedAt"]


def test_job_fails_with_dependency(batch: Batch) -> None:
    first = batch.submit("first", environment={"CODE": 3})

    job = batch.end(batch.submit("second", dependsOn=[{"jobId": first}]))

    assert (job["status"], job["statusReason"]) == ("FAILED", "Dependent Job failed")
    assert job["attempts"] == []


def test_gangs_run_concurrently_while_nodes_suffice(batch: Batch) -> None:
    first, second, third, fourth = (batch.submit_gang() for _ in range(4))

    def is_running(job: Json) -> bool:
        return bool(job["status"] == "RUNNING")

    for running in first, second:
        batch.wait(running, is_running)
    assert batch.describe(third)["status"] == "RUNNABLE"
    # A waiting gang may be terminated, and one that ends makes room.
    batch.client("batch").terminate_job(jobId=third, reason="enough")
    assert batch.end(third)["statusReason"] == "enough"
    assert not is_running(batch.describe(fourth))
    assert {node["status"] for node in batch.nodes(first, "RUNNING")} == {"RUNNING"}
    assert batch.nodes(first, "FAILED") == []
    batch.client("batch").terminate_job(jobId=first, reason="enough")
    batch.wait(fourth, is_running)

    for job in second, fourth:
        batch.client("batch").terminate_job(jobId=job, reason="enough")
        batch.end(job)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"dependsOn": [{"jobId": "nothing"}]}, "does not exist"),
        ({"nodeOverrides": {"numNodes": 2}}, "nodeOverrides"),
    ],
)
def test_batch_refusals_apply(batch: Batch, given: Json, named: str) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match=named):
        batch.submit(**given)
