"""Jobs that the account's quota or the Capacity Block prevents from starting are refused.

AWS's responses are validated by botocore's models (Stubber), since moto has no reservations.
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
from jobs.capacity import check_wait, check_window, read_window
from jobs.errors import Refusal
from jobs.job import CapacityWindow
from tests.jobs.conftest import REGION, Cli
from tests.jobs.fakes import client_error
from tests.jobs.samples import DEPLOYMENT
from tests.jobs.test_submission import REQUEST
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_emulators.aws import quotas

BLOCK = "cr-0123456789abcdef0"
QUOTA = "quota L-"
"""Start of a note on a quota."""


def deployed(cli: Cli, **settings: str) -> Cli:
    cli.parameter(contract.SSM_SETTINGS, json.dumps(settings))
    return cli


def on_nodes(cli: Cli, nodes: int = 4, *words: str) -> Result:
    return cli.run("submit", "all-reduce", "--nodes", str(nodes), "--name", "meet", "--yes", *words)


def on_cpus(cli: Cli) -> Result:
    return cli.run("submit", "prepare", "--dataset", "digits", "--name", "data", "--yes")


def client(service: Any) -> Any:
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    return boto3.client(service, region_name=REGION, **keys)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return the quotas of the account, by code."""
    values: dict[str, float] = {}
    monkeypatch.setattr(quotas, "VALUES", values)
    return values


@pytest.mark.parametrize(("value", "says"), [(0, "is 0 vCPUs"), (384, "or submit with --nodes 3")])
def test_job_beyond_quota_is_refused_with_code_value_and_link(
    cli: Cli, account: dict[str, float], value: float, says: str
) -> None:
    account["L-2C3B7624"] = value

    result = on_nodes(deployed(cli))

    assert result.exit_code == 2
    assert "L-2C3B7624 (Running On-Demand Trn instances)" in result.stderr
    assert says in result.stderr and "the job needs 512" in result.stderr
    assert "us-west-2.console.aws.amazon.com/servicequotas/" in result.stderr
    assert ("--nodes" in result.stderr) is (value > 0)
    assert cli.jobs("meet") == []


@pytest.mark.parametrize(
    ("settings", "value"),
    [("{}", 512), ("null", 0), (json.dumps({"capacity_block_id": BLOCK}), 0)],
)
def test_quota_that_suffices_or_may_not_apply_is_not_mentioned(
    cli: Cli, account: dict[str, float], settings: str, value: float
) -> None:
    account["L-2C3B7624"] = value
    cli.parameter(contract.SSM_SETTINGS, settings)

    result = on_nodes(cli)

    assert result.exit_code == 0, result.stderr
    assert QUOTA not in result.stderr


@pytest.mark.parametrize(
    ("settings", "code"), [({}, "L-34B43A08"), ({"cpu_spot": "false"}, "L-1216C47A")]
)
def test_data_job_needs_quota_of_its_instances(
    cli: Cli, account: dict[str, float], settings: dict[str, str], code: str
) -> None:
    account[code] = 15

    result = on_cpus(deployed(cli, **settings))

    assert result.exit_code == 2
    assert code in result.stderr and "the job needs 16" in result.stderr


def test_missing_permission_is_one_warning(
    cli: Cli, account: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    account["L-2C3B7624"] = 0

    def denied(**_: Any) -> Any:
        raise client_error("AccessDeniedException", operation="GetServiceQuota")

    monkeypatch.setattr(Aws, "quotas", lambda _: SimpleNamespace(get_service_quota=denied))
    result = on_nodes(deployed(cli))

    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if QUOTA in line]
    assert "not checked (AccessDeniedException from servicequotas:GetServiceQuota)" in line


def window_of(
    *,
    starts: timedelta,
    state: str = "scheduled",
    setting: str = "capacity_block_id",
) -> CapacityWindow:
    ec2 = client("ec2")
    start = datetime.now(UTC) + starts
    reservation = {
        "CapacityReservationId": BLOCK,
        "State": state,
        "StartDate": start,
        "EndDate": start + timedelta(days=7),
        "TotalInstanceCount": 4,
    }
    with Stubber(ec2) as reservations:
        reservations.add_response(
            "describe_capacity_reservations",
            {"CapacityReservations": [reservation]},
            {"CapacityReservationIds": [BLOCK]},
        )
        found = read_window(
            cast("Aws", SimpleNamespace(ec2=lambda: ec2)),
            replace(DEPLOYMENT, settings={setting: BLOCK}),
        )
    assert found is not None
    return found


