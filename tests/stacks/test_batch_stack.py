"""The Batch stack: the start of nodes, and the queue of jobs that wait for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stacks.synthesis import Deployment, deployment
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

    def test_every_zone_has_a_placement_group_of_its_own(self, made: Deployment) -> None:
        """A shared group with nodes still working elsewhere would keep new ones from starting."""
        groups = made.logical_ids("batch", "AWS::EC2::PlacementGroup")

        assert len(groups) == len(made.config.subnet_zones)

    def test_there_is_room_for_the_largest_job(self) -> None:
        assert compute(deployment(max_nodes=16))["MaxvCpus"] == 16 * 128

    def test_there_is_room_for_more_where_that_was_asked(self) -> None:
        assert compute(deployment(max_vcpus=1024))["MaxvCpus"] == 1024

    def test_nodes_can_be_kept_warm(self) -> None:
        made = deployment(min_nodes=2, scale_down_delay_minutes=30)

        assert compute(made)["MinvCpus"] == 256
        assert compute(made)["ScalingPolicy"] == {"MinScaleDownDelayMinutes": 30}

    def test_the_root_volume_is_encrypted_and_as_large_as_asked(self) -> None:
        (device,) = launch(deployment(root_volume_gib=500))["BlockDeviceMappings"]

        assert device["Ebs"] == {
            "VolumeType": "gp3",
            "VolumeSize": 500,
            "Throughput": 500,
            "Encrypted": True,
            "DeleteOnTermination": True,
        }


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


def test_nothing_but_batch_cancels_a_job_that_waits(made: Deployment) -> None:
    """A look at the queue cannot tell a stuck job from its turn: listings omit array children."""
    for template in made.templates.values():
        assert "batch:CancelJob" not in json.dumps(template)
        assert "batch:TerminateJob" not in json.dumps(template)
