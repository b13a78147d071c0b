"""Commands for runs on Batch, while the cluster beside it does not answer or is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.eks.conftest import EKS_PARAMETERS, EksDesk
from tests.jobs.fakes import client_error
from tests.support.schemas import conforms
from trainium_catalogue import contract

STATUS = {"version": 1, "workload": "llama-tiny", "run": "old", "state": "finished", "step": 20}


def unreachable(eks: EksDesk) -> str:
    """The API server's address leads nowhere, as from outside of its address ranges."""
    eks.moto_cluster().endpoint = "http://127.0.0.1:9"
    return "the cluster's API server does not answer"


def deleted(eks: EksDesk) -> str:
    """Somebody deleted the cluster; what the stack published is still there."""
    eks.desk.client("eks").delete_nodegroup(clusterName="cluster", nodegroupName="nodes")
    eks.desk.client("eks").delete_cluster(name="cluster")
    return "there is no cluster cluster (any more)"


def destroyed(eks: EksDesk) -> str:
    """`cdk destroy` of the cluster's stack, and of no other."""
    for name in EKS_PARAMETERS:
        eks.desk.client("ssm").delete_parameter(Name=contract.ssm_parameter("default", name))
    return "does not publish /trainium/default/eks/cluster (its stack was destroyed"


Silence = Callable[[], str]


@pytest.fixture(params=[unreachable, deleted, destroyed], ids=lambda how: how.__name__)
def silence(request: pytest.FixtureRequest, eks: EksDesk) -> Silence:
    """Makes the cluster silent; returns what is said of it."""
    return lambda: str(request.param(eks))


def lines_about_the_cluster(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "jobs on the cluster are not known" in line]


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "all-reduce", "--nodes", "2", "--name", "new", "--yes"),
        ("submit", "prepare", "--dataset", "mnist", "--name", "new"),
        ("status",),
        ("status", "ended"),
        ("logs", "ended"),
        ("stop", "ended"),
        ("list",),
    ],
    ids=" ".join,
)
def test_a_command_that_would_ask_it_says_so_in_one_line(
    eks: EksDesk, silence: Silence, arguments: tuple[str, ...]
) -> None:
    eks.desk.submitted("ended", status="SUCCEEDED")
    said = silence()
    result = eks.run(*arguments)

    assert result.exit_code == 0, result.stderr
    (line,) = lines_about_the_cluster(result.stderr)
    assert said in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "all-reduce", "--nodes", "2", "--yes"),
        ("submit", "prepare", "--dataset", "mnist"),
        ("status", "running"),
        ("logs", "running"),
        ("stop", "running"),
    ],
    ids=" ".join,
)
def test_a_command_that_need_not_ask_it_says_nothing(
    eks: EksDesk, silence: Silence, arguments: tuple[str, ...]
) -> None:
    eks.desk.submitted("running")
    silence()
    result = eks.run(*arguments)

    assert result.exit_code == 0, result.stderr
    assert not lines_about_the_cluster(result.stderr)


def test_a_download_needs_the_bucket_only(eks: EksDesk, silence: Silence, tmp_path: Path) -> None:
    silence()
    result = eks.run("download", "nightly", "--to", str(tmp_path))

    assert "there is no run 'nightly' to download" in result.stderr
    assert "cluster" not in result.stderr


def test_a_submission_to_it_is_refused(eks: EksDesk, silence: Silence) -> None:
    said = silence()
    result = eks.run("submit", "all-reduce", "--on", "eks", "--name", "new", "--yes")

    assert result.exit_code == 2
    assert said in result.stderr
    assert not lines_about_the_cluster(result.stderr)


@pytest.mark.parametrize("arguments", [("top",), ("scale", "--nodes", "1"), ("kubeconfig",)])
def test_commands_of_the_cluster_say_that_its_stack_is_gone(
    eks: EksDesk, arguments: tuple[str, ...]
) -> None:
    said = destroyed(eks)
    result = eks.run(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr


def test_a_run_that_may_be_on_it_is_not_called_unknown(eks: EksDesk, silence: Silence) -> None:
    said = silence()
    result = eks.run("status", "on-eks")

    assert result.exit_code == 2
    assert "refused: no run 'on-eks' on Batch, and of the cluster:" in result.stderr
    assert said in result.stderr


def test_the_bucket_tells_of_a_run_that_was_on_it(eks: EksDesk, silence: Silence) -> None:
    eks.desk.put("runs/old/results/status.json", STATUS)
    silence()
    document = eks.document("status", "old")

    conforms("jobs-status", document)
    assert (document["status"], document["training"]["step"]) == (None, 20)


def test_a_permission_that_is_missing_for_it_hides_no_run_of_batch(
    eks: EksDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.eks import cluster

    def denied(*_: object) -> None:
        raise client_error("AccessDeniedException", operation="DescribeCluster")

    eks.desk.submitted("ended", status="SUCCEEDED")
    monkeypatch.setattr(cluster, "read_endpoint", denied)
    result = eks.run("status")

    assert result.exit_code == 0, result.stderr
    (line,) = lines_about_the_cluster(result.stderr)
    assert "access denied to DescribeCluster" in line


def test_nodes_go_to_the_cluster_when_the_stack_of_batch_is_gone(eks: EksDesk) -> None:
    for name in (contract.SSM_JOB_QUEUE, contract.ssm_job_definition("all-reduce")):
        eks.desk.client("ssm").delete_parameter(Name=contract.ssm_parameter("default", name))
    document = eks.document("submit", "all-reduce", "--nodes", "2", "--dry-run")
    asked = eks.run("submit", "all-reduce", "--nodes", "2", "--on", "batch", "--dry-run")

    assert document["orchestrator"] == "eks"
    assert asked.exit_code == 2
    assert "does not publish /trainium/default/batch/job-queue" in asked.stderr
