"""The Batch stack: how nodes start, how jobs wait, run, end and start again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue import contract
from trainium_catalogue.exit_codes import EXIT_CODES
from trainium_catalogue.workloads import WORKLOADS
from trainium_constructs.compute import BLOCKED_REASONS

RESERVATION = "cr-0123456789abcdef0"


def compute(made: Deployment) -> dict[str, Any]:
    resources: dict[str, Any] = made.only("batch", "AWS::Batch::ComputeEnvironment")[
        "ComputeResources"
    ]
    return resources


def launch(made: Deployment) -> dict[str, Any]:
    data: dict[str, Any] = made.only("batch", "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    return data


def job(made: Deployment) -> dict[str, Any]:
    return made.only("batch", "AWS::Batch::JobDefinition")


def node(made: Deployment) -> dict[str, Any]:
    (node_range,) = job(made)["NodeProperties"]["NodeRangeProperties"]
    container: dict[str, Any] = node_range["Container"]
    return container


@pytest.fixture
def made() -> Deployment:
    return deployment()


class TestNodes:
    """How Batch starts a node."""

    def test_nodes_run_on_demand(self, made: Deployment) -> None:
        assert compute(made)["Type"] == "EC2"

    def test_the_newest_launch_template_is_used_by_number(self, made: Deployment) -> None:
        (logical_id,) = made.logical_ids("batch", "AWS::EC2::LaunchTemplate")

        assert compute(made)["LaunchTemplate"] == {
            "LaunchTemplateId": {"Ref": logical_id},
            "Version": {"Fn::GetAtt": [logical_id, "LatestVersionNumber"]},
        }

    def test_a_change_of_the_template_updates_the_environment_in_place(
        self, made: Deployment
    ) -> None:
        environment = made.only("batch", "AWS::Batch::ComputeEnvironment")

        assert environment["ReplaceComputeEnvironment"] is False
        assert compute(made)["AllocationStrategy"] == "BEST_FIT_PROGRESSIVE"

    def test_running_jobs_survive_an_update(self, made: Deployment) -> None:
        environment = made.only("batch", "AWS::Batch::ComputeEnvironment")

        assert environment["UpdatePolicy"]["TerminateJobsOnUpdate"] is False

    def test_the_host_image_is_the_dated_one_of_the_release(self, made: Deployment) -> None:
        (configuration,) = compute(made)["Ec2Configuration"]
        parameter = made.templates["batch"]["Parameters"][configuration["ImageIdOverride"]["Ref"]]

        assert configuration["ImageType"] == "ECS_AL2023"
        assert parameter == {
            "Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>",
            "Default": made.config.release.ecs_ami_ssm_parameter,
        }

    def test_no_template_asks_for_a_moving_image(self, made: Deployment) -> None:
        assert "recommended" not in made.text("batch")
        assert "/latest/" not in made.text("batch")

    def test_a_host_image_of_the_users_is_used_as_it_is(self) -> None:
        (configuration,) = compute(deployment(ami_id="ami-12345678"))["Ec2Configuration"]

        assert configuration["ImageIdOverride"] == "ami-12345678"

    def test_nodes_are_close_to_each_other(self, made: Deployment) -> None:
        (logical_id,) = made.logical_ids("batch", "AWS::EC2::PlacementGroup")

        assert made.only("batch", "AWS::EC2::PlacementGroup")["Strategy"] == "cluster"
        assert logical_id in str(compute(made)["PlacementGroup"])

    def test_there_is_room_for_the_largest_job(self) -> None:
        assert compute(deployment(max_nodes=16))["MaxvCpus"] == 16 * 128

    def test_there_is_room_for_more_where_that_was_asked(self) -> None:
        assert compute(deployment(max_vcpus=1024))["MaxvCpus"] == 1024

    def test_nothing_runs_without_a_job(self, made: Deployment) -> None:
        assert compute(made)["MinvCpus"] == 0

    def test_nodes_can_be_kept_warm(self) -> None:
        made = deployment(min_nodes=2, scale_down_delay_minutes=30)

        assert compute(made)["MinvCpus"] == 256
        assert compute(made)["ScalingPolicy"] == {"MinScaleDownDelayMinutes": 30}

    def test_instances_carry_the_deployments_tag(self, made: Deployment) -> None:
        assert compute(made)["Tags"][contract.TAG_DEPLOYMENT] == "default"

    def test_metadata_needs_a_session_token(self, made: Deployment) -> None:
        assert launch(made)["MetadataOptions"]["HttpTokens"] == "required"

    def test_the_root_volume_is_encrypted_and_as_large_as_asked(self) -> None:
        (device,) = launch(deployment(root_volume_gib=500))["BlockDeviceMappings"]

        assert device["Ebs"] == {
            "VolumeType": "gp3",
            "VolumeSize": 500,
            "Encrypted": True,
            "DeleteOnTermination": True,
        }

    def test_no_interface_outlives_its_node(self, made: Deployment) -> None:
        assert all(nic["DeleteOnTermination"] for nic in launch(made)["NetworkInterfaces"])

    def test_the_template_leaves_to_batch_what_batch_decides(self, made: Deployment) -> None:
        assert not {"InstanceType", "IamInstanceProfile", "ImageId", "Placement"} & set(
            launch(made)
        )
        assert not any("SubnetId" in nic for nic in launch(made)["NetworkInterfaces"])


class TestReservedCapacity:
    """Capacity that was bought beforehand."""

    def test_a_reservation_is_targeted(self) -> None:
        data = launch(deployment(capacity_reservation_id=RESERVATION))

        assert data["CapacityReservationSpecification"] == {
            "CapacityReservationTarget": {"CapacityReservationId": RESERVATION}
        }
        assert "InstanceMarketOptions" not in data

    def test_a_capacity_block_names_its_market_and_type(self) -> None:
        data = launch(deployment(capacity_block_id=RESERVATION))

        assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
        assert data["InstanceType"] == "trn1.32xlarge"
        assert data["CapacityReservationSpecification"] == {
            "CapacityReservationTarget": {"CapacityReservationId": RESERVATION}
        }

    @pytest.mark.parametrize("key", ["capacity_reservation_id", "capacity_block_id"])
    def test_reserved_capacity_keeps_its_own_place(self, key: str) -> None:
        made = deployment(**{key: RESERVATION})

        assert made.resources("batch", "AWS::EC2::PlacementGroup") == []
        assert "PlacementGroup" not in compute(made)


class TestQueue:
    """How jobs wait."""

    def test_a_job_that_cannot_start_is_cancelled_whatever_the_reason(self) -> None:
        queue = deployment(runnable_time_limit_minutes=20).only("batch", "AWS::Batch::JobQueue")

        assert queue["JobStateTimeLimitActions"] == [
            {"Action": "CANCEL", "State": "RUNNABLE", "Reason": reason, "MaxTimeSeconds": 1200}
            for reason in BLOCKED_REASONS
        ]

    def test_the_queue_leads_to_the_environment(self, made: Deployment) -> None:
        (environment,) = made.logical_ids("batch", "AWS::Batch::ComputeEnvironment")

        assert made.only("batch", "AWS::Batch::JobQueue")["ComputeEnvironmentOrder"] == [
            {
                "Order": 1,
                "ComputeEnvironment": {"Fn::GetAtt": [environment, "ComputeEnvironmentArn"]},
            }
        ]


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
