"""A job that the account's quota or the deployment's Capacity Block keeps from starting is refused.

Answers of AWS are held to botocore's models (Stubber), since moto has no reservations.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import boto3
import pytest
from botocore.stub import Stubber
from typer.testing import Result

from jobs.aws import Aws
from jobs.capacity import check_block
from jobs.errors import Refusal
from tests.jobs.conftest import REGION, Desk
from tests.jobs.fakes import client_error
from tests.jobs.test_submission import REQUEST
from tests.jobs.test_waiting import DEPLOYMENT
from tests.stacks.synthesis import deployment
from trainium_catalogue import contract
from trainium_catalogue.workloads import Hardware
from trainium_emulators.aws import quotas

BLOCK = "cr-0123456789abcdef0"


def deployed(desk: Desk, **settings: str) -> Desk:
    desk.parameter(contract.SSM_SETTINGS, json.dumps(settings))
    return desk


def on_nodes(desk: Desk, nodes: int = 4, *words: str) -> Result:
    return desk.run(
        "submit", "all-reduce", "--nodes", str(nodes), "--name", "meet", "--yes", *words
    )


def on_cpus(desk: Desk) -> Result:
    return desk.run("submit", "prepare", "--dataset", "digits", "--name", "data", "--yes")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Quotas of the account, by code."""
    values: dict[str, float] = {}
    monkeypatch.setattr(quotas, "VALUES", values)
    return values


