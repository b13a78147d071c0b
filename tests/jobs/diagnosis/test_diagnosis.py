"""`jobs explain` names the right cause of every planted run first, on both orchestrators."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from jobs.diagnosis.cause import CAUSES, Rank
from jobs.diagnosis.ranking import first_cause
from tests.jobs.conftest import Cli
from tests.jobs.diagnosis.plantings import NO_CAPACITY, PLANTINGS, OnBatch, OnCluster, Planting
from tests.jobs.diagnosis.world import RUN, plant
from tests.jobs.eks.conftest import ROOT, EksCli
from tests.jobs.samples import RUN as SUMMARY
from tests.support.schemas import conforms
from trainium_catalogue.kubernetes import NAMESPACE
from trainium_emulators.kubernetes.resources import EVENT

TOOLS = ("python -m jobs ", "cdk deploy ", "cdk synth ", "aws ", "kubectl ")


def explained(cli: Cli) -> dict[str, Any]:
    result = cli.run("explain", RUN, "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def named(planting: Planting) -> str:
    place = "batch" if isinstance(planting, OnBatch) else "eks"
    return f"{place}: {planting.what}"


@pytest.mark.parametrize("planting", PLANTINGS, ids=named)
def test_planted_cause_comes_first(
    planting: Planting, cli: Cli, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    eks = request.getfixturevalue("eks") if isinstance(planting, OnCluster) else None
    plant(planting, cli, eks, monkeypatch)
    document = explained(cli)

    conforms("jobs-explain", document)
    assert document["causes"][0]["cause"] == planting.cause, json.dumps(document, indent=2)
    assert document["cause"].startswith(f"{planting.cause}: ")
    assert document["causes"][0]["evidence"]
    assert document["unread"] == []
    for cause in document["causes"]:
        assert cause["remedy"].startswith(TOOLS)
        assert "{" not in cause["remedy"] and shlex.split(cause["remedy"])
        assert "None" not in cause["remedy"]


def test_text_has_cause_evidence_and_remedy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (planting,) = (
        each
        for each in PLANTINGS
        if each.what == "an insufficient quota, and insufficient capacity"
    )
    plant(planting, cli, None, monkeypatch)
    text = cli.run("explain", RUN).stdout

    assert f"run {RUN}: RUNNABLE, quota-too-small: the account's vCPU quota" in text
    assert "account quota: L-2C3B7624 (Running On-Demand Trn instances) is 128" in text
    assert "--quota-code L-2C3B7624 --desired-value 256 --region us-west-2" in text
    assert f"2. no-capacity: {next(c.says for c in CAUSES if c.name == 'no-capacity')}" in text
    assert f"scaling activities: {NO_CAPACITY}" in text


def test_unreadable_source_is_listed_with_missing_permission(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.autoscaling.responses import AutoScalingResponse
    from moto.core.exceptions import AccessDeniedError

    def denied(_: Any) -> None:
        raise AccessDeniedError(user_arn="me", action="any")

    plant(OnBatch(cause="", what="", status="RUNNABLE"), cli, None, monkeypatch)
    monkeypatch.setattr(AutoScalingResponse, "describe_scaling_activities", denied)
    document = explained(cli)

    needs = "scaling activities: missing permission: autoscaling:DescribeScalingActivities"
    assert document["unread"] == [needs]
    assert document["cause"].startswith("starting: ")
    assert f"not read: {needs}" in cli.run("explain", RUN).stdout


FULL = "resource in cluster is overused: overused cpu"


def test_running_run_ignores_scheduling_failure_before_start(
    cli: Cli, eks: EksCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [("Unschedulable", FULL)]
    planting = OnCluster(cause="running", what="", status="RUNNING", events=events)
    plant(planting, cli, eks, monkeypatch)
    (event,) = eks.cluster.store.list(EVENT)
    eks.cluster.store.update(
        EVENT,
        NAMESPACE,
        event["metadata"]["name"],
        lambda each: each.update(lastTimestamp="2026-01-01T00:00:00Z"),
    )

    assert explained(cli)["causes"][0]["cause"] == "running"


def test_full_cluster_remedy_adds_needed_nodes(
    cli: Cli, eks: EksCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    planting = OnCluster(
        cause="cluster-full",
        what="",
        status="RUNNABLE",
        others={"first": 2},
        events=[("Unschedulable", FULL)],
    )
    plant(planting, cli, eks, monkeypatch)
    cause = explained(cli)["causes"][0]

    assert cause["cause"] == "cluster-full"
    assert cause["remedy"].endswith("scale --nodes 4")


def test_status_and_list_show_cause_from_their_own_data(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planting,) = (
        each
        for each in PLANTINGS
        if each.what == "Batch's own status reason for insufficient capacity"
    )
    plant(planting, cli, None, monkeypatch)
    line = explained(cli)["cause"]
    listed = json.loads(cli.run("list", "--json").stdout)
    shown = json.loads(cli.run("status", RUN, "--json").stdout)

    conforms("jobs-list", listed)
    conforms("jobs-status", shown)
    assert shown["cause"] == listed["runs"][0]["cause"] == line
    assert f"cause: {line} (evidence: python -m jobs --region us-west-2 explain {RUN})" in (
        cli.run("status", RUN).stdout
    )


def test_listed_run_always_has_cause() -> None:
    statuses = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")
    for status in statuses:
        assert first_cause(replace(SUMMARY, status=status)).rank is Rank.NORMAL


def test_table_entries_have_source() -> None:
    for cause in CAUSES:
        assert cause.texts or cause.problems, cause
        assert cause.source.startswith("https://") or (ROOT / cause.source).exists(), cause
