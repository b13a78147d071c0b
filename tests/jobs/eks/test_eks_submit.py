"""`submit --on eks`: what is sent, what is refused, and who gives the nodes up."""

from __future__ import annotations

import time

import pytest

from jobs.eks.request import LaunchSpec
from tests.jobs.eks.conftest import EksDesk
from tests.support.limits import scaled
from tests.support.schemas import conforms
from trainium_catalogue import contract
from trainium_catalogue.instances import find_instance_type
from trainium_emulators.aws import quotas

SWEEP = ("submit", "all-reduce", "--on", "eks")


def test_a_dry_run_has_a_document(eks: EksDesk) -> None:
    document = eks.document(*SWEEP, "--nodes", "2", "--dry-run")

    conforms("jobs-submit", document)
    assert document["orchestrator"] == "eks"
    assert document["payload"]["apiVersion"] == "batch.volcano.sh/v1alpha1"


def test_a_job_is_created_once_under_the_name_that_is_said(eks: EksDesk) -> None:
    document = eks.document(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes")
    again = eks.document(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes")

    assert eks.job(document["job_id"]) is not None
    assert again["action"] == "already-running"
    assert again["job_id"] == document["job_id"]


def test_a_run_that_is_on_batch_is_not_submitted_on_eks_as_well(eks: EksDesk) -> None:
    job_id = eks.desk.submitted("nightly")
    document = eks.document(*SWEEP, "--nodes", "2", "--name", "nightly", "--yes")

    assert document["action"] == "already-running"
    assert document["job_id"] == job_id


def test_a_run_that_goes_on_with_other_parameters_is_not_joined(eks: EksDesk) -> None:
    eks.run(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes", "--iterations", "5")
    result = eks.run(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes", "--iterations", "6")

    assert result.exit_code == 2
    assert "with --iterations 5, not 6" in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(
            (*SWEEP, "--nodes", "3"),
            "the cluster has 2 ready nodes of trn1.32xlarge; get them with "
            "`python -m jobs --region us-west-2 scale --nodes 3`",
            id="nodes are missing",
        ),
        pytest.param(
            (*SWEEP, "--nodes", "2", "--time-limit", "13"), "over the cap", id="time limit"
        ),
        pytest.param((*SWEEP, "--name", "a" * 64), "at most 63 characters", id="long run name"),
        pytest.param((*SWEEP, "--name", "a-"), "ends with a letter or digit; 'a' would", id="end"),
        pytest.param((*SWEEP, "--release"), "add --follow", id="release without follow"),
        pytest.param(
            ("submit", "all-reduce", "--release"), "--release: Batch ends idle", id="release"
        ),
        pytest.param(
            ("submit", "prepare", "--dataset", "wikicorpus", "--on", "eks"),
            "which Batch starts on every deployment; leave --on out",
            id="cpu",
        ),
    ],
)
def test_refusals(eks: EksDesk, words: tuple[str, ...], says: str) -> None:
    result = eks.run(*words, "--yes")

    assert result.exit_code == 2
    assert says in result.stderr


def test_without_a_cluster_eks_is_refused_with_what_to_deploy(eks: EksDesk) -> None:
    eks.desk.parameter(contract.SSM_ORCHESTRATORS, "batch")
    result = eks.run(*SWEEP)

    assert "deployment 'default' has batch only" in result.stderr
    assert "-c trainium:orchestrators=batch,eks" in result.stderr


def test_with_both_batch_is_taken(eks: EksDesk) -> None:
    document = eks.document("submit", "all-reduce", "--nodes", "2", "--dry-run")

    assert document["orchestrator"] == "batch"


def test_the_only_orchestrator_is_taken(eks: EksDesk) -> None:
    eks.desk.parameter(contract.SSM_ORCHESTRATORS, "eks")
    for name in (contract.SSM_JOB_QUEUE, contract.SSM_COMPUTE_ENVIRONMENT):
        eks.desk.client("ssm").delete_parameter(Name=contract.ssm_parameter("default", name))
    document = eks.document("submit", "all-reduce", "--nodes", "2", "--dry-run")

    assert document["orchestrator"] == "eks"


def test_training_knows_the_job_that_compiles_for_it(eks: EksDesk) -> None:
    manifest = {"num_tokens": 10**9, "vocab_size": 100}
    eks.desk.put("datasets/text/manifest.json", manifest)
    words = ("submit", "llama-tiny", "--on", "eks", "--name", "run", "--dataset", "text")
    document = eks.document(*words, "--compile", "--yes")
    job = eks.job(document["job_id"])
    assert job is not None
    environment = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["env"]

    assert {"name": contract.ENV_AFTER_JOB, "value": document["compile"]["job_id"]} in environment
    assert job["metadata"]["annotations"]["trainium/after"] == document["compile"]["job_id"]


def test_release_gives_the_nodes_up_when_the_job_has_ended(eks: EksDesk, scaler: list[str]) -> None:
    eks.node_group().scaling_config = {"minSize": 0, "desiredSize": 2, "maxSize": 4}
    eks.fails_preflight("sweep", attempts=3)
    result = eks.run(*SWEEP, "--nodes", "2", "--name", "sweep", "--yes", "--follow", "--release")

    assert "FAILED: no attempts left" in result.stderr, result.stderr
    assert "the node scaler removes all nodes" in result.stderr, result.stderr
    deadline = time.monotonic() + scaled(20)
    while eks.node_names() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert eks.node_group().scaling_config["desiredSize"] == 0


def test_whoever_leaves_before_the_release_is_told_that_nodes_cost(
    eks: EksDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jobs.output.screen.watch", interrupted)
    result = eks.run(*SWEEP, "--nodes", "1", "--name", "sweep", "--yes", "--follow", "--release")

    assert result.exit_code == 130
    assert (
        "the nodes stay, and cost; when the job has ended: python -m jobs --region us-west-2 "
        in (result.stderr)
    )


def test_the_kubelet_waits_longer_than_the_launcher(eks: EksDesk) -> None:
    document = eks.document(*SWEEP, "--nodes", "1", "--dry-run", "--stop-grace-s", "600")
    pod = document["payload"]["spec"]["tasks"][0]["template"]["spec"]

    assert pod["terminationGracePeriodSeconds"] == 630


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("nightly", "nightly"),
        ("My_Run", "my-run"),
        ("7b", "run-7b"),
        ("a" * 60, "a" * 36),
        ("a" * 35 + "-b", "a" * 35),
    ],
)
def test_a_run_becomes_a_name_that_a_service_can_have(run: str, name: str) -> None:
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


def test_nodes_that_the_cluster_would_add_need_the_accounts_quota(
    eks: EksDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(quotas.VALUES, "L-2C3B7624", 384)
    eks.desk.parameter(contract.SSM_SETTINGS, "{}")
    refused = eks.run(*SWEEP, "--nodes", "4", "--name", "wide", "--yes", "--scale")

    assert refused.exit_code == 2
    assert "L-2C3B7624" in refused.stderr and "or submit with --nodes 3" in refused.stderr
    assert eks.run(*SWEEP, "--nodes", "2", "--name", "narrow", "--yes").exit_code == 0
