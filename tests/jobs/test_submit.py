"""`jobs submit` against a Batch API on loopback."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

import pytest

from tests.jobs.conftest import Cli
from tests.jobs.programs import node_overrides
from tests.jobs.test_refusals import assert_refused
from trainium_catalogue import contract

NIGHTLY = ("submit", "all-reduce", "--nodes", "4", "--name", "nightly")


def payload(cli: Cli, *arguments: str) -> dict[str, Any]:
    result = cli.run(*NIGHTLY, "--dry-run", *arguments)
    assert result.exit_code == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_job_is_tagged_with_deployment_run_and_workload(cli: Cli) -> None:
    cli.run(*NIGHTLY, "--yes")

    assert cli.jobs("nightly")[0]["tags"] == {
        contract.TAG_DEPLOYMENT: "default",
        contract.TAG_RUN: "nightly",
        contract.TAG_WORKLOAD: "all-reduce",
    }


def test_dry_run_prints_payload_and_submits_nothing(cli: Cli) -> None:
    sent = payload(cli)

    assert sent["nodeOverrides"]["numNodes"] == 4
    assert cli.jobs("nightly") == []


def test_parameters_become_launcher_flags(cli: Cli) -> None:
    sent = payload(cli, "--set", "max-bytes=4096", "--set", "peer_timeout_s=5")

    assert node_overrides(sent)["command"] == [
        *contract.launch_command("all-reduce"), "--max-bytes", "4096", "--peer-timeout-s", "5.0",
    ]  # fmt: skip


def test_every_node_gets_run_name(cli: Cli) -> None:
    environment = node_overrides(payload(cli))["environment"]

    assert environment == [{"name": contract.ENV_RUN, "value": "nightly"}]


def test_default_time_limit_is_capped_by_deployment(cli: Cli) -> None:
    cli.parameter(contract.SSM_JOB_TIME_LIMIT_HOURS, "0.5")

    assert payload(cli)["timeout"]["attemptDurationSeconds"] == 1800


@pytest.mark.parametrize("status", ["SUBMITTED", "RUNNING"])
def test_active_run_is_not_submitted_again(cli: Cli, status: str) -> None:
    job_id = cli.submitted("nightly", status=status, num_nodes=4)

    result = cli.run(*NIGHTLY, "--yes")

    assert result.exit_code == 0, result.stderr
    assert f"run nightly is already {status}, job {job_id}: nothing was submitted" in result.stderr
    assert len(cli.jobs("nightly")) == 1


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (("all-reduce", "--nodes", "3"), "on 4 nodes, not 3"),
        (("all-reduce", "--nodes", "4", "--iterations", "7"), "with --iterations 20, not 7"),
        (("llama-tiny", "--nodes", "4", "--dataset", "x"), "it runs all-reduce, not llama-tiny"),
    ],
)
def test_other_job_under_active_run_name_is_refused(
    cli: Cli, words: tuple[str, ...], fragment: str
) -> None:
    cli.submitted("nightly", "--warmup-iterations", "5", num_nodes=4)

    result = cli.run("submit", *words, "--name", "nightly", "--yes", "--follow")

    assert_refused(result, "run nightly is already RUNNING", fragment, "jobs stop nightly")
    assert len(cli.jobs("nightly")) == 1


def test_ended_run_can_be_submitted_again(cli: Cli) -> None:
    cli.submitted("nightly", status="FAILED")

    cli.run(*NIGHTLY, "--yes")

    assert len(cli.jobs("nightly")) == 2


def test_run_names_are_case_sensitive(cli: Cli) -> None:
    cli.submitted("Nightly", status="RUNNING")

    result = cli.run(*NIGHTLY, "--yes")

    assert "submitted run nightly" in result.stderr


def test_unnamed_runs_get_unique_names(cli: Cli) -> None:
    names = set()
    for _ in range(2):
        result = cli.run("submit", "all-reduce", "--nodes", "1", "--yes")
        names |= set(re.findall(r"submitted run (\S+),", result.stderr))

    assert len(names) == 2
    assert all(re.fullmatch(contract.RUN_NAME_PATTERN, name) for name in names)


def test_deployment_can_be_given_before_or_after_command(cli: Cli) -> None:
    for name in (*contract.SSM_BATCH_NAMES, contract.SSM_ORCHESTRATORS):
        value = cli.client("ssm").get_parameter(Name=contract.ssm_parameter("default", name))
        cli.parameter(name, value["Parameter"]["Value"], deployment="team-b")
    cli.parameter(contract.ssm_job_definition("all-reduce"), "arn", deployment="team-b")
    before = cli.run("--deployment", "team-b", *NIGHTLY, "--dry-run")
    after = cli.run(*NIGHTLY, "--dry-run", "--deployment", "team-b")

    assert json.loads(before.stdout)["tags"][contract.TAG_DEPLOYMENT] == "team-b"
    assert before.stdout == after.stdout


def test_deployment_can_come_from_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINIUM_DEPLOYMENT", "team-c")

    result = cli.run(*NIGHTLY, "--dry-run")

    assert "no deployment 'team-c'" in result.stderr


ZONES = {
    "zones": [
        {"zone": zone, "job_queue": queue, "compute_environment": "environment"}
        for zone, queue in (("usw2-az4", "queue"), ("usw2-az1", "other-queue"))
    ]
}


@pytest.mark.parametrize(
    ("words", "minutes"), [((), "20"), (("--zone-patience", "0"), "0")], ids=["default", "given"]
)
def test_multi_zone_job_stores_its_request(cli: Cli, words: tuple[str, ...], minutes: str) -> None:
    cli.parameter(contract.SSM_BATCH_ZONES, json.dumps(ZONES))
    client = cli.client("batch")
    (environment,) = client.describe_compute_environments()["computeEnvironments"]
    order = [{"order": 1, "computeEnvironment": environment["computeEnvironmentArn"]}]
    client.create_job_queue(
        jobQueueName="other-queue", priority=1, state="ENABLED", computeEnvironmentOrder=order
    )
    flags = ("--nodes", "2", "--name", "x", "--yes", "--json")
    result = cli.run("submit", "all-reduce", *flags, *words)

    payload = json.loads(result.stdout)["payload"]
    digest = payload["tags"].pop(contract.TAG_REQUEST)
    assert payload["tags"][contract.TAG_ZONE_PATIENCE] == minutes
    key = contract.request_key("x", digest)
    kept = cli.read(key)
    assert sha256(kept).hexdigest() == digest
    assert json.loads(kept) == payload


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("all-reduce", "--nodes", "2"),
            "are in one zone; omit it, or deploy again with",
        ),
        (("prepare", "--dataset", "wikicorpus"), "prepare runs in any zone; omit it"),
    ],
)
def test_zone_patience_with_one_zone_is_refused(cli: Cli, words: tuple[str, ...], why: str) -> None:
    result = cli.run("submit", *words, "--zone-patience", "7", "--yes", "--json")

    document = json.loads(result.stdout)
    assert (result.exit_code, document["refused"]) == (2, "one-zone")
    assert document["message"].startswith("--zone-patience 7: ") and why in document["message"]
