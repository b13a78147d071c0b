"""The Batch stack: the start of nodes, and the queue of jobs that wait for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue import contract
from trainium_constructs.batch.compute import BLOCKED_REASONS

RESERVATION = "cr-0123456789abcdef0"


def compute(made: Deployment) -> dict[str, Any]:
    resources: dict[str, Any] = made.only(
        "batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment"
    )["ComputeResources"]
    return resources


def launch(made: Deployment) -> dict[str, Any]:
    data: dict[str, Any] = made.only("batch", "AWS::EC2::LaunchTemplate", "Node")[
        "LaunchTemplateData"
    ]
    return data


@pytest.fixture
def made() -> Deployment:
    return deployment()


class TestNodes:
    """The compute environment and launch template of nodes."""

    def test_nodes_run_on_demand(self, made: Deployment) -> None:
        assert compute(made)["Type"] == "EC2"

    def test_the_newest_launch_template_is_used_by_number(self, made: Deployment) -> None:
        (logical_id,) = made.logical_ids("batch", "AWS::EC2::LaunchTemplate", "Node")

        assert compute(made)["LaunchTemplate"] == {
            "LaunchTemplateId": {"Ref": logical_id},
            "Version": {"Fn::GetAtt": [logical_id, "LatestVersionNumber"]},
        }

    def test_a_change_of_the_template_updates_the_environment_in_place(
        self, made: Deployment
    ) -> None:
        environment = made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")

        assert environment["ReplaceComputeEnvironment"] is False
        assert compute(made)["AllocationStrategy"] == "BEST_FIT_PROGRESSIVE"

    def test_running_jobs_survive_an_update(self, made: Deployment) -> None:
        environment = made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")

        # Batch's maximum in minutes, 5 days (API reference, UpdatePolicy); its default is 30.
        assert environment["UpdatePolicy"] == {
            "TerminateJobsOnUpdate": False,
            "JobExecutionTimeoutMinutes": 7200,
        }

    def test_so_do_cpu_jobs(self, made: Deployment) -> None:
        environment = made.only("data", "AWS::Batch::ComputeEnvironment")

        assert environment["UpdatePolicy"]["JobExecutionTimeoutMinutes"] == 7200

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
        own = deployment(ami_id="ami-12345678")
        (configuration,) = compute(own)["Ec2Configuration"]

        assert configuration["ImageIdOverride"] == "ami-12345678"
        assert "readonly OWN_IMAGE=yes" in str(
            own.only("batch", "AWS::EC2::LaunchTemplate", "Node")
        )

    def test_nodes_are_close_to_each_other(self, made: Deployment) -> None:
        groups = made.resources("batch", "AWS::EC2::PlacementGroup")
        (here,) = made.logical_ids(
            "batch", "AWS::EC2::PlacementGroup", "ComputePlacementGroupUsw2Az4"
        )

        assert {group["Strategy"] for group in groups} == {"cluster"}
        assert here in str(compute(made)["PlacementGroup"])

    def test_every_zone_has_a_placement_group_of_its_own(self, made: Deployment) -> None:
        """A shared group with nodes still working elsewhere would keep new ones from starting."""
        groups = made.logical_ids("batch", "AWS::EC2::PlacementGroup")

        assert len(groups) == len(made.config.subnet_zones)

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
            "Throughput": 500,
            "Encrypted": True,
            "DeleteOnTermination": True,
        }

    def test_no_interface_outlives_its_node(self, made: Deployment) -> None:
        assert all(nic["DeleteOnTermination"] for nic in launch(made)["NetworkInterfaces"])

    def test_a_host_that_powers_itself_off_is_gone(self, made: Deployment) -> None:
        # EC2's default is to stop it, which keeps its volume billed.
        assert launch(made)["InstanceInitiatedShutdownBehavior"] == "terminate"

    def test_the_template_leaves_to_batch_what_batch_decides(self, made: Deployment) -> None:
        assert not {"InstanceType", "IamInstanceProfile", "ImageId", "Placement"} & set(
            launch(made)
        )
        assert not any("SubnetId" in nic for nic in launch(made)["NetworkInterfaces"])


class TestReservedCapacity:
    """Capacity bought in advance."""

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

    @pytest.mark.parametrize("reservation", [{}, {"capacity_reservation_id": RESERVATION}])
    def test_an_existing_placement_group_is_used(self, reservation: dict[str, str]) -> None:
        made = deployment(placement_group="near", **reservation)

        assert made.resources("batch", "AWS::EC2::PlacementGroup") == []
        assert compute(made)["PlacementGroup"] == "near"


class TestQueue:
    """The queue, and limits on waiting in it."""

    def test_a_job_that_cannot_start_is_cancelled_whatever_the_reason(self) -> None:
        queue = deployment(runnable_time_limit_minutes=20).only(
            "batch", "AWS::Batch::JobQueue", "JobsQueue"
        )

        assert queue["JobStateTimeLimitActions"] == [
            {"Action": "CANCEL", "State": "RUNNABLE", "Reason": reason, "MaxTimeSeconds": 1200}
            for reason in BLOCKED_REASONS
        ]

    def test_the_queue_leads_to_the_environment(self, made: Deployment) -> None:
        (environment,) = made.logical_ids(
            "batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment"
        )

        assert made.only("batch", "AWS::Batch::JobQueue", "JobsQueue")[
            "ComputeEnvironmentOrder"
        ] == [
            {
                "Order": 1,
                "ComputeEnvironment": {"Fn::GetAtt": [environment, "ComputeEnvironmentArn"]},
            }
        ]


def test_nothing_but_batch_cancels_a_job_that_waits(made: Deployment) -> None:
    """A look at the queue cannot tell a stuck job from its turn: listings omit array children."""
    for template in made.templates.values():
        assert "batch:CancelJob" not in json.dumps(template)
        assert "batch:TerminateJob" not in json.dumps(template)
