"""The EKS stack: the rights of nodes and pods, and the parameters that the CLI finds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stacks.cluster_objects import with_cluster
from tests.stacks.synthesis import Deployment
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.workloads import WORKLOADS, Hardware

TRAINIUM = [w.name for w in WORKLOADS.values() if w.hardware is Hardware.TRAINIUM]


@pytest.fixture(scope="module")
def made() -> Deployment:
    return with_cluster()


class TestRights:
    """The rights of nodes and pods."""

    def test_nobody_gets_a_shell_on_a_node_unless_it_was_asked_for(self) -> None:
        usual, asked = (
            with_cluster(orchestrators="both", node_shell=shell) for shell in (False, True)
        )

        for part in ("batch", "eks"):
            assert "SSMManagedInstanceCore" not in usual.text(part)
            assert "SSMManagedInstanceCore" in asked.text(part)

    def test_pods_of_a_workload_may_do_what_its_jobs_may_on_batch(self) -> None:
        made = with_cluster(orchestrators="both")

        def statements(part: str, start: str) -> Any:
            policy = made.only(part, "AWS::IAM::Policy", start)
            return policy["PolicyDocument"]["Statement"]

        for name in TRAINIUM:
            word = name.replace("-", "")
            assert statements("eks", f"{word}Role") == statements("batch", f"{word}JobRole")

    def test_nothing_in_the_cluster_may_replace_a_node(self, made: Deployment) -> None:
        assert "SetInstanceHealth" not in made.text("eks")


class TestContract:
    """The parameters that the CLI finds."""

    @pytest.mark.parametrize("orchestrators", ["eks", "both"])
    def test_every_name_of_the_contract_is_published_once(self, orchestrators: str) -> None:
        made = with_cluster(orchestrators=orchestrators)
        names = [
            parameter["Name"]
            for part in made.templates
            for parameter in made.resources(part, "AWS::SSM::Parameter")
            if "Name" in parameter
        ]
        on_nodes = {contract.SSM_JOB_QUEUE, contract.SSM_COMPUTE_ENVIRONMENT}
        of_batch = on_nodes if orchestrators == "both" else set()
        jobs = [w for w in WORKLOADS.values() if of_batch or w.hardware is Hardware.CPU]

        assert sorted(names) == sorted(
            contract.ssm_parameter("default", name)
            for name in (
                contract.SSM_ORCHESTRATORS,
                contract.SSM_SETTINGS,
                contract.SSM_DEFAULT_SECURITY_GROUP,
                *(set(contract.SSM_BATCH_NAMES) - on_nodes | of_batch),
                *contract.SSM_EKS_NAMES,
                contract.SSM_EKS_LUSTRE_CLAIM,
                contract.SSM_EKS_IDLE_MINUTES,
                *(contract.ssm_job_definition(workload.name) for workload in jobs),
            )
        )

    def test_claim_is_published_where_there_is_one(self) -> None:
        assert "eks/lustre-claim" not in with_cluster(lustre_gib=0).text("eks")

    def test_orchestrators_are_named(self) -> None:
        made = with_cluster(orchestrators="both")
        values = {p.get("Name"): p["Value"] for p in made.resources("data", "AWS::SSM::Parameter")}

        assert values["/trainium/default/orchestrators"] == "batch,eks"


class TestSubmitters:
    """People who run jobs in the cluster without being administrators."""

    SUBMITTER = "arn:aws:iam::111122223333:role/submitter"

    def entries(self, made: Deployment) -> dict[str, dict[str, Any]]:
        """Collect people's access entries, by principal."""
        return {
            each["PrincipalArn"]: each
            for each in made.resources("eks", "AWS::EKS::AccessEntry")
            if isinstance(each["PrincipalArn"], str)
        }

    def test_submitter_is_in_the_group_of_the_roles_and_has_no_policy_of_eks(self) -> None:
        made = with_cluster(eks_submitter_arns=self.SUBMITTER)
        entry = self.entries(made)[self.SUBMITTER]

        assert entry["KubernetesGroups"] == [kubernetes.SUBMITTERS]
        assert (entry["Type"], entry.get("AccessPolicies")) == ("STANDARD", None)
