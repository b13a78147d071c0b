"""Checks of the account's capacity before a submission: vCPU quotas and reserved instances.

A job that exceeds a quota waits forever: an exhausted quota is not among the reasons for which
Batch cancels a job (user guide, jobs stuck in RUNNABLE), and EC2 Auto Scaling keeps retrying.
Failed reads are noted, and the job is submitted anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.aws import Aws, BatchClient, QuotasClient
from jobs.deployment import Deployment
from jobs.errors import Refusal, error_code
from jobs.job import BLOCK_LEAD, CapacityWindow, JobRequest
from trainium_catalogue.contract import CPU_SPOT, Orchestrator
from trainium_catalogue.instances import JOB_VCPUS
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import Hardware


@dataclass(frozen=True, slots=True)
class Quota:
    """An EC2 quota in vCPUs, for all instances of a kind in an account and region."""

    code: str
    name: str


TRAINIUM = Quota("L-2C3B7624", "Running On-Demand Trn instances")
SPOT = Quota("L-34B43A08", "All Standard Spot Instance Requests")
ON_DEMAND = Quota("L-1216C47A", "Running On-Demand Standard instances")

_LONGEST_WAIT = timedelta(days=1)
"""Maximum of ``runnable_time_limit_minutes``."""


def needed_quota(
    target: Deployment, hardware: Hardware, num_nodes: int
) -> tuple[Quota, int] | None:
    """Return the quota that a job counts against and its vCPUs; None if unknown.

    Capacity Blocks are not checked: AWS does not document whether they count.
    """
    if target.settings is None:
        return None  # unknown, as for a deployment by an earlier checkout
    if hardware is Hardware.CPU:
        # An array job fits if one child does: its children can run one at a time.
        on_spot = str(target.settings.get("cpu_spot", CPU_SPOT)).lower() == "true"
        return (SPOT if on_spot else ON_DEMAND), JOB_VCPUS
    if "capacity_block_id" in target.settings:
        return None
    return TRAINIUM, target.instance_type.vcpus_for(num_nodes)


def read_quota(client: QuotasClient, quota: Quota) -> float:
    """Read the value of a quota, in vCPUs."""
    response = client.get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    return float(response["Quota"]["Value"])


def check_quota(
    aws: Aws, target: Deployment, request: JobRequest, note: Callable[[str], None]
) -> None:
    """Refuse a job that needs more vCPUs than the account's quota."""
    needed = needed_quota(target, request.hardware, request.num_nodes)
    if needed is None:
        return
    quota, vcpus = needed
    try:
        value = read_quota(aws.quotas(), quota)
    except Exception as error:
        # A safety check must not block a job that would work, whatever the error.
        reason = error_code(error) or type(error).__name__
        note(
            f"quota {quota.code} ({quota.name}) was not checked ({reason} from "
            f"servicequotas:GetServiceQuota): the job needs {vcpus} vCPUs"
        )
        return
    if value >= vcpus:
        return
    fitting = int(value // target.instance_type.num_vcpus)
    fewer = (
        f", or submit with --nodes {fitting}"
        if fitting and request.hardware is not Hardware.CPU
        else ""
    )
    raise Refusal(
        "quota-too-small",
        f"the account's quota {quota.code} ({quota.name}) in {target.region} is {value:g} vCPUs, "
        f"but the job needs {vcpus} and would wait forever; request an increase at "
        f"https://{target.region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{quota.code}{fewer}",
    )


def read_window(aws: Aws, target: Deployment) -> CapacityWindow | None:
    """Read the window of the deployment's reserved capacity; None if it has none."""
    settings = target.settings or {}
    block = settings.get("capacity_block_id")
    name = block or settings.get("capacity_reservation_id")
    if name is None:
        return None
    (reservation,) = aws.ec2().describe_capacity_reservations(CapacityReservationIds=[name])[
        "CapacityReservations"
    ]
    return CapacityWindow(
        name=name,
        is_block=block is not None,
        state=reservation["State"],
        num_instances=reservation.get("TotalInstanceCount", 0),
        num_free=reservation.get("AvailableInstanceCount", 0),
        starts=reservation.get("StartDate", datetime.now(UTC)),
        ends=reservation.get("EndDate"),
    )


def find_window(
    aws: Aws, target: Deployment, hardware: Hardware, note: Callable[[str], None]
) -> CapacityWindow | None:
    """Read the window that a job would run in; note a failed read."""
    if hardware is Hardware.CPU:
        return None
    try:
        return read_window(aws, target)
    except Exception as error:
        reason = error_code(error) or type(error).__name__
        note(
            f"the deployment's reserved capacity was not checked ({reason} from "
            "ec2:DescribeCapacityReservations): it must have started, and jobs do not save before "
            "a Capacity Block ends"
        )
        return None


def check_window(target: Deployment, request: JobRequest) -> None:
    """Refuse a job whose reserved capacity has ended, or is about to."""
    window, now = request.window, datetime.now(UTC)
    if window is None:
        return
    key = "capacity_block_id" if window.is_block else "capacity_reservation_id"
    command = target.redeploy(**{key: "<next one>"})
    remedy = f"deploy again with the next one: {command}"
    if window.is_block and request.orchestrator is Orchestrator.BATCH:
        remedy = f"on Batch, destroy the `batch` stack and {remedy}"
    if window.has_ended(now):
        raise Refusal("block-ended", f"{window} has ended ({window.state}); {remedy}")
    if window.stop_at is not None and window.stop_at <= now:
        raise Refusal(
            "block-ending",
            f"{window} ends at {utc(window.ends or now)}, and jobs stop "
            f"{minutes(BLOCK_LEAD)} minutes before; {remedy}",
        )


def check_wait(
    batch: BatchClient, target: Deployment, request: JobRequest, note: Callable[[str], None]
) -> None:
    """Refuse a job that its queue would cancel before its reserved capacity starts.

    Launches into a block that has not started fail with insufficient capacity (EC2 user guide, EC2
    Fleet and Capacity Blocks), which counts towards the queue's time limit.
    """
    window, now = request.window, datetime.now(UTC)
    if window is None or window.starts <= now:
        return
    try:
        queues = batch.describe_job_queues(jobQueues=[request.job_queue])["jobQueues"]
    except Exception as error:
        reason = error_code(error) or type(error).__name__
        note(
            f"the queue's time limit for waiting jobs was not checked ({reason}): {window} starts "
            f"at {utc(window.starts)}"
        )
        return
    limit = _wait_for_capacity(queues)
    if limit is None or window.starts - now <= limit:
        return
    waiting = f"submit after {utc(window.starts - limit)}"
    if limit < _LONGEST_WAIT:
        longer = target.redeploy(runnable_time_limit_minutes=minutes(_LONGEST_WAIT))
        waiting += f", or let jobs wait for a day with {longer}"
    raise Refusal(
        "block-not-started",
        f"{window} ({counted(window.num_instances, 'instance')}) starts at {utc(window.starts)}, "
        f"but the queue cancels a job after {minutes(limit)} minutes without capacity; {waiting}",
    )


def window_line(window: CapacityWindow, now: datetime) -> str:
    """Describe when a submission's reserved capacity starts, and when its job must stop."""
    line = f"{window}: {counted(window.num_instances, 'instance')}"
    if window.starts > now:
        line += f" starting {utc(window.starts)}, and the job waits until then"
    if window.stop_at is not None:
        line += (
            f"; it ends at {utc(window.ends or now)}, so a running job saves and stops at "
            f"{utc(window.stop_at)}, {minutes(BLOCK_LEAD)} minutes earlier"
        )
    return line


def _wait_for_capacity(queues: list[dict[str, Any]]) -> timedelta | None:
    """Return the queue's time limit for jobs without capacity; None if it has none."""
    seconds = [
        action["maxTimeSeconds"]
        for queue in queues
        for action in queue.get("jobStateTimeLimitActions", ())
        if action["reason"].startswith("CAPACITY")
    ]
    return timedelta(seconds=min(seconds)) if seconds else None


def minutes(time: timedelta) -> int:
    return round(time.total_seconds() / 60)


def utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
