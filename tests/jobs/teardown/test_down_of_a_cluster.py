"""`jobs down` of a deployment with a cluster: no job on it is lost unnoticed."""

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
from tests.jobs.conftest import ACCOUNT, REGION, Cli
from tests.jobs.eks.conftest import EksCli, cluster, eks
from tests.jobs.teardown.conftest import Deployed, deploy
from tests.jobs.test_refusals import assert_refused
from tests.support.limits import scaled
from trainium_catalogue import contract
from trainium_emulators.kubernetes.volcano import VolcanoController

__all__ = ["cluster", "eks"]  # fixtures
NOWHERE = "http://127.0.0.1:9"
EKS = "trainium-default-eks"


def _work(notes: list[str]) -> UnfinishedJobs:
    aws = Aws(REGION)
    target = read_deployment(aws.ssm(), "default", region=REGION)
    return UnfinishedJobs(aws=aws, target=target, queues=[], note=notes.append)


def test_transient_cluster_failure_is_retried(eks: EksCli) -> None:
    eks.has("nightly", "sleep 600")
    eks.wait("nightly", "Running")
    eks.moto_cluster().endpoint = NOWHERE
    notes: list[str] = []

    def sleep(seconds: float) -> None:
        eks.moto_cluster().endpoint = eks.cluster.endpoint
        time.sleep(0.1)

    had = _work(notes).end_all(reason="down", limit_s=scaled(30), now=time.monotonic, sleep=sleep)

    assert had
    assert ["the cluster's jobs could not be listed or stopped: " in note for note in notes] == [
        True
    ]
    eks.wait("nightly", "Terminated")


def test_silent_cluster_is_refused_unless_deleted(eks: EksCli) -> None:
    eks.moto_cluster().endpoint = NOWHERE

    def end_all() -> bool:
        return _work([]).end_all(reason="down", limit_s=0, now=time.monotonic, sleep=time.sleep)

    with pytest.raises(Refusal, match=r"API server does not respond.* delete the cluster's stack"):
        end_all()
    eks.cli.client("eks").delete_nodegroup(clusterName="cluster", nodegroupName="nodes")
    eks.cli.client("eks").delete_cluster(name="cluster")
    assert not end_all()


def test_cluster_queue_is_closed_until_reopened(eks: EksCli) -> None:
    notes: list[str] = []
    work = _work(notes)
    submit = ("submit", "all-reduce", "--name", "late", "--nodes", "2", "--on", "eks", "--yes")
    work.close_queues(sleep=time.sleep)
    refused = eks.run(*submit)
    work.reopen_queues(sleep=time.sleep)
    taken = eks.run(*submit)

    assert refused.exit_code == 2
    assert "refused: the cluster's queue does not accept jobs" in refused.stderr
    assert notes == ["the cluster's queue accepts jobs again"]
    assert taken.exit_code == 0, taken.stderr


def test_queue_that_stays_closed_is_reported_with_command(
    eks: EksCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    work = _work(notes)
    work.close_queues(sleep=time.sleep)
    with monkeypatch.context() as patch:
        patch.setattr("jobs.eks.service._POLLS", 1)
        patch.setattr(VolcanoController, "_set_queue", lambda *_: None)
        work.reopen_queues(sleep=time.sleep)
    said = "\n".join(notes)
    work.reopen_queues(sleep=time.sleep)

    assert "the cluster's queue is not open: queue gangs was not opened within" in said
    assert "open it with: vcctl queue operate --action open --name gangs" in said


def _with_cluster(cli: Cli, folder: Path, parameters: dict[str, str]) -> tuple[Deployed, Any]:
    """Return a deployment with these parameters, and moto's object for a cluster's stack."""
    for name, value in parameters.items():
        cli.parameter(name, value)
    deployed = deploy(cli, folder, kept=True)
    topic = {"Type": "AWS::SNS::Topic", "Properties": {}}
    deployed.create(EKS, {"Resources": {"Cluster": topic}})
    (stack,) = (
        stack
        for stack in cloudformation_backends[ACCOUNT][REGION].stacks.values()
        if stack.name == EKS
    )
    # moto's CloudFormation creates no cluster.
    stack.template = stack.template.replace("AWS::SNS::Topic", "AWS::EKS::Cluster")
    return deployed, stack


OTHER_VERSION = {contract.SSM_CONTRACT_VERSION: "0"}
UNPUBLISHED = {contract.SSM_ORCHESTRATORS: "batch,eks"}
TAKEN_OUT = {contract.SSM_ORCHESTRATORS: "batch"}


@pytest.mark.parametrize(
    ("parameters", "status", "reason"),
    [
        (OTHER_VERSION, "CREATE_COMPLETE", "has contract version 0"),
        (OTHER_VERSION, "DELETE_FAILED", "has contract version 0"),
        (UNPUBLISHED, "CREATE_COMPLETE", "does not publish /trainium/default/eks/cluster"),
        (TAKEN_OUT, "CREATE_COMPLETE", "deployment 'default' has only batch"),
    ],
)
def test_unlisted_cluster_jobs_are_refused(
    cli: Cli, tmp_path: Path, parameters: dict[str, str], status: str, reason: str
) -> None:
    deployed, stack = _with_cluster(cli, tmp_path, parameters)
    stack.status = status

    assert_refused(
        deployed.down("--dry-run"),
        "the jobs on cluster arn:",
        f"cannot be listed, and would be lost with stack {EKS}: ",
        reason,
        "use the checkout that deployed it",
    )


def test_cluster_whose_stack_is_being_deleted_is_accepted(cli: Cli, tmp_path: Path) -> None:
    deployed, stack = _with_cluster(cli, tmp_path, UNPUBLISHED)
    stack.status = "DELETE_FAILED"
    result = deployed.down("--dry-run")

    assert result.exit_code == 0, result.stderr
