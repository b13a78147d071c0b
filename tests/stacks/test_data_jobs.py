"""The data stack: jobs on ordinary instances, and the parameters of a deployment on Batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stacks.config import AppConfig
from stacks.data_jobs_stack import remembered
from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue import contract
from trainium_catalogue.instances import CPU_INSTANCE_TYPES
from trainium_catalogue.workloads import WORKLOADS, Hardware
from trainium_constructs.host_setup import cpu_host_user_data


@pytest.fixture
def made() -> Deployment:
    return deployment()


class TestContract:
    """The parameters that the CLI finds."""

    def test_every_name_of_the_contract_is_published_once(self, made: Deployment) -> None:
        names = [
            parameter["Name"]
            for part in made.templates
            for parameter in made.resources(part, "AWS::SSM::Parameter")
        ]

        assert sorted(names) == sorted(
            contract.ssm_parameter("default", name)
            for name in (
                contract.SSM_ORCHESTRATORS,
                contract.SSM_SETTINGS,
                contract.SSM_DEFAULT_SECURITY_GROUP,
                *contract.SSM_BATCH_NAMES,
                *(contract.ssm_job_definition(workload) for workload in WORKLOADS),
            )
        )

    def test_settings_are_remembered_unless_they_are_too_long(self) -> None:
        given = (("max_nodes", "8"), ("bucket_name", "x" * contract.MAX_SETTINGS_CHARACTERS))
        kept = [
            remembered(replace(AppConfig.from_mapping({}), settings=given[:length]))
            for length in range(3)
        ]

        assert kept == ["{}", '{"max_nodes": "8"}', "null"]

    def test_values_are_what_was_configured(self) -> None:
        made = deployment(deployment="team-a", max_nodes=3, job_time_limit_hours=9)
        values = {
            parameter["Name"]: parameter["Value"]
            for parameter in made.resources("data", "AWS::SSM::Parameter")
        }

        assert values["/trainium/team-a/orchestrators"] == "batch"
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
        (queue,) = made.logical_ids("batch", "AWS::Batch::JobQueue", "JobsQueue")
        (environment,) = made.logical_ids(
            "batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment"
        )
        (definition,) = made.logical_ids("batch", "AWS::Batch::JobDefinition", "allreduce")

        assert values["job-queue"] == {"Fn::GetAtt": [queue, "JobQueueArn"]}
        assert values["compute-environment"] == {
            "Fn::GetAtt": [environment, "ComputeEnvironmentArn"]
        }
        assert values["job-definitions/all-reduce"] == {"Ref": definition}


class TestCpuJobs:
    """Data and export jobs."""

    def test_each_runs_as_one_container_without_a_device(self, made: Deployment) -> None:
        for workload in WORKLOADS.values():
            if workload.hardware is not Hardware.CPU:
                continue
            definition = made.only("data", "AWS::Batch::JobDefinition", workload.name)
            container = definition["ContainerProperties"]
            environment = {pair["Name"]: pair["Value"] for pair in container["Environment"]}

            assert environment[contract.ENV_DEVICE] == "cpu"
            assert "Devices" not in container["LinuxParameters"]
            # Only root can reach the instance's role.
            assert container["User"] == "nobody"

    def test_a_job_fits_on_every_type_that_may_be_chosen(self, made: Deployment) -> None:
        container = made.only("data", "AWS::Batch::JobDefinition", "tokenize")[
            "ContainerProperties"
        ]
        needs = {need["Type"]: int(need["Value"]) for need in container["ResourceRequirements"]}

        for vcpus, memory_mib in CPU_INSTANCE_TYPES.values():
            assert needs["VCPU"] <= vcpus
            # The agent registers less than the instance has.
            assert needs["MEMORY"] <= memory_mib * 0.95

    def test_spot_is_taken_unless_it_is_declined(self) -> None:
        def kind(**keys: object) -> tuple[str, str]:
            compute = deployment(**keys).only(
                "data", "AWS::Batch::ComputeEnvironment", "CpuCompute"
            )["ComputeResources"]
            return compute["Type"], compute["AllocationStrategy"]

        assert kind() == ("SPOT", "SPOT_PRICE_CAPACITY_OPTIMIZED")
        assert kind(cpu_spot=False) == ("EC2", "BEST_FIT_PROGRESSIVE")

    def test_nothing_is_billed_while_nothing_runs(self, made: Deployment) -> None:
        compute = made.only("data", "AWS::Batch::ComputeEnvironment", "CpuCompute")

        assert compute["ComputeResources"]["MinvCpus"] == 0

    def test_its_hosts_keep_their_role_from_jobs(self, made: Deployment) -> None:
        template = made.only("data", "AWS::EC2::LaunchTemplate", "CpuCompute")
        data = template["LaunchTemplateData"]

        assert data["UserData"] == {"Fn::Base64": cpu_host_user_data()}
        assert data["MetadataOptions"]["HttpProtocolIpv6"] == "disabled"

    def test_its_instances_take_https_out_and_nothing_in(self, made: Deployment) -> None:
        group = made.only("data", "AWS::EC2::SecurityGroup", "CpuCompute")

        assert "SecurityGroupIngress" not in group
        assert {rule["FromPort"] for rule in group["SecurityGroupEgress"]} <= {80, 443}
