"""Commands for runs on Batch while the cluster does not respond or is gone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.eks.conftest import EKS_PARAMETERS, EksCli
from tests.jobs.fakes import client_error
from tests.support.schemas import conforms
from trainium_catalogue import contract

STATUS = {"version": 1, "workload": "llama-tiny", "run": "old", "state": "finished", "step": 20}


def unreachable(eks: EksCli) -> str:
    """Make the API server unreachable, as from outside its address ranges."""
    eks.moto_cluster().endpoint = "http://127.0.0.1:9"
    return "the cluster's API server does not respond"


def deleted(eks: EksCli) -> str:
    """Delete the cluster, but keep the stack's published parameters."""
    eks.cli.client("eks").delete_nodegroup(clusterName="cluster", nodegroupName="nodes")
    eks.cli.client("eks").delete_cluster(name="cluster")
    return "cluster cluster does not exist"


def destroyed(eks: EksCli) -> str:
    """Destroy only the cluster's stack, as `cdk destroy` does."""
    for name in EKS_PARAMETERS:
        eks.cli.client("ssm").delete_parameter(Name=contract.ssm_parameter("default", name))
    return "does not publish /trainium/default/eks/cluster (its stack was destroyed"


Silence = Callable[[], str]


WAYS = (unreachable, deleted, destroyed)


def by_turns(*commands: tuple[str, ...]) -> list[Any]:
    """Pair each command with one kind of silent cluster, in turn."""
    return [
        pytest.param(way, words, id=f"{way.__name__}: {' '.join(words)}")
        for way, words in zip(cycle(WAYS), commands, strict=False)
    ]


@pytest.fixture
def silence(request: pytest.FixtureRequest, eks: EksCli) -> Silence:
    """A function that makes the cluster silent, unreachable by default; returns the message."""
    return lambda: str(getattr(request, "param", unreachable)(eks))


def lines_about_the_cluster(stderr: str) -> list[str]:
    about = "the cluster's jobs could not be listed"
    return [line for line in stderr.splitlines() if about in line]


@pytest.mark.parametrize(
    ("silence", "arguments"),
    by_turns(
        ("submit", "all-reduce", "--nodes", "2", "--name", "new", "--yes"),
        ("submit", "prepare", "--dataset", "mnist", "--name", "new"),
        ("status",),
        ("status", "ended"),
        ("logs", "ended"),
        ("stop", "ended"),
        ("list",),
    ),
    indirect=["silence"],
)
def test_command_that_needs_cluster_warns_once(
    eks: EksCli, silence: Silence, arguments: tuple[str, ...]
) -> None:
    eks.cli.submitted("ended", status="SUCCEEDED")
    said = silence()
    result = eks.run(*arguments)

    assert result.exit_code == 0, result.stderr
    (line,) = lines_about_the_cluster(result.stderr)
    assert said in line


@pytest.mark.parametrize(
    ("silence", "arguments"),
    by_turns(
        ("submit", "all-reduce", "--nodes", "2", "--yes"),
        ("submit", "prepare", "--dataset", "mnist"),
        ("status", "running"),
        ("logs", "running"),
        ("stop", "running"),
    ),
    indirect=["silence"],
)
def test_command_that_does_not_need_cluster_is_silent(
    eks: EksCli, silence: Silence, arguments: tuple[str, ...]
) -> None:
    eks.cli.submitted("running")
    silence()
    result = eks.run(*arguments)

    assert result.exit_code == 0, result.stderr
    assert not lines_about_the_cluster(result.stderr)


def test_download_needs_only_bucket(eks: EksCli, silence: Silence, tmp_path: Path) -> None:
    silence()
    result = eks.run("download", "nightly", "--to", str(tmp_path))

    assert "there is no run 'nightly' to download" in result.stderr
    assert "cluster" not in result.stderr


def test_submission_to_silent_cluster_is_refused(eks: EksCli, silence: Silence) -> None:
    said = silence()
    result = eks.run("submit", "all-reduce", "--on", "eks", "--name", "new", "--yes")

    assert result.exit_code == 2
    assert said in result.stderr
    assert not lines_about_the_cluster(result.stderr)


@pytest.mark.parametrize("arguments", [("top",), ("scale", "--nodes", "1"), ("kubeconfig",)])
def test_cluster_commands_report_missing_stack(eks: EksCli, arguments: tuple[str, ...]) -> None:
    said = destroyed(eks)
    result = eks.run(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr


def test_run_possibly_on_cluster_is_not_reported_unknown(eks: EksCli, silence: Silence) -> None:
    said = silence()
    result = eks.run("status", "on-eks")

    assert result.exit_code == 2
    assert "refused: no run 'on-eks' on Batch, and the cluster could not be read:" in result.stderr
    assert said in result.stderr


def test_status_of_cluster_run_is_read_from_bucket(eks: EksCli, silence: Silence) -> None:
    eks.cli.put("runs/old/results/status.json", STATUS)
    silence()
    document = eks.document("status", "old")

    conforms("jobs-status", document)
    assert (document["status"], document["training"]["step"]) == (None, 20)


def test_missing_cluster_permission_hides_no_batch_run(
    eks: EksCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.eks import cluster

    def denied(*_: object) -> None:
        raise client_error("AccessDeniedException", operation="DescribeCluster")

    eks.cli.submitted("ended", status="SUCCEEDED")
    monkeypatch.setattr(cluster, "read_endpoint", denied)
    result = eks.run("status")

    assert result.exit_code == 0, result.stderr
    (line,) = lines_about_the_cluster(result.stderr)
    assert "access denied to DescribeCluster" in line


def test_eks_is_used_if_batch_stack_is_missing(eks: EksCli) -> None:
    for name in (contract.SSM_JOB_QUEUE, contract.ssm_job_definition("all-reduce")):
        eks.cli.client("ssm").delete_parameter(Name=contract.ssm_parameter("default", name))
    document = eks.document("submit", "all-reduce", "--nodes", "2", "--dry-run")
    asked = eks.run("submit", "all-reduce", "--nodes", "2", "--on", "batch", "--dry-run")

    assert document["orchestrator"] == "eks"
    assert asked.exit_code == 2
    assert "does not publish /trainium/default/batch/job-queue" in asked.stderr
