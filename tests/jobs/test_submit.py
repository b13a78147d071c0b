"""`jobs submit` against a real Batch API on loopback."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.jobs.conftest import Desk
from tests.jobs.test_refusals import assert_refused
from trainium_catalogue import contract

NIGHTLY = ("submit", "all-reduce", "--nodes", "4", "--name", "nightly")


def payload(desk: Desk, *arguments: str) -> dict[str, Any]:
    result = desk.run(*NIGHTLY, "--dry-run", *arguments)
    assert result.exit_code == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def overrides(desk: Desk, *arguments: str) -> dict[str, Any]:
    (node_range,) = payload(desk, *arguments)["nodeOverrides"]["nodePropertyOverrides"]
    found: dict[str, Any] = node_range["containerOverrides"]
    return found


def test_the_job_is_tagged_with_deployment_run_and_workload(desk: Desk) -> None:
    desk.run(*NIGHTLY, "--yes")

    assert desk.jobs("nightly")[0]["tags"] == {
        contract.TAG_DEPLOYMENT: "default",
        contract.TAG_RUN: "nightly",
        contract.TAG_WORKLOAD: "all-reduce",
    }


def test_a_dry_run_prints_what_would_be_sent_and_submits_nothing(desk: Desk) -> None:
    sent = payload(desk)

    assert sent["nodeOverrides"]["numNodes"] == 4
    assert desk.jobs("nightly") == []


def test_a_dry_run_prints_arguments_that_batch_accepts(desk: Desk) -> None:
    sent = payload(desk)

    assert desk.client("batch").submit_job(**sent)["jobName"] == "nightly"


def test_parameters_become_flags_of_the_launcher(desk: Desk) -> None:
    command = overrides(desk, "--set", "max-bytes=4096", "--set", "peer_timeout_s=5")["command"]

    assert command == [
        *contract.launch_command("all-reduce"), "--max-bytes", "4096", "--peer-timeout-s", "5.0",
    ]  # fmt: skip


def test_every_node_learns_the_run_name(desk: Desk) -> None:
    assert overrides(desk)["environment"] == [{"name": contract.ENV_RUN, "value": "nightly"}]


def test_the_open_node_range_is_overridden_as_a_whole(desk: Desk) -> None:
    (node_range,) = payload(desk)["nodeOverrides"]["nodePropertyOverrides"]

    assert node_range["targetNodes"] == "0:"


def test_the_price_is_shown_as_an_estimate(desk: Desk) -> None:
    result = desk.run(*NIGHTLY, "--yes")

    assert "4 x trn1.32xlarge, at most 1 h an attempt" in result.stderr
    assert "about $86.00 for 1 h" in result.stderr
    assert "estimate, list price; check your account" in result.stderr


def test_a_default_time_limit_shrinks_to_the_cap_of_the_deployment(desk: Desk) -> None:
    desk.parameter(contract.SSM_JOB_TIME_LIMIT_HOURS, "0.5")

    assert payload(desk)["timeout"]["attemptDurationSeconds"] == 1800


@pytest.mark.parametrize("status", ["SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING"])
def test_a_run_that_goes_on_is_not_submitted_again(desk: Desk, status: str) -> None:
    job_id = desk.submitted("nightly", status=status, num_nodes=4)

    result = desk.run(*NIGHTLY, "--yes")

    assert result.exit_code == 0, result.stderr
    assert f"run nightly is {status} already, job {job_id}: nothing was submitted" in result.stderr
    assert len(desk.jobs("nightly")) == 1


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (("all-reduce", "--nodes", "3"), "on 4 nodes, not 3"),
        (("all-reduce", "--nodes", "4", "--iterations", "7"), "with --iterations 20, not 7"),
        (("llama-tiny", "--nodes", "4", "--dataset", "x"), "it is all-reduce, not llama-tiny"),
    ],
)
def test_another_job_under_a_run_that_goes_on_is_refused(
    desk: Desk, words: tuple[str, ...], fragment: str
) -> None:
    desk.submitted("nightly", "--warmup-iterations", "5", num_nodes=4)

    result = desk.run("submit", *words, "--name", "nightly", "--yes", "--follow")

    assert_refused(result, "run nightly is RUNNING already", fragment, "jobs stop nightly")
    assert len(desk.jobs("nightly")) == 1


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
def test_a_run_that_ended_can_be_submitted_again(desk: Desk, status: str) -> None:
    desk.submitted("nightly", status=status)

    desk.run(*NIGHTLY, "--yes")

    assert len(desk.jobs("nightly")) == 2


def test_a_run_whose_name_differs_in_case_is_another_run(desk: Desk) -> None:
    desk.submitted("Nightly", status="RUNNING")

    result = desk.run(*NIGHTLY, "--yes")

    assert "submitted run nightly" in result.stderr


def test_a_run_without_a_name_gets_a_new_one_each_time(desk: Desk) -> None:
    names = set()
    for _ in range(2):
        result = desk.run("submit", "all-reduce", "--nodes", "1", "--yes")
        names |= set(re.findall(r"submitted run (\S+),", result.stderr))

    assert len(names) == 2
    assert all(re.fullmatch(contract.RUN_NAME_PATTERN, name) for name in names)


def test_the_deployment_can_be_named_before_or_after_the_command(desk: Desk) -> None:
    for name in (*contract.SSM_BATCH_NAMES, contract.SSM_ORCHESTRATORS):
        value = desk.client("ssm").get_parameter(Name=contract.ssm_parameter("default", name))
        desk.parameter(name, value["Parameter"]["Value"], deployment="team-b")
    desk.parameter(contract.ssm_job_definition("all-reduce"), "arn", deployment="team-b")
    before = desk.run("--deployment", "team-b", *NIGHTLY, "--dry-run")
    after = desk.run(*NIGHTLY, "--dry-run", "--deployment", "team-b")

    assert json.loads(before.stdout)["tags"][contract.TAG_DEPLOYMENT] == "team-b"
    assert before.stdout == after.stdout


def test_the_deployment_can_come_from_the_environment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINIUM_DEPLOYMENT", "team-c")

    result = desk.run(*NIGHTLY, "--dry-run")

    assert "no deployment 'team-c'" in result.stderr
