"""The Batch stack: running, ending and retrying jobs, and their rights."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode, ExitCodeInfo
from trainium_catalogue.workloads import WORKLOADS, Hardware
from trainium_emulators.aws.batch.gang import AttemptEnd, retries

RESERVATION = "cr-0123456789abcdef0"

# Messages of jobs that failed to start on AWS: first Batch's status reason, second that of the
# container. Batch user guide, automated job retries; ECS developer guide, stopped task errors;
# nextflow issues 2730 and 5099; amazon-ecs-agent issues 1440 and 2312; Airflow's tests of its ECS
# executor (the network interface).
NEVER_STARTED = [
    ("Task failed to start", "CannotPullContainerError: context canceled"),
    ("Task failed to start", "DockerTimeoutError: Could not transition to started; timed out after "
     "waiting 3m0s"),
    ("Task failed to start", "CannotInspectContainerError: Could not transition to inspecting; "
     "timed out after waiting 30s"),
    ("Timeout waiting for network interface provisioning to complete.", ""),
    ("ResourceInitializationError: failed to validate logger args", ""),
]  # fmt: skip


def job(made: Deployment) -> dict[str, Any]:
    return made.only("batch", "AWS::Batch::JobDefinition", "allreduce")


def is_retried(
    made: Deployment, *, exit_code: int | None = None, status_reason: str = "", reason: str = ""
) -> bool:
    """Evaluate a definition's rules with the emulator, which follows Batch's user guide."""
    strategy = job(made)["RetryStrategy"]
    rules = [
        {key[0].lower() + key[1:]: value for key, value in rule.items()}
        for rule in strategy["EvaluateOnExit"]
    ]
    end = AttemptEnd(exit_code=exit_code, status_reason=status_reason, reason=reason)
    return retries({"attempts": strategy["Attempts"], "evaluateOnExit": rules}, end, attempt=1)


def node(made: Deployment) -> dict[str, Any]:
    (node_range,) = job(made)["NodeProperties"]["NodeRangeProperties"]
    container: dict[str, Any] = node_range["Container"]
    return container


def container_of(definition: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any]
    if definition["Type"] == "multinode":
        container = definition["NodeProperties"]["NodeRangeProperties"][0]["Container"]
    else:
        container = definition["ContainerProperties"]
    return container


RESULTS = ["/runs/*/logs/*", "/runs/*/metrics/*", "/runs/*/results/*"]


def statements(made: Deployment, workload: str) -> list[dict[str, Any]]:
    """List the policy statements of the role of a workload's jobs."""
    (policy,) = (
        policy
        for part in ("data", "batch")
        for policy in made.resources(part, "AWS::IAM::Policy")
        if policy["PolicyName"].startswith(f"{workload}JobRole")
    )
    found: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return found


def rights(made: Deployment, workload: str) -> dict[str, list[str]]:
    """Map each action to the keys of the deployment's bucket on which it is allowed."""
    found: dict[str, set[str]] = {}
    for statement in statements(made, workload):
        if statement["Action"] == "s3:ListBucket":
            continue
        actions = statement["Action"]
        resources = statement["Resource"]
        for action in [actions] if isinstance(actions, str) else actions:
            keys = {
                resource["Fn::Join"][1][1]
                for resource in (resources if isinstance(resources, list) else [resources])
            }
            found.setdefault(action, set()).update(keys)
    return {action: sorted(keys) for action, keys in found.items()}


@pytest.fixture
def made() -> Deployment:
    return deployment()


class TestJobDefinition:
    """The container, retries and end of a job."""

    def test_every_workload_has_one(self, made: Deployment) -> None:
        commands = {
            part: [
                container_of(definition)["Command"]
                for definition in made.resources(part, "AWS::Batch::JobDefinition")
            ]
            for part in ("data", "batch")
        }

        assert commands == {
            part: [
                ["python", "-m", "training.launch", workload.name]
                for workload in WORKLOADS.values()
                if workload.hardware is hardware
            ]
            for part, hardware in (("data", Hardware.CPU), ("batch", Hardware.TRAINIUM))
        }

    def test_default_number_of_nodes_can_run(self) -> None:
        assert job(deployment(max_nodes=1))["NodeProperties"]["NumNodes"] == 1

    @pytest.mark.parametrize(("code", "end"), EXIT_CODES.items(), ids=str)
    def test_what_is_retried_follows_from_the_table_of_exit_codes(
        self, made: Deployment, code: ExitCode, end: ExitCodeInfo
    ) -> None:
        assert is_retried(made, exit_code=int(code)) is end.retry

    def test_lost_host_is_retried_even_if_its_launcher_was_stopped(self, made: Deployment) -> None:
        lost = "Host EC2 (instance i-0123456789abcdef0) terminated."

        assert is_retried(made, status_reason=lost)
        assert is_retried(made, exit_code=143, status_reason=lost)

    @pytest.mark.parametrize(("status_reason", "reason"), NEVER_STARTED)
    def test_main_node_that_never_started_is_retried(
        self, made: Deployment, status_reason: str, reason: str
    ) -> None:
        assert is_retried(made, status_reason=status_reason, reason=reason)

    def test_logs_go_to_a_group_that_forgets(self) -> None:
        made = deployment(log_retention_days=7)
        (group,) = made.logical_ids("data", "AWS::Logs::LogGroup")
        logs = node(made)["LogConfiguration"]

        assert made.only("data", "AWS::Logs::LogGroup")["RetentionInDays"] == 7
        assert group in str(logs["Options"].pop("awslogs-group"))
        assert logs == {
            "LogDriver": "awslogs",
            "Options": {"awslogs-region": "us-west-2", "awslogs-stream-prefix": "node"},
        }


class TestRights:
    """The rights of a job."""

    def test_all_reduce_may_write_its_results_and_nothing_else(self, made: Deployment) -> None:
        assert rights(made, "allreduce") == {
            "s3:AbortMultipartUpload": RESULTS,
            "s3:PutObject": RESULTS,
        }

    def test_program_writes_its_snapshots_and_results_and_nothing_else(
        self, made: Deployment
    ) -> None:
        found = rights(made, "program")

        assert set(found["s3:PutObject"]) == {"/runs/*/snapshots/*", *RESULTS}
        assert found["s3:DeleteObject"] == ["/runs/*/snapshots/*"]

    def test_program_reads_code_and_inputs_but_no_other_run(self, made: Deployment) -> None:
        assert rights(made, "program")["s3:GetObject"] == [
            "/corpora/*",
            "/datasets/*",
            "/export/*",
            "/runs/*/code/*",
            "/runs/*/program.json*",
            "/runs/*/results/status.json*",
            "/runs/*/snapshots/*",
            "/tokenizers/*",
            "/wheels/*",
        ]

    def test_data_elsewhere_is_open_to_who_has_a_use_for_it(self) -> None:
        made = deployment(data_uris="s3://their-bucket/text")

        outside = {
            name
            for name in WORKLOADS
            if "their-bucket" in str(statements(made, name.replace("-", "")))
        }

        training = {"llama2-7b", "llama-small", "llama-tiny", "bert", "bert-tiny", "pretrain"}
        assert outside == {*training, "program", "tokenize", "export"}


def test_type_without_efa_runs_a_multi_node_job_of_one_node() -> None:
    made = deployment(instance_type="trn1.2xlarge", region="us-west-2")
    definition = made.only("batch", "AWS::Batch::JobDefinition", "verify")

    assert definition["NodeProperties"]["NumNodes"] == 1
    devices = container_of(definition)["LinuxParameters"]["Devices"]
    assert [device["HostPath"] for device in devices] == ["/dev/neuron0"]