def check(window: CapacityWindow, on: Orchestrator = Orchestrator.BATCH) -> None:
    """Check like ``check_place``, with a queue that cancels a job after an hour."""
    request = replace(REQUEST, window=window, orchestrator=on)
    check_window(DEPLOYMENT, request)
    batch = client("batch")
    action = {"reason": "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY", "state": "RUNNABLE"}
    queue = {
        "jobQueueName": "queue",
        "jobQueueArn": "queue",
        "state": "ENABLED",
        "priority": 1,
        "computeEnvironmentOrder": [],
        "jobStateTimeLimitActions": [{**action, "maxTimeSeconds": 3600, "action": "CANCEL"}],
    }
    with Stubber(batch) as queues:
        queues.add_response("describe_job_queues", {"jobQueues": [queue]})
        check_wait(cast("Any", batch), DEPLOYMENT, request, pytest.fail)


def test_job_cancelled_before_start_of_block_is_refused() -> None:
    with pytest.raises(Refusal, match="cancels a job after 60 minutes") as refused:
        check(window_of(starts=timedelta(days=2)))

    submit_after = datetime.now(UTC) + timedelta(days=2, hours=-1)
    assert refused.value.code == "block-not-started"
    assert f"submit after {submit_after:%Y-%m-%d}" in refused.value.message
    assert "-c trainium:runnable_time_limit_minutes=1440" in refused.value.message


@pytest.mark.parametrize(
    ("starts", "state"),
    [(timedelta(minutes=50), "scheduled"), (timedelta(hours=-5), "active")],
)
def test_job_that_can_wait_for_block_is_submitted(starts: timedelta, state: str) -> None:
    check(window_of(starts=starts, state=state))


@pytest.mark.parametrize("state", ["active", "expired", "payment-failed"])
def test_ended_block_is_refused(state: str) -> None:
    window = window_of(starts=timedelta(days=-8), state=state)

    with pytest.raises(Refusal, match="destroy the `batch` stack and deploy again") as refused:
        check(window)
    with pytest.raises(Refusal, match=rf"has ended \({state}\); deploy again with the next one"):
        check(window, Orchestrator.EKS)

    assert refused.value.code == "block-ended"


def test_block_in_its_last_40_minutes_is_refused() -> None:
    window = window_of(starts=-timedelta(days=7, minutes=-39), state="active")

    with pytest.raises(Refusal, match="jobs stop 40 minutes before") as refused:
        check(window)

    assert refused.value.code == "block-ending"


def test_ordinary_reservation_has_no_stop_time() -> None:
    setting = "capacity_reservation_id"
    window = window_of(starts=-timedelta(days=7, minutes=-5), state="active", setting=setting)

    check(window)
    assert window.stop_at is None


def test_plan_and_job_have_stop_time(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    window = window_of(starts=timedelta(minutes=30))
    monkeypatch.setattr("jobs.submit.choose.find_window", lambda *_: window)

    result = on_nodes(deployed(cli, capacity_block_id=BLOCK), 4, "--dry-run")

    assert window.ends is not None
    stop_at = window.ends - timedelta(minutes=40)
    assert f"saves and stops at {stop_at:%Y-%m-%d %H:%M} UTC, 40 minutes earlier" in result.stderr
    (override,) = json.loads(result.stdout)["nodeOverrides"]["nodePropertyOverrides"]
    (stop,) = (
        each["value"]
        for each in override["containerOverrides"]["environment"]
        if each["name"] == contract.ENV_STOP_AT
    )
    assert stop == f"{stop_at:%Y-%m-%dT%H:%M:%SZ}"


def test_data_job_ignores_block(cli: Cli) -> None:
    result = on_cpus(deployed(cli, capacity_block_id=BLOCK))

    assert result.exit_code == 0, result.stderr
    assert "capacity" not in result.stderr


def test_missing_permission_for_reservations_is_one_warning(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(**_: Any) -> Any:
        raise client_error("UnauthorizedOperation")

    monkeypatch.setattr(
        Aws, "ec2", lambda _: SimpleNamespace(describe_capacity_reservations=denied)
    )
    result = on_nodes(deployed(cli, capacity_block_id=BLOCK), 1)

    assert result.exit_code == 0, result.stderr
    assert "reserved capacity was not checked (UnauthorizedOperation" in result.stderr
