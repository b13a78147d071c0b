"""`submit --on eks`: payloads, refusals and the release of nodes."""

from __future__ import annotations

import time

import pytest

from jobs.eks.request import LaunchSpec
from tests.jobs.eks.conftest import EksCli
from tests.jobs.test_refusals import assert_refused
from tests.support.limits import scaled
from tests.support.schemas import conforms
from trainium_catalogue import contract
from trainium_catalogue.instances import find_instance_type
from trainium_emulators.aws import quotas

SWEEP = ("submit", "all-reduce", "--on", "eks")


def test_dry_run_prints_document(eks: EksCli) -> None:
    document = eks.document(*SWEEP, "--nodes", "2", "--dry-run")

    conforms("jobs-submit", document)
    assert document["orchestrator"] == "eks"
    assert document["payload"]["apiVersion"] == "batch.volcano.sh/v1alpha1"


def test_job_is_created_once_under_printed_name(eks: EksCli) -> None:
    document = eks.document(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes")
    again = eks.document(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes")

    assert eks.job(document["job_id"]) is not None
    assert again["action"] == "already-running"
    assert again["job_id"] == document["job_id"]


def test_run_on_batch_is_not_submitted_on_eks(eks: EksCli) -> None:
    job_id = eks.cli.submitted("nightly")
    document = eks.document(*SWEEP, "--nodes", "2", "--name", "nightly", "--yes")

    assert document["action"] == "already-running"
    assert document["job_id"] == job_id


def test_active_run_with_other_parameters_is_not_joined(eks: EksCli) -> None:
    eks.run(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes", "--iterations", "5")
    assert_refused(
        eks.run(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes", "--iterations", "6"),
        "with --iterations 5, not 6",
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(
            (*SWEEP, "--nodes", "3"),
            "the cluster has 2 ready nodes of trn1.32xlarge; add them with "
            "`python -m jobs --region us-west-2 scale --nodes 3`, or submit with --scale",
            id="nodes are missing",
        ),
        pytest.param(
            (*SWEEP, "--nodes", "2", "--time-limit", "13"), "over the cap", id="time limit"
        ),
        pytest.param((*SWEEP, "--name", "a" * 64), "at most 63 characters", id="long run name"),
        pytest.param(
            (*SWEEP, "--name", "a-"), "ending with a letter or digit; for example 'a'", id="end"
        ),
        pytest.param((*SWEEP, "--release"), "add --follow", id="release without follow"),
        pytest.param(
            ("submit", "all-reduce", "--release"), "--release: Batch terminates idle", id="release"
        ),
        pytest.param(
            ("submit", "prepare", "--dataset", "wikicorpus", "--on", "eks"),
            "which Batch launches in every deployment; omit --on",
            id="cpu",
        ),
    ],
)
def test_submission_is_refused(eks: EksCli, words: tuple[str, ...], says: str) -> None:
    result = eks.run(*words, "--yes")

    assert result.exit_code == 2
    assert says in result.stderr


def test_eks_without_cluster_is_refused_with_setting(eks: EksCli) -> None:
    eks.cli.parameter(contract.SSM_ORCHESTRATORS, "batch")
    result = eks.run(*SWEEP)

    assert "deployment 'default' has only batch" in result.stderr
    assert "-c trainium:orchestrators=batch,eks" in result.stderr


def test_batch_is_default_with_both_orchestrators(eks: EksCli) -> None:
    document = eks.document("submit", "all-reduce", "--nodes", "2", "--dry-run")

    assert document["orchestrator"] == "batch"


def test_only_orchestrator_is_default(eks: EksCli) -> None:
    eks.cli.parameter(contract.SSM_ORCHESTRATORS, "eks")
    for name in (contract.SSM_JOB_QUEUE, contract.SSM_COMPUTE_ENVIRONMENT):
        eks.cli.client("ssm").delete_parameter(Name=contract.ssm_parameter("default", name))
    document = eks.document("submit", "all-reduce", "--nodes", "2", "--dry-run")

    assert document["orchestrator"] == "eks"


def test_training_job_knows_its_compile_job(eks: EksCli) -> None:
    manifest = {"num_tokens": 10**9, "vocab_size": 100}
    eks.cli.put("datasets/text/manifest.json", manifest)
    words = ("submit", "llama-tiny", "--on", "eks", "--name", "run", "--dataset", "text")
    document = eks.document(*words, "--compile", "--yes")
    job = eks.job(document["job_id"])
    assert job is not None
    environment = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["env"]

    assert {"name": contract.ENV_AFTER_JOB, "value": document["compile"]["job_id"]} in environment
    assert job["metadata"]["annotations"]["trainium/after"] == document["compile"]["job_id"]


# `make rehearse` removes idle nodes.
@pytest.mark.full
def test_release_removes_nodes_after_job(eks: EksCli, scaler: list[str]) -> None:
    eks.node_group().scaling_config = {"minSize": 0, "desiredSize": 2, "maxSize": 4}
    eks.fails_preflight("sweep", attempts=3)
    result = eks.run(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes", "--follow", "--release")

    assert "FAILED: no attempts left" in result.stderr, result.stderr
    assert "the node scaler removes all nodes" in result.stderr, result.stderr
    deadline = time.monotonic() + scaled(20)
    while eks.node_names() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert eks.node_group().scaling_config["desiredSize"] == 0


def test_leaving_before_release_warns_of_node_cost(
    eks: EksCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jobs.output.screen.watch", interrupted)
    result = eks.run(*SWEEP, "--nodes", "1", "--name", "sweep", "--yes", "--follow", "--release")

    assert result.exit_code == 130
    assert (
        "the nodes keep running, and are billed; remove them after the job with: python -m jobs "
        "--region us-west-2 " in (result.stderr)
    )


def test_kubelet_grace_period_exceeds_launchers(eks: EksCli) -> None:
    document = eks.document(*SWEEP, "--nodes", "1", "--dry-run", "--stop-grace-s", "600")
    pod = document["payload"]["spec"]["tasks"][0]["template"]["spec"]

    assert pod["terminationGracePeriodSeconds"] == 630


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("My_Run", "my-run"),
        ("7b", "run-7b"),
        ("a" * 35 + "-b", "a" * 35),
    ],
)
def test_run_name_becomes_valid_service_name(run: str, name: str) -> None:
    spec = LaunchSpec(
        run=run,
        workload="all-reduce",
        command=("true",),
        num_nodes=1,
        time_limit_s=60,
        deployment="default",
        region="us-west-2",
        bucket="bucket",
        neuron_release="2.28.0",
        instance_type=find_instance_type("trn1.32xlarge"),
        image="image",
        lustre_claim=None,
    )

    assert spec.name == name


def test_nodes_to_add_are_checked_against_quota(
    eks: EksCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(quotas.VALUES, "L-2C3B7624", 384)
    eks.cli.parameter(contract.SSM_SETTINGS, "{}")
    refused = eks.run(*SWEEP, "--nodes", "4", "--name", "wide", "--yes", "--scale")

    assert refused.exit_code == 2
    assert "L-2C3B7624" in refused.stderr and "or submit with --nodes 3" in refused.stderr
    assert eks.run(*SWEEP, "--nodes", "2", "--name", "narrow", "--yes").exit_code == 0