class TestQuota:
    """vCPUs that the account may have."""

    @pytest.mark.parametrize(
        ("value", "says"), [(0, "is 0 vCPUs"), (384, "or submit with --nodes 3")]
    )
    def test_nodes_beyond_it_are_refused_with_code_figure_and_link(
        self, desk: Desk, account: dict[str, float], value: float, says: str
    ) -> None:
        account["L-2C3B7624"] = value

        result = on_nodes(deployed(desk))

        assert result.exit_code == 2
        assert "L-2C3B7624 (Running On-Demand Trn instances)" in result.stderr
        assert says in result.stderr and "the job needs 512" in result.stderr
        assert "us-west-2.console.aws.amazon.com/servicequotas/" in result.stderr
        assert ("--nodes" in result.stderr) is (value > 0)
        assert desk.jobs("meet") == []

    def test_nodes_within_it_are_submitted_without_a_remark(
        self, desk: Desk, account: dict[str, float]
    ) -> None:
        account["L-2C3B7624"] = 512

        result = on_nodes(deployed(desk))

        assert result.exit_code == 0, result.stderr
        assert "quota" not in result.stderr

    @pytest.mark.parametrize(
        ("settings", "code"), [({}, "L-34B43A08"), ({"cpu_spot": "false"}, "L-1216C47A")]
    )
    def test_a_data_job_needs_the_one_of_its_instances(
        self, desk: Desk, account: dict[str, float], settings: dict[str, str], code: str
    ) -> None:
        account[code] = 15

        result = on_cpus(deployed(desk, **settings))

        assert result.exit_code == 2
        assert code in result.stderr and "the job needs 16" in result.stderr

    def test_data_jobs_run_on_spot_unless_told_otherwise(self) -> None:
        assert deployment().config.cpu_spot  # what `needed_quota` takes for the default

    def test_who_may_not_read_it_submits_with_one_remark(
        self, desk: Desk, account: dict[str, float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        account["L-2C3B7624"] = 0

        def denied(**_: Any) -> Any:
            raise client_error("AccessDeniedException", operation="GetServiceQuota")

        monkeypatch.setattr(Aws, "quotas", lambda self: SimpleNamespace(get_service_quota=denied))
        result = on_nodes(deployed(desk))

        assert result.exit_code == 0, result.stderr
        (line,) = [line for line in result.stderr.splitlines() if "quota" in line]
        assert "not looked at (AccessDeniedException of servicequotas:GetServiceQuota)" in line

    @pytest.mark.parametrize("settings", ["null", json.dumps({"capacity_block_id": BLOCK})])
    def test_it_is_not_asked_for_where_it_may_not_apply(
        self, desk: Desk, account: dict[str, float], settings: str
    ) -> None:
        account["L-2C3B7624"] = 0
        desk.parameter(contract.SSM_SETTINGS, settings)

        result = on_nodes(desk)

        assert result.exit_code == 0, result.stderr
        assert "quota" not in result.stderr


class TestBlock:
    """A Capacity Block that has not started, or has ended."""

    def check(
        self,
        *,
        starts: timedelta,
        lasts: timedelta = timedelta(days=7),
        state: str = "scheduled",
        hardware: Hardware = Hardware.TRAINIUM,
    ) -> list[str]:
        ec2, batch = (
            boto3.client(
                service, region_name=REGION, aws_access_key_id="a", aws_secret_access_key="b"
            )
            for service in ("ec2", "batch")
        )
        start = datetime.now(UTC) + starts
        reservation = {
            "CapacityReservationId": BLOCK,
            "State": state,
            "StartDate": start,
            "EndDate": start + lasts,
            "TotalInstanceCount": 4,
        }
        found = {"CapacityReservations": [reservation]}
        asked = {"CapacityReservationIds": [BLOCK]}
        action = {"reason": "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY", "state": "RUNNABLE"}
        queue = {
            "jobQueueName": "queue",
            "jobQueueArn": "queue",
            "state": "ENABLED",
            "priority": 1,
            "computeEnvironmentOrder": [],
            "jobStateTimeLimitActions": [{**action, "maxTimeSeconds": 3600, "action": "CANCEL"}],
        }
        notes: list[str] = []
        with Stubber(ec2) as reservations, Stubber(batch) as queues:
            reservations.add_response("describe_capacity_reservations", found, asked)
            queues.add_response("describe_job_queues", {"jobQueues": [queue]})
            check_block(
                cast("Aws", SimpleNamespace(ec2=lambda: ec2)),
                cast("Any", batch),
                replace(DEPLOYMENT, settings={"capacity_block_id": BLOCK}),
                replace(REQUEST, hardware=hardware),
                notes.append,
            )
        return notes

    def test_a_job_that_would_be_cancelled_before_it_starts_is_refused(self) -> None:
        with pytest.raises(Refusal, match="cancels a job that has waited 60 minutes") as refused:
            self.check(starts=timedelta(days=2))

        submit_after = datetime.now(UTC) + timedelta(days=2, hours=-1)
        assert refused.value.code == "block-not-started"
        assert f"submit after {submit_after:%Y-%m-%d}" in refused.value.message

    @pytest.mark.parametrize(
        ("starts", "state"),
        [(timedelta(minutes=50), "scheduled"), (timedelta(hours=-5), "active")],
    )
    def test_a_job_that_can_wait_for_it_is_submitted(self, starts: timedelta, state: str) -> None:
        assert self.check(starts=starts, state=state) == []

    @pytest.mark.parametrize("state", ["active", "expired", "payment-failed"])
    def test_a_block_that_has_ended_is_refused(self, state: str) -> None:
        with pytest.raises(Refusal, match="destroy the `batch` stack and deploy again") as refused:
            self.check(starts=timedelta(days=-8), state=state)

        assert refused.value.code == "block-ended"

    def test_a_data_job_does_not_run_in_it(self) -> None:
        assert self.check(starts=timedelta(days=2), hardware=Hardware.CPU) == []

    def test_who_may_not_read_it_submits_with_one_remark(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def denied(**_: Any) -> Any:
            raise client_error("UnauthorizedOperation")

        monkeypatch.setattr(
            Aws, "ec2", lambda self: SimpleNamespace(describe_capacity_reservations=denied)
        )
        result = on_nodes(deployed(desk, capacity_block_id=BLOCK), 1)

        assert result.exit_code == 0, result.stderr
        assert f"Capacity Block {BLOCK} was not looked at (UnauthorizedOperation)" in result.stderr
