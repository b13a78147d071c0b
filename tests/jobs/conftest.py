"""A moto server on loopback with one deployment, and the CLI as a user runs it."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.batch.models import batch_backends
from moto.core.config import default_user_config
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from moto.logs.models import logs_backends
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from moto.ssm.models import ssm_backends
from typer.testing import CliRunner, Result

from tests.jobs import permissions
from tests.support.limits import scaled
from trainium_catalogue import contract
from trainium_catalogue.workloads import WORKLOADS, Hardware, Workload
from trainium_emulators.aws import host_images, quotas
from trainium_emulators.aws.permissions import install_simulation
from trainium_emulators.aws.server import cache_routes

REGION = "us-west-2"
ACCOUNT = "123456789012"
SCRIPT = "import sys\n\nprint(sys.argv)\n"
"""The program created by the fixture `program`."""


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """Return the address of this test process's moto server."""
    default_user_config["batch"]["use_docker"] = False
    quotas.install()
    host_images.install()
    install_simulation()
    cache_routes()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def _calls_are_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check every call of these tests against the submitter policy."""
    yield from permissions.calls_are_allowed(monkeypatch)


@cache
def _client(service: str, endpoint: str) -> Any:
    return boto3.client(
        service,
        region_name=REGION,
        endpoint_url=endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


@dataclass(slots=True)
class Cli:
    """The account and the commands."""

    endpoint: str

    def client(self, service: str) -> Any:
        return _client(service, self.endpoint)

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        """Run `python -m jobs` in this process."""
        from jobs.cli import app

        return CliRunner().invoke(app, list(arguments), input=stdin)

    def parameter(self, name: str, value: str, *, deployment: str = "default") -> None:
        # Directly in moto, because a deployment has many parameters, and a call for each would take
        # as long as a short test.
        ssm_backends[ACCOUNT][REGION].put_parameter(
            name=contract.ssm_parameter(deployment, name),
            description="",
            value=value,
            parameter_type="String",
            allowed_pattern="",
            keyid="",
            overwrite=True,
            tags=[],
            data_type="text",
            tier=None,
            policies=None,
        )

    def put(self, key: str, data: bytes | dict[str, Any] = b"x") -> None:
        """Put an object, or a JSON document, into the bucket."""
        body = json.dumps(data).encode() if isinstance(data, dict) else data
        self.client("s3").put_object(Bucket="bucket", Key=key, Body=body)

    def read(self, key: str) -> bytes:
        """Read an object in the bucket."""
        data: bytes = self.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read()
        return data

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys in the bucket."""
        listed = self.client("s3").list_objects_v2(Bucket="bucket", Prefix=prefix)
        return [item["Key"] for item in listed.get("Contents", ())]

    def jobs(self, run: str) -> list[dict[str, Any]]:
        """Return the jobs of a run, as Batch describes them."""
        batch = self.client("batch")
        wanted = [{"name": "JOB_NAME", "values": [run]}]
        listed = [
            item
            for queue in ("queue", "cpu-queue")
            for item in batch.list_jobs(jobQueue=queue, filters=wanted)["jobSummaryList"]
        ]
        described: list[dict[str, Any]] = (
            batch.describe_jobs(jobs=[item["jobId"] for item in listed])["jobs"] if listed else []
        )
        return described

    def submitted(self, run: str, *flags: str, status: str = "RUNNING", num_nodes: int = 2) -> str:
        """Submit a run; return its job id.

        moto ends the job immediately and drops the submission's overrides, so set its status and
        command again.
        """
        result = self.run(
            "submit", "all-reduce", "--nodes", str(num_nodes), "--name", run, "--yes", *flags
        )
        assert result.exit_code == 0, result.stderr
        job_id = str(self.jobs(run)[-1]["jobId"])
        job = self.backend_job(job_id)
        job.status = status
        describe, command = job.describe, [*contract.launch_command("all-reduce"), *flags]
        nodes = {
            "numNodes": num_nodes,
            "nodeRangeProperties": [{"container": {"command": command}}],
        }
        job.describe = lambda: {**describe(), "nodeProperties": nodes}
        return job_id

    def backend_job(self, job_id: str) -> Any:
        """Return moto's own object for a job."""
        return batch_backends[ACCOUNT][REGION]._jobs[job_id]

    def with_nodes(self, job_id: str, *nodes: dict[str, Any], **job: Any) -> None:
        """Add what moto lacks to a job: nodes, attempts, a status reason."""
        backend = batch_backends[ACCOUNT][REGION]
        original = backend._jobs[job_id]
        described = {**original.describe(), "nodeProperties": {"numNodes": len(nodes)}, **job}
        original.status = described["status"]
        original.describe = lambda: described
        for index, node in enumerate(nodes):
            child = {
                **described,
                "attempts": [],
                "container": {},
                **node,
                "jobId": f"{job_id}#{index}",
            }
            backend._jobs[child["jobId"]] = _Described(child)


