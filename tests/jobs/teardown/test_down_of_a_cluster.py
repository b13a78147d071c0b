"""`jobs down` of a deployment with a cluster: no job on it is lost unseen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from moto.cloudformation.models import cloudformation_backends

from jobs.aws import Aws
from jobs.deployment import read_deployment
from jobs.errors import Refusal
from jobs.teardown.work import UnfinishedJobs
from tests.jobs.conftest import ACCOUNT, REGION, Desk
from tests.jobs.eks.conftest import EksDesk, cluster, eks
from tests.jobs.teardown.conftest import Deployed, deploy
from tests.jobs.test_refusals import assert_refused
from tests.support.limits import scaled
from trainium_catalogue import contract

__all__ = ["cluster", "eks"]  # fixtures
NOWHERE = "http://127.0.0.1:9"
EKS = "trainium-default-eks"


def _work(notes: list[str]) -> UnfinishedJobs:
    aws = Aws(REGION)
    target = read_deployment(aws.ssm(), "default", region=REGION)
    return UnfinishedJobs(aws=aws, target=target, queues=[], note=notes.append)


def test_a_cluster_that_does_not_answer_once_is_asked_again(eks: EksDesk) -> None:
    eks.has("nightly", "sleep 600")
    eks.wait("nightly", "Running")
    eks.moto_cluster().endpoint = NOWHERE
    notes: list[str] = []

    def sleep(seconds: float) -> None:
        eks.moto_cluster().endpoint = eks.cluster.endpoint
        time.sleep(0.1)

    had = _work(notes).end_all(reason="down", limit_s=scaled(30), now=time.monotonic, sleep=sleep)

    assert had
    assert ["jobs on the cluster are not known: " in note for note in notes] == [True]
    eks.wait("nightly", "Terminated")


def test_a_cluster_that_stays_silent_is_refused_unless_it_is_gone(eks: EksDesk) -> None:
    eks.moto_cluster().endpoint = NOWHERE

    def end_all() -> bool:
        return _work([]).end_all(reason="down", limit_s=0, now=time.monotonic, sleep=time.sleep)

    with pytest.raises(Refusal, match=r"API server does not answer.* delete the cluster's stack"):
        end_all()
    eks.desk.client("eks").delete_nodegroup(clusterName="cluster", nodegroupName="nodes")
    eks.desk.client("eks").delete_cluster(name="cluster")
    assert not end_all()


def _with_cluster(desk: Desk, folder: Path, parameters: dict[str, str]) -> tuple[Deployed, Any]:
    """A deployment that publishes these parameters, and moto's own object of a cluster's stack."""
    for name, value in parameters.items():
        desk.parameter(name, value)
    deployed = deploy(desk, folder, kept=True)
    topic = {"Type": "AWS::SNS::Topic", "Properties": {}}
    deployed.create(EKS, {"Resources": {"Cluster": topic}})
    (stack,) = (
        stack
        for stack in cloudformation_backends[ACCOUNT][REGION].stacks.values()
        if stack.name == EKS
    )
    # moto's CloudFormation makes no cluster.
    stack.template = stack.template.replace("AWS::SNS::Topic", "AWS::EKS::Cluster")
    return deployed, stack


OTHER_VERSION = {contract.SSM_CONTRACT_VERSION: "0"}
UNPUBLISHED = {contract.SSM_ORCHESTRATORS: "batch,eks"}
TAKEN_OUT = {contract.SSM_ORCHESTRATORS: "batch"}


@pytest.mark.parametrize(
    ("parameters", "status", "reason"),
    [
        (OTHER_VERSION, "CREATE_COMPLETE", "speaks contract version 0"),
        (OTHER_VERSION, "DELETE_FAILED", "speaks contract version 0"),
        (UNPUBLISHED, "CREATE_COMPLETE", "does not publish /trainium/default/eks/cluster"),
        (TAKEN_OUT, "CREATE_COMPLETE", "deployment 'default' has batch only"),
    ],
)
def test_a_cluster_whose_jobs_cannot_be_found_is_refused(
    desk: Desk, tmp_path: Path, parameters: dict[str, str], status: str, reason: str
) -> None:
    deployed, stack = _with_cluster(desk, tmp_path, parameters)
    stack.status = status

    assert_refused(
        deployed.down("--dry-run"),
        "the jobs on cluster arn:",
        f"cannot be found, and would be lost with stack {EKS}: ",
        reason,
        "use the checkout that deployed it",
    )


def test_a_cluster_whose_stack_is_being_deleted_is_not_refused(desk: Desk, tmp_path: Path) -> None:
    deployed, stack = _with_cluster(desk, tmp_path, UNPUBLISHED)
    stack.status = "DELETE_FAILED"
    result = deployed.down("--dry-run")

    assert result.exit_code == 0, result.stderr
