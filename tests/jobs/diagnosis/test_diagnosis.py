"""`jobs explain` names the right cause first, of every planted run, on both orchestrators."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from jobs.diagnosis.cause import CAUSES, SOURCES, Rank
from jobs.diagnosis.ranking import first_cause
from jobs.job import RunSummary
from tests.jobs.conftest import Desk
from tests.jobs.diagnosis.plantings import NO_CAPACITY, PLANTINGS, OnBatch, OnCluster, Planting
from tests.jobs.diagnosis.world import RUN, plant
from tests.jobs.eks.conftest import ROOT
from tests.support.schemas import conforms
from trainium_catalogue.workloads import Hardware

TOOLS = ("python -m jobs ", "cdk deploy ", "cdk synth ", "aws ", "kubectl ")


def explained(desk: Desk) -> dict[str, Any]:
    result = desk.run("explain", RUN, "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def named(planting: Planting) -> str:
    place = "batch" if isinstance(planting, OnBatch) else "eks"
    return f"{place}: {planting.what}"


@pytest.mark.parametrize("planting", PLANTINGS, ids=named)
def test_the_planted_cause_comes_first(
    planting: Planting, desk: Desk, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    eks = request.getfixturevalue("eks") if isinstance(planting, OnCluster) else None
    plant(planting, desk, eks, monkeypatch)
    document = explained(desk)

    conforms("jobs-explain", document)
    assert document["causes"][0]["cause"] == planting.cause, json.dumps(document, indent=2)
    assert document["cause"].startswith(f"{planting.cause}: ")
    assert document["causes"][0]["evidence"]
    assert document["unread"] == []
    for cause in document["causes"]:
        assert cause["remedy"].startswith(TOOLS)
        assert "{" not in cause["remedy"] and shlex.split(cause["remedy"])
        assert "None" not in cause["remedy"]


def test_there_are_enough_plantings_on_both() -> None:
    on_batch = [each for each in PLANTINGS if isinstance(each, OnBatch)]

    assert len(on_batch) >= 30
    assert len(PLANTINGS) - len(on_batch) >= 30
    assert {each.cause for each in PLANTINGS} <= {cause.name for cause in CAUSES}


def test_a_person_reads_cause_evidence_and_remedy(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planting,) = (
        each for each in PLANTINGS if each.what == "a small quota, and no capacity either"
    )
    plant(planting, desk, None, monkeypatch)
    text = desk.run("explain", RUN).stdout

    assert f"run {RUN}: RUNNABLE, quota-too-small: the account's quota" in text
    assert "quota of the account: L-2C3B7624 (Running On-Demand Trn instances) is 128" in text
    assert "--quota-code L-2C3B7624 --desired-value 256 --region us-west-2" in text
    assert f"2. no-capacity: {next(c.says for c in CAUSES if c.name == 'no-capacity')}" in text
    assert f"scaling activities: {NO_CAPACITY}" in text


def test_what_may_not_be_read_is_named_with_the_right(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.autoscaling.responses import AutoScalingResponse
    from moto.core.exceptions import AccessDeniedError

    def denied(_: Any) -> None:
        raise AccessDeniedError(user_arn="me", action="any")

    plant(OnBatch(cause="", what="", status="RUNNABLE"), desk, None, monkeypatch)
    monkeypatch.setattr(AutoScalingResponse, "describe_scaling_activities", denied)
    document = explained(desk)

    needs = "scaling activities: needs autoscaling:DescribeScalingActivities"
    assert document["unread"] == [needs]
    assert document["cause"].startswith("starting: ")
    assert f"not read: {needs}" in desk.run("explain", RUN).stdout


def test_status_and_list_begin_with_the_cause_that_their_own_data_shows(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planting,) = (each for each in PLANTINGS if each.what == "Batch's own word for no capacity")
    plant(planting, desk, None, monkeypatch)
    line = explained(desk)["cause"]
    listed = json.loads(desk.run("list", "--json").stdout)
    shown = json.loads(desk.run("status", RUN, "--json").stdout)

    conforms("jobs-list", listed)
    conforms("jobs-status", shown)
    assert shown["cause"] == listed["runs"][0]["cause"] == line
    assert f"cause: {line} (evidence: python -m jobs --region us-west-2 explain {RUN})" in (
        desk.run("status", RUN).stdout
    )


def test_a_run_of_a_list_always_has_a_cause() -> None:
    for status in (
        "SUBMITTED",
        "PENDING",
        "RUNNABLE",
        "STARTING",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
    ):
        run = RunSummary(
            run="x", job_id="x", status=status, status_reason=None, created_at_ms=0,
            started_at_ms=None, stopped_at_ms=None, num_nodes=1, hardware=Hardware.TRAINIUM,
        )  # fmt: skip

        assert first_cause(run).rank is Rank.NORMAL


def test_a_run_that_there_is_not_is_refused(desk: Desk) -> None:
    result = desk.run("explain", "nothing")

    assert result.exit_code == 2
    assert "no run 'nothing'" in result.stderr


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_an_entry_of_the_table_can_be_shown_and_has_a_source(cause: Any) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", cause.name)
    assert cause.texts or cause.wrong
    for where, text in cause.texts.items():
        assert where in SOURCES
        re.compile(text)
    assert cause.source.startswith("https://") or (ROOT / cause.source).exists()
