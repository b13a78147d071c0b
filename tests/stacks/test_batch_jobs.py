"""The Batch stack: how a job runs, ends and starts again, what it may do, what is published."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue import contract
from trainium_catalogue.exit_codes import EXIT_CODES
from trainium_catalogue.workloads import WORKLOADS

RESERVATION = "cr-0123456789abcdef0"


def job(made: Deployment) -> dict[str, Any]:
    return made.only("batch", "AWS::Batch::JobDefinition")


def node(made: Deployment) -> dict[str, Any]:
    (node_range,) = job(made)["NodeProperties"]["NodeRangeProperties"]
    container: dict[str, Any] = node_range["Container"]
    return container


@pytest.fixture
def made() -> Deployment:
    return deployment()


class TestJobDefinition:
    """How a job runs and ends."""

    def test_every_workload_has_one(self, made: Deployment) -> None:
        commands = [
            definition["NodeProperties"]["NodeRangeProperties"][0]["Container"]["Command"]
            for definition in made.resources("batch", "AWS::Batch::JobDefinition")
        ]

        assert commands == [["python", "-m", "training.launch", name] for name in WORKLOADS]

    def test_a_submission_may_choose_its_number_of_nodes(self, made: Deployment) -> None:
        (node_range,) = job(made)["NodeProperties"]["NodeRangeProperties"]

        assert node_range["TargetNodes"] == "0:"

    def test_the_default_number_of_nodes_can_run(self) -> None:
        assert job(deployment(max_nodes=1))["NodeProperties"]["NumNodes"] == 1

    def test_what_is_retried_follows_from_the_table_of_exit_codes(self, made: Deployment) -> None:
        rules = job(made)["RetryStrategy"]["EvaluateOnExit"]

        retried = {rule["OnExitCode"] for rule in rules if "OnExitCode" in rule}

        assert retried == {str(int(code)) for code, end in EXIT_CODES.items() if end.retry}

    def test_a_lost_host_is_retried(self, made: Deployment) -> None:
        assert job(made)["RetryStrategy"]["EvaluateOnExit"][0] == {
            "Action": "RETRY",
            "OnStatusReason": "Host EC2*",
        }

    def test_everything_else_ends_the_job(self, made: Deployment) -> None:
        rules = job(made)["RetryStrategy"]["EvaluateOnExit"]

        assert rules[-1] == {"Action": "EXIT", "OnReason": "*"}
        assert {rule["Action"] for rule in rules[:-1]} == {"RETRY"}

    def test_batch_evaluates_every_rule(self, made: Deployment) -> None:
        assert len(job(made)["RetryStrategy"]["EvaluateOnExit"]) <= 5

    def test_the_workloads_time_limit_applies(self, made: Deployment) -> None:
        assert job(made)["Timeout"] == {"AttemptDurationSeconds": 3600}

    def test_memory_may_be_pinned_without_limit(self, made: Deployment) -> None:
        limits = {limit["Name"]: limit for limit in node(made)["Ulimits"]}

        assert (limits["memlock"]["SoftLimit"], limits["memlock"]["HardLimit"]) == (-1, -1)
        assert limits["nofile"]["SoftLimit"] >= 65_535

    def test_orphans_are_reaped(self, made: Deployment) -> None:
        assert node(made)["LinuxParameters"]["InitProcessEnabled"] is True

    def test_containers_have_no_privileges(self, made: Deployment) -> None:
        assert "Privileged" not in node(made)

    def test_a_node_knows_its_deployment(self, made: Deployment) -> None:
        environment = {pair["Name"]: pair["Value"] for pair in node(made)["Environment"]}

        assert environment[contract.ENV_DEPLOYMENT] == "default"
        assert environment[contract.ENV_INSTANCE_TYPE] == "trn1.32xlarge"
        assert environment[contract.ENV_NEURON_RELEASE] == "2.28.0"
        assert "DataBucket" in environment[contract.ENV_BUCKET]["Fn::ImportValue"]
        assert environment["AWS_REGION"] == "us-west-2"

    def test_no_name_is_taken_from_batch(self, made: Deployment) -> None:
        assert not [p for p in node(made)["Environment"] if p["Name"].startswith("AWS_BATCH")]

    def test_logs_go_to_a_group_that_forgets(self) -> None:
        made = deployment(log_retention_days=7)
        (group,) = made.logical_ids("batch", "AWS::Logs::LogGroup")

        assert made.only("batch", "AWS::Logs::LogGroup")["RetentionInDays"] == 7
        assert node(made)["LogConfiguration"] == {
            "LogDriver": "awslogs",
            "Options": {
                "awslogs-group": {"Ref": group},
                "awslogs-region": "us-west-2",
                "awslogs-stream-prefix": "node",
            },
        }

    def test_jobs_carry_the_deployments_tag(self, made: Deployment) -> None:
        assert job(made)["Tags"][contract.TAG_DEPLOYMENT] == "default"
        assert job(made)["PropagateTags"] is True


class TestRights:
    """What a job may do."""

    def test_all_reduce_may_write_its_results_and_nothing_else(self, made: Deployment) -> None:
        (policy,) = (
            policy
            for policy in made.resources("batch", "AWS::IAM::Policy")
            if "JobRole" in policy["PolicyName"]
        )
        (statement,) = policy["PolicyDocument"]["Statement"]
        prefixes = sorted(resource["Fn::Join"][1][1] for resource in statement["Resource"])

        assert statement["Action"] == ["s3:AbortMultipartUpload", "s3:PutObject"]
        assert prefixes == ["/runs/*/logs/*", "/runs/*/metrics/*", "/runs/*/results/*"]

    def test_the_job_has_a_role_of_its_own(self, made: Deployment) -> None:
        container = node(made)

        assert container["JobRoleArn"] != container["ExecutionRoleArn"]

    def test_no_policy_allows_every_action(self, made: Deployment) -> None:
        actions = [
            action
            for policy in made.resources("batch", "AWS::IAM::Policy")
            for statement in policy["PolicyDocument"]["Statement"]
            for action in (
                [statement["Action"]]
                if isinstance(statement["Action"], str)
                else statement["Action"]
            )
        ]

        assert not [action for action in actions if "*" in action]


class TestContract:
    """What the helper finds."""

    def test_every_name_of_the_contract_is_published_once(self, made: Deployment) -> None:
        names = [
            parameter["Name"]
            for part in made.templates
            for parameter in made.resources(part, "AWS::SSM::Parameter")
        ]

        assert sorted(names) == sorted(
            contract.ssm_parameter("default", name)
            for name in (
                *contract.SSM_BATCH_NAMES,
                *(contract.ssm_job_definition(workload) for workload in WORKLOADS),
            )
        )

    def test_values_are_what_was_configured(self) -> None:
        made = deployment(deployment="team-a", max_nodes=3, job_time_limit_hours=9)
        values = {
            parameter["Name"]: parameter["Value"]
            for parameter in made.resources("batch", "AWS::SSM::Parameter")
        }

        assert values["/trainium/team-a/contract-version"] == contract.CONTRACT_VERSION
        assert values["/trainium/team-a/instance-type"] == "trn1.32xlarge"
        assert values["/trainium/team-a/max-nodes"] == "3"
        assert values["/trainium/team-a/neuron-release"] == "2.28.0"
        assert values["/trainium/team-a/batch/job-time-limit-hours"] == "9"

    def test_arns_come_from_the_resources_themselves(self, made: Deployment) -> None:
        values = {
            parameter["Name"].removeprefix("/trainium/default/batch/"): parameter["Value"]
            for parameter in made.resources("batch", "AWS::SSM::Parameter")
        }
        (queue,) = made.logical_ids("batch", "AWS::Batch::JobQueue")
        (environment,) = made.logical_ids("batch", "AWS::Batch::ComputeEnvironment")
        (definition,) = made.logical_ids("batch", "AWS::Batch::JobDefinition")

        assert values["job-queue"] == {"Fn::GetAtt": [queue, "JobQueueArn"]}
        assert values["compute-environment"] == {
            "Fn::GetAtt": [environment, "ComputeEnvironmentArn"]
        }
        assert values["job-definitions/all-reduce"] == {"Ref": definition}