@dataclass(slots=True)
class _Described:
    """A child job for moto, which can only be described."""

    detail: dict[str, Any]

    @property
    def arn(self) -> str:
        return f"arn:{self.detail['jobId']}"

    def describe(self) -> dict[str, Any]:
        return self.detail


@pytest.fixture
def cli(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """An account with the deployment `default`: 4 nodes of trn1.32xlarge."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "TRAINIUM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("COLUMNS", "200")
    # Each reset would create 1,300 new images, which no command uses.
    monkeypatch.setattr("moto.settings.ec2_load_default_amis", lambda: False)
    cli = Cli(endpoint)
    reset(cli)
    deploy(cli)
    yield cli
    # Other tests in this process reset moto too.
    forget_described()


def forget_described() -> None:
    """Remove the stand-ins for nodes: moto can only end its own jobs."""
    jobs = batch_backends[ACCOUNT][REGION]._jobs
    for job_id in [name for name, job in jobs.items() if isinstance(job, _Described)]:
        del jobs[job_id]


def reset(cli: Cli) -> None:
    """Reset the account."""
    forget_described()
    request = urllib.request.Request(f"{cli.endpoint}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=scaled(10)).close()


def deploy(cli: Cli) -> None:
    """Create the parts of a deployment that the CLI reads."""
    # Directly in moto, because calls would take longer than most tests.
    role = iam_backends[ACCOUNT]["aws"].create_role(
        role_name="batch",
        assume_role_policy_document="{}",
        path="/",
        permissions_boundary=None,
        description="",
        tags=[],
        max_session_duration=None,
    )
    batch = batch_backends[ACCOUNT][REGION]
    environment = batch.create_compute_environment(
        compute_environment_name="environment",
        _type="UNMANAGED",
        state="ENABLED",
        compute_resources=None,
        service_role=role.arn,
    ).arn
    queue, cpu_queue = (
        batch.create_job_queue(
            queue_name=name,
            priority="1",
            schedule_policy=None,
            state="ENABLED",
            compute_env_order=[{"order": 1, "computeEnvironment": environment}],
        ).arn
        for name in ("queue", "cpu-queue")
    )
    definitions = {
        contract.ssm_job_definition(workload.name): _definition(workload)
        for workload in WORKLOADS.values()
    }
    s3_backends[ACCOUNT]["aws"].create_bucket("bucket", REGION)
    logs_backends[ACCOUNT][REGION].create_log_group("log-group", {})
    values = {
        contract.SSM_CONTRACT_VERSION: contract.CONTRACT_VERSION,
        contract.SSM_REGION: REGION,
        contract.SSM_ORCHESTRATORS: "batch",
        contract.SSM_INSTANCE_TYPE: "trn1.32xlarge",
        contract.SSM_MAX_NODES: "4",
        contract.SSM_NEURON_RELEASE: "2.28.0",
        contract.SSM_BUCKET: "bucket",
        contract.SSM_LUSTRE: contract.NO_LUSTRE,
        contract.SSM_JOB_QUEUE: queue,
        contract.SSM_CPU_JOB_QUEUE: cpu_queue,
        contract.SSM_COMPUTE_ENVIRONMENT: environment,
        contract.SSM_LOG_GROUP: "log-group",
        contract.SSM_JOB_TIME_LIMIT_HOURS: "24",
        **definitions,
    }
    vpc, group = default_group()
    values |= {contract.SSM_VPC: vpc, contract.SSM_DEFAULT_SECURITY_GROUP: group}
    for name, value in values.items():
        cli.parameter(name, value)


def default_group() -> tuple[str, str]:
    """Return the ids of the VPC and its default security group, open to itself as in EC2."""
    backend = ec2_backends[ACCOUNT][REGION]
    vpc = backend.get_default_vpc()
    group = backend.get_security_group_from_name("default", vpc_id=vpc.id)
    backend.authorize_security_group_ingress(
        group.id, "-1", None, None, [], source_groups=[{"GroupId": group.id}]
    )
    return vpc.id, group.id


def _definition(workload: Workload) -> str:
    container = {
        "image": "image",
        "command": contract.launch_command(workload.name),
        "resourceRequirements": [
            {"type": "VCPU", "value": "16"},
            {"type": "MEMORY", "value": "57344"},
        ],
    }
    node_range = {"targetNodes": "0:", "container": container}
    on_cpu = workload.hardware is Hardware.CPU
    registered = batch_backends[ACCOUNT][REGION].register_job_definition(
        def_name=workload.name,
        parameters={},
        _type="container" if on_cpu else "multinode",
        tags={},
        retry_strategy={"attempts": 3},
        container_properties=container if on_cpu else None,
        node_properties=None
        if on_cpu
        else {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": [node_range]},
        eks_properties=None,
        timeout={},
        platform_capabilities=[],
        propagate_tags=True,
    )
    return str(registered.arn)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with a program of two files, and change into it."""
    folder = tmp_path / "mine"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "model.py").write_text("WIDTH = 8\n")
    monkeypatch.chdir(folder)
    return folder
