"""The remedies of `jobs explain` fit the run, and remove nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from jobs.deployment import Deployment
from jobs.diagnosis.cause import CAUSES, fields
from jobs.diagnosis.evidence import RunEvidence
from jobs.job import Job, JobKind, Shape
from stacks.config.app_config import AppConfig
from stacks.config.refusal import ConfigError
from tests.jobs.conftest import Cli
from tests.jobs.samples import DEPLOYMENT, JOB
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.parameters.command_line import parse_values
from trainium_catalogue.workloads import WORKLOADS
from trainium_emulators.aws import quotas

KNOWN = replace(DEPLOYMENT, settings={})
BOTH = (Orchestrator.BATCH, Orchestrator.EKS)
ON_CPU = replace(JOB, workload="prepare", shape=Shape(kind=JobKind.CONTAINER, size=1))


def remedies(
    target: Deployment = KNOWN, job: Job = JOB, evidence: RunEvidence | None = None
) -> Mapping[str, str]:
    known = fields(target, job, evidence or RunEvidence())
    return {cause.name: cause.remedy.format(**known) for cause in CAUSES}


def context(line: str) -> dict[str, str]:
    """Return the context of a CDK command line; the last value of a repeated key wins."""
    words = shlex.split(line)
    given = [after for word, after in pairwise(words) if word == "-c"]
    return dict(each.split("=", 1) for each in given)


# --- deploying again -----------------------------------------------------------------------------
def test_deploy_command_has_region_and_all_settings() -> None:
    target = replace(DEPLOYMENT, region="us-east-2", settings={"bucket_name": "ours"})

    assert context(remedies(target)["image-missing"]) == {
        "trainium:instance_type": "trn1.32xlarge",
        "trainium:region": "us-east-2",
        "trainium:bucket_name": "ours",
    }


def test_deploy_command_with_unknown_settings_has_placeholder() -> None:
    lines = [each for each in remedies(DEPLOYMENT).values() if each.startswith("cdk ")]

    assert len(lines) > 10
    for line in lines:
        assert context(line)["trainium:region"] == "us-west-2"
        with pytest.raises(ConfigError, match="SETTINGS=IT-WAS-DEPLOYED-WITH is not a known key"):
            AppConfig.from_mapping(context(line))


# --- nothing is removed --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("size", "line"),
    [(4, "python -m jobs --region us-west-2 list"), (6, "max_nodes=6")],
)
def test_full_queue_does_not_shrink_deployment(size: int, line: str) -> None:
    job = replace(JOB, shape=Shape(kind=JobKind.NODES, size=size))

    assert remedies(job=job)["volcano-queue-full"].endswith(line)


def test_deployment_keeps_size_if_environment_was_shrunk() -> None:
    job = replace(JOB, shape=Shape(kind=JobKind.NODES, size=2))

    assert context(remedies(job=job)["deployment-too-small"])["trainium:max_nodes"] == "4"


@pytest.mark.parametrize("kept", ["s3://a/x,s3://b/y", '["s3://a/x", "s3://b/y"]'])
def test_existing_data_uris_are_kept(kept: str) -> None:
    target = replace(DEPLOYMENT, settings={"data_uris": kept})

    given = context(remedies(target)["access-denied"])
    assert given["trainium:data_uris"] == "s3://a/x,s3://b/y,URI"


@pytest.mark.parametrize(
    ("settings", "gib"),
    [
        ({}, "400"),
        ({"root_volume_gib": "2000"}, "4000"),
        ({"root_volume_gib": "10000"}, "16384"),
        (None, "GIB"),
    ],
)
def test_full_disk_remedy_enlarges_disk(settings: dict[str, str] | None, gib: str) -> None:
    target = replace(DEPLOYMENT, settings=settings)

    assert context(remedies(target)["disk-full"])["trainium:root_volume_gib"] == gib


def test_additional_zone_is_only_checked_if_cluster_exists() -> None:
    on_batch = remedies()["no-capacity"]
    on_both = remedies(replace(KNOWN, orchestrators=BOTH))["no-capacity"]

    assert on_batch.startswith("cdk deploy --all ")
    look = on_batch.replace("cdk deploy --all", "cdk synth --quiet")
    assert on_both == f"{look} && python -m jobs --region us-west-2 check-deploy"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "zone_ids=usw2-az4,usw2-az1"),
        ({"availability_zone_id": "usw2-az1"}, "zone_ids=usw2-az1,usw2-az4"),
        ({"availability_zone_id": "us-west-2d"}, "availability_zone_id=ANOTHER"),
        ({"placement_group": "near"}, "availability_zone_id=ANOTHER"),
    ],
)
def test_no_capacity_remedy_names_zones_that_offer_type(settings: dict[str, str], key: str) -> None:
    line = remedies(replace(DEPLOYMENT, settings=settings))["no-capacity"]

    assert line.endswith(f" -c trainium:{key}")
    if "ANOTHER" not in key:
        assert ",".join(AppConfig.from_mapping(context(line)).zone_ids) == key.partition("=")[2]


def test_no_capacity_remedy_follows_logs_if_all_zones_are_used() -> None:
    target = replace(KNOWN, settings={"zone_ids": "usw2-az4,usw2-az1"}, orchestrators=BOTH)

    assert remedies(target)["no-capacity"].endswith(f" logs {JOB.run} --follow")


def test_cordoned_node_is_not_uncordoned() -> None:
    assert remedies()["node-cordoned"] == "kubectl describe node NODE"


# --- the hardware of the run ---------------------------------------------------------------------
def test_cpu_run_has_own_queue_and_quotas() -> None:
    on_demand = replace(DEPLOYMENT, settings={"cpu_spot": "false"})
    found = remedies(on_demand, ON_CPU)

    assert "--quota-code L-1216C47A --desired-value 16 " in found["quota-too-small"]
    assert "--quota-code L-34B43A08 --desired-value 16 " in remedies(job=ON_CPU)["quota-too-small"]
    assert "--quota-code L-34B43A08 --desired-value 16 " in found["spot-quota"]
    assert "--job-queue cpu-queue " in found["queue-disabled"]
    assert "--compute-environment ENVIRONMENT " in found["environment-disabled"]


@pytest.mark.parametrize(("current", "desired"), [(128, 512), (512, 1024), (1024, 1536)])
def test_quota_request_never_decreases_quota(current: int, desired: int) -> None:
    line = remedies(evidence=RunEvidence(quotas={"L-2C3B7624": current}))["quota-too-small"]

    assert f"--quota-code L-2C3B7624 --desired-value {desired} " in line


def test_remedies_of_cpu_run_use_its_evidence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from moto.batch.models import BatchBackend

    cli.parameter(contract.SSM_SETTINGS, "{}")
    cli.run("submit", "prepare", "--dataset", "wikicorpus", "--name", "fetch")
    (sent,) = cli.jobs("fetch")
    waiting = cli.backend_job(sent["jobId"])
    described = {**waiting.describe(), "status": "RUNNABLE"}
    monkeypatch.setattr(waiting, "describe", lambda: described)
    known = BatchBackend.describe_compute_environments

    def disabled(*arguments: Any, **options: Any) -> Any:
        return [
            {**each, "computeEnvironmentName": "of-cpu", "state": "DISABLED"}
            for each in known(*arguments, **options)
        ]

    monkeypatch.setattr(BatchBackend, "describe_compute_environments", disabled)
    monkeypatch.setitem(quotas.VALUES, "L-34B43A08", 8.0)
    document = json.loads(cli.run("explain", "fetch", "--json").stdout)

    lines = {each["cause"]: each["remedy"] for each in document["causes"]}
    assert "--quota-code L-34B43A08 --desired-value 16 " in lines["quota-too-small"]
    assert "--compute-environment of-cpu " in lines["environment-disabled"]


@pytest.mark.parametrize("job", [JOB, ON_CPU, replace(JOB, workload=None)])
def test_unknown_value_is_uppercase_placeholder(job: Job) -> None:
    target = replace(DEPLOYMENT, job_queue=None, compute_environment=None)

    assert [line for line in remedies(target, job).values() if "None" in line] == []


# --- submitting again ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("workload", "command", "memory", "rate"),
    [
        ("bert", (), "--micro-batch SMALLER", "--lr SMALLER"),
        ("llama2-7b", (), "--tensor-parallel LARGER", "--lr SMALLER"),
        ("llama2-7b", ("--micro-batch", "2"), "--micro-batch SMALLER", "--lr SMALLER"),
        ("all-reduce", (), "logs nightly --node 0", "logs nightly --node 0"),
        ("program", (), "./train.py --nodes 4 --name nightly", "--nodes 4 --name nightly"),
    ],
)
def test_same_submission_is_not_repeated(
    workload: str, command: tuple[str, ...], memory: str, rate: str
) -> None:
    found = remedies(job=replace(JOB, workload=workload, command=command))

    assert found["neuron-memory"].endswith(memory)
    assert found["compiler-memory"].endswith(memory)
    assert found["diverged"].endswith(rate)
    for name in ("neuron-memory", "diverged"):
        words = shlex.split(found[name])
        if words[-1] in ("SMALLER", "LARGER"):
            assert parse_values(WORKLOADS[workload], [words[-2], "8"]).given


def test_only_programs_have_requirements() -> None:
    of_program = remedies(job=replace(JOB, workload="program"))["module-missing"]

    assert of_program.endswith(" --requirements requirements.txt")
    assert remedies()["module-missing"].startswith("cdk deploy --all ")
