"""The Batch stack: the start of nodes, and the queue of jobs that wait for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.deployment import BatchZones
from tests.stacks.synthesis import Deployment, deployment
from tests.trainium_constructs.test_notifications import statements
from trainium_catalogue.typed_json import read_json
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


@pytest.fixture
def chosen() -> Deployment:
    """A deployment with other values than the defaults."""
    return deployment(
        ami_id="ami-12345678",
        max_vcpus=1024,
        min_nodes=2,
        scale_down_delay_minutes=30,
        root_volume_gib=500,
        runnable_time_limit_minutes=20,
        placement_group="near",
    )


class TestNodes:
    """The compute environment and launch template of nodes."""

    def test_no_template_asks_for_a_moving_image(self, made: Deployment) -> None:
        assert "recommended" not in made.text("batch")
        assert "/latest/" not in made.text("batch")

    def test_host_image_of_the_users_is_used_as_it_is(self, chosen: Deployment) -> None:
        (configuration,) = compute(chosen)["Ec2Configuration"]

        assert configuration["ImageIdOverride"] == "ami-12345678"
        assert "readonly OWN_IMAGE=yes" in str(launch(chosen))

    def test_every_zone_has_a_placement_group_of_its_own(self, made: Deployment) -> None:
        """A shared group with nodes running elsewhere would prevent new ones from starting."""
        groups = made.logical_ids("batch", "AWS::EC2::PlacementGroup")

        assert len(groups) == len(made.config.subnet_zones)

    def test_numbers_of_nodes_are_as_asked(self, made: Deployment, chosen: Deployment) -> None:
        assert (compute(made)["MinvCpus"], compute(made)["MaxvCpus"]) == (0, 4 * 128)
        assert (compute(chosen)["MinvCpus"], compute(chosen)["MaxvCpus"]) == (256, 1024)
        assert compute(chosen)["ScalingPolicy"] == {"MinScaleDownDelayMinutes": 30}

    def test_root_volume_is_encrypted_and_as_large_as_asked(self, chosen: Deployment) -> None:
        (device,) = launch(chosen)["BlockDeviceMappings"]

        assert device["Ebs"] == {
            "VolumeType": "gp3",
            "VolumeSize": 500,
            "Throughput": 500,
            "Encrypted": True,
            "DeleteOnTermination": True,
        }


class TestReservedCapacity:
    """Capacity bought in advance."""

    @pytest.mark.parametrize(
        ("key", "market", "type_"),
        [
            ("capacity_reservation_id", None, None),
            ("capacity_block_id", {"MarketType": "capacity-block"}, "trn1.32xlarge"),
        ],
    )
    def test_it_is_targeted_and_keeps_its_own_place(
        self, key: str, market: dict[str, str] | None, type_: str | None
    ) -> None:
        made = deployment(**{key: RESERVATION})
        data = launch(made)

        assert data["CapacityReservationSpecification"] == {
            "CapacityReservationTarget": {"CapacityReservationId": RESERVATION}
        }
        assert (data.get("InstanceMarketOptions"), data.get("InstanceType")) == (market, type_)
        assert made.resources("batch", "AWS::EC2::PlacementGroup") == []
        assert "PlacementGroup" not in compute(made)

    @pytest.mark.parametrize("is_reserved", [False, True])
    def test_existing_placement_group_is_used(self, is_reserved: bool, chosen: Deployment) -> None:
        reserved = {"placement_group": "near", "capacity_reservation_id": RESERVATION}
        made = deployment(**reserved) if is_reserved else chosen

        assert made.resources("batch", "AWS::EC2::PlacementGroup") == []
        assert compute(made)["PlacementGroup"] == "near"


class TestQueue:
    """The queue, and limits on waiting in it."""

    def test_job_that_cannot_start_is_cancelled_whatever_the_reason(
        self, chosen: Deployment
    ) -> None:
        queue = chosen.only("batch", "AWS::Batch::JobQueue", "JobsQueue")

        assert queue["JobStateTimeLimitActions"] == [
            {"Action": "CANCEL", "State": "RUNNABLE", "Reason": reason, "MaxTimeSeconds": 1200}
            for reason in BLOCKED_REASONS
        ]


def test_only_batch_cancels_waiting_job(made: Deployment) -> None:
    """A look at the queue cannot tell a stuck job from its turn: listings omit array children."""
    for template in made.templates.values():
        assert "batch:CancelJob" not in json.dumps(template)
        assert "batch:TerminateJob" not in json.dumps(template)


class TestZones:
    """Several zones: each launches its own nodes, and a function moves jobs between them."""

    @pytest.fixture
    def several(self) -> Deployment:
        return deployment(zone_ids="usw2-az1,usw2-az4", min_nodes=1, max_nodes=2)

    def test_every_zone_has_an_environment_in_its_subnet_and_a_queue_of_that_alone(
        self, several: Deployment
    ) -> None:
        environments = several.logical_ids("batch", "AWS::Batch::ComputeEnvironment")
        first, second = (
            several.templates["batch"]["Resources"][each]["Properties"]["ComputeResources"]
            for each in environments
        )
        queues = several.resources("batch", "AWS::Batch::JobQueue")

        assert {key for key in first if first[key] != second[key]} == {
            "InstanceRole", "MinvCpus", "PlacementGroup", "Subnets"
        }  # fmt: skip
        assert "PrivateUsw2Az1" in str(first["Subnets"])
        assert "PrivateUsw2Az4" in str(second["Subnets"])
        assert (first["MinvCpus"], second["MinvCpus"]) == (128, 0)
        assert [queue["ComputeEnvironmentOrder"] for queue in queues] == [
            [{"Order": 1, "ComputeEnvironment": {"Fn::GetAtt": [each, "ComputeEnvironmentArn"]}}]
            for each in environments
        ]

    def test_zones_are_published_in_their_order(self, several: Deployment) -> None:
        value = several.only("batch", "AWS::SSM::Parameter", "Contractbatchzones")["Value"]
        text = "".join(
            part if isinstance(part, str) else part["Fn::GetAtt"][0]
            for part in value["Fn::Join"][1]
        )
        found = read_json(text, BatchZones).zones

        assert [each.zone for each in found] == ["usw2-az1", "usw2-az4"]
        queues = several.logical_ids("batch", "AWS::Batch::JobQueue")
        assert [each.job_queue for each in found] == queues

    def test_function_may_end_and_submit_jobs_of_the_deployment_and_nothing_else(
        self, several: Deployment
    ) -> None:
        own = {
            name: resource
            for name, resource in several.templates["batch"]["Resources"].items()
            if name.startswith("ZoneMoves")
        }
        reads = ("Describe", "Get", "List")
        may = {
            action: statement
            for action, statement in statements(own)
            if not action.partition(":")[2].startswith(reads)
        }

        assert set(may) == {
            "batch:CancelJob", "batch:SubmitJob", "batch:TagResource",
            "logs:CreateLogStream", "logs:PutLogEvents", "s3:PutObject",
        }  # fmt: skip
        ours = {"StringEquals": {"aws:ResourceTag/trainium:deployment": "default"}}
        assert may["batch:CancelJob"]["Condition"] == ours
        _, second = several.logical_ids("batch", "AWS::Batch::JobQueue")
        definitions = several.logical_ids("batch", "AWS::Batch::JobDefinition")
        submits = [
            {"Fn::GetAtt": [second, "JobQueueArn"]},
            *({"Ref": each} for each in definitions),
        ]
        assert sorted(may["batch:SubmitJob"]["Resource"], key=str) == sorted(submits, key=str)
        assert str(may["s3:PutObject"]["Resource"]).endswith("/runs/*/submission.json']]}")

    def test_one_zone_has_no_function(self) -> None:
        made = deployment(zone_ids="usw2-az1")

        assert made.resources("batch", "AWS::Lambda::Function") == []
        assert len(made.resources("batch", "AWS::Batch::JobQueue")) == 1
