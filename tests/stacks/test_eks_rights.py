"""The EKS stack: the rights of nodes and pods, and the parameters that the CLI finds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stacks.cluster_objects import object_of, with_cluster
from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.workloads import WORKLOADS, Hardware

TRAINIUM = [w.name for w in WORKLOADS.values() if w.hardware is Hardware.TRAINIUM]


@pytest.fixture(scope="module")
def made() -> Deployment:
    return with_cluster()


def policies(made: Deployment, role: str) -> list[str]:
    """Name the managed policies of a role."""
    found = made.only("eks", "AWS::IAM::Role", role).get("ManagedPolicyArns", [])
    return [str(arn["Fn::Join"][1][-1]).rpartition("/")[2] for arn in found]


class TestRights:
    """The rights of nodes and pods."""

    def test_a_node_has_no_rights_but_a_kubelets(self, made: Deployment) -> None:
        kubelet = ["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"]

        assert policies(made, "NodesNodeRole") == kubelet
        assert policies(made, "SystemNodeRole") == kubelet

    @pytest.mark.parametrize("name", ["batch", "eks", "both"])
    def test_nobody_gets_a_shell_on_a_node_unless_it_was_asked_for(self, name: str) -> None:
        keys = {"orchestrators": name} if name != "batch" else {}
        build = deployment if name == "batch" else with_cluster
        parts = ("batch", "eks") if name == "both" else (name,)

        for part in parts:
            assert "SSMManagedInstanceCore" not in build(**keys).text(part)
            assert "SSMManagedInstanceCore" in build(**keys, node_shell=True).text(part)

    def test_pods_of_a_workload_may_do_what_its_jobs_may_on_batch(self) -> None:
        made = with_cluster(orchestrators="both")

        def statements(part: str, start: str) -> Any:
            policy = made.only(part, "AWS::IAM::Policy", start)
            return policy["PolicyDocument"]["Statement"]

        for name in TRAINIUM:
            word = name.replace("-", "")
            assert statements("eks", f"{word}Role") == statements("batch", f"{word}JobRole")

    def test_every_workload_has_a_service_account_with_a_role(self, made: Deployment) -> None:
        accounts = {
            each["ServiceAccount"]: each["Namespace"]
            for each in made.resources("eks", "AWS::EKS::PodIdentityAssociation")
        }

        assert {f"job-{name}" for name in TRAINIUM} <= set(accounts)
        assert {accounts[f"job-{name}"] for name in TRAINIUM} == {"trainium"}

    def test_a_role_is_for_one_service_account_of_this_cluster_only(self, made: Deployment) -> None:
        role = made.only("eks", "AWS::IAM::Role", "allreduceRole")
        (statement,) = role["AssumeRolePolicyDocument"]["Statement"]

        assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
        assert statement["Action"] == ["sts:AssumeRole", "sts:TagSession"]
        (cluster,) = made.logical_ids("eks", "AWS::EKS::Cluster")
        assert statement["Condition"]["StringEquals"] == {
            "aws:RequestTag/eks-cluster-arn": {"Fn::GetAtt": [cluster, "Arn"]},
            "aws:RequestTag/kubernetes-namespace": "trainium",
            "aws:RequestTag/kubernetes-service-account": "job-all-reduce",
        }

    def test_the_nodes_agent_may_write_to_the_log_group_of_the_jobs_and_nothing_else(
        self, made: Deployment
    ) -> None:
        policy = made.only("eks", "AWS::IAM::Policy", "ContentsLogWriter")
        (statement,) = policy["PolicyDocument"]["Statement"]
        (group,) = made.logical_ids("data", "AWS::Logs::LogGroup", "Logs")

        assert statement["Action"] == ["logs:CreateLogStream", "logs:PutLogEvents"]
        assert group in statement["Resource"]["Fn::ImportValue"]

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

    def test_the_claim_is_published_where_there_is_one(self) -> None:
        assert "eks/lustre-claim" not in with_cluster(lustre_gib=0).text("eks")

    def test_the_orchestrators_are_named(self) -> None:
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

    def test_a_submitter_is_in_the_group_of_the_roles_and_has_no_policy_of_eks(self) -> None:
        made = with_cluster(eks_submitter_arns=self.SUBMITTER)
        entry = self.entries(made)[self.SUBMITTER]

        assert entry["KubernetesGroups"] == [kubernetes.SUBMITTERS]
        assert (entry["Type"], entry.get("AccessPolicies")) == ("STANDARD", None)

    def test_nobody_submits_unless_named(self, made: Deployment) -> None:
        assert self.SUBMITTER not in self.entries(made)
        assert not any(each.get("KubernetesGroups") for each in self.entries(made).values())

    def test_the_roles_are_bound_to_that_group_alone(self, made: Deployment) -> None:
        for kind in ("RoleBinding", "ClusterRoleBinding"):
            binding = object_of(made, kind, "trainium-submitter")

            assert [each["name"] for each in binding["subjects"]] == [kubernetes.SUBMITTERS]

    def test_eks_takes_the_name_of_the_group(self) -> None:
        """Names with these prefixes are EKS's own (EKS User Guide, creating access entries)."""
        reserved = ("system:", "eks:", "aws:", "amazon:", "iam:")

        assert not kubernetes.SUBMITTERS.startswith(reserved)
