"""The data stack: jobs on ordinary instances, and the parameters of a deployment on Batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stacks.config import AppConfig
from stacks.data_jobs_stack import serialized_settings
from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue import contract
from trainium_catalogue.instances import CPU_INSTANCE_TYPES
from trainium_catalogue.workloads import WORKLOADS


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

    def test_cap_is_published_and_a_budget_counts_the_deployments_tag(self) -> None:
        made = deployment(
            deployment="team-a",
            max_cost_per_job_usd=500,
            monthly_budget_usd=9000,
            notify_email="team@example.com",
        )
        parameters = {each["Name"]: each for each in made.resources("data", "AWS::SSM::Parameter")}
        (budget,) = made.resources("data", "AWS::Budgets::Budget")
        informed = [
            (each["Notification"]["NotificationType"], each["Notification"]["Threshold"])
            for each in budget["NotificationsWithSubscribers"]
        ]

        assert parameters["/trainium/team-a/max-cost-per-job-usd"]["Value"] == "500"
        assert budget["Budget"]["BudgetLimit"] == {"Amount": 9000, "Unit": "USD"}
        assert budget["Budget"]["CostFilters"] == {
            "TagKeyValue": [f"user:{contract.TAG_DEPLOYMENT}$team-a"]
        }
        types = budget["Budget"]["CostTypes"]
        assert types == {"IncludeCredit": False, "IncludeRefund": False}
        assert informed == [("ACTUAL", 80), ("ACTUAL", 100), ("FORECASTED", 100)]
        output = made.templates["data"]["Outputs"]["MonthlyBudget"]["Value"]
        assert f"activates the cost allocation tag {contract.TAG_DEPLOYMENT} in Billing" in output

    @pytest.mark.parametrize(
        ("key", "how", "address"),
        [
            ("notify_email", "EMAIL", "team@example.com"),
            ("notify_topic_arn", "SNS", "arn:aws:sns:us-west-2:111122223333:runs"),
        ],
    )
    def test_budget_notifies_the_address_or_the_topic(
        self, key: str, how: str, address: str
    ) -> None:
        made = deployment(monthly_budget_usd=9000, **{key: address})
        (budget,) = made.resources("data", "AWS::Budgets::Budget")

        for informed in budget["NotificationsWithSubscribers"]:
            assert informed["Subscribers"] == [{"SubscriptionType": how, "Address": address}]

    def test_settings_are_remembered_unless_they_are_too_long(self) -> None:
        given = (("max_nodes", "8"), ("bucket_name", "x" * contract.MAX_SETTINGS_CHARACTERS))
        kept = [
            serialized_settings(replace(AppConfig.from_mapping({}), settings=given[:length]))
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


class TestCpuJobs:
    """Data and export jobs."""

    def test_job_fits_on_every_type_that_may_be_chosen(self, made: Deployment) -> None:
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
