"""The account's capacity, checked before a submission: vCPU quotas and the Capacity Block.

A job beyond a quota waits forever: a used-up quota is no reason for which Batch ends a wait (user
guide, jobs stuck in RUNNABLE), and EC2 Auto Scaling keeps trying. What cannot be read is noted, and
the job is submitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.aws import Aws, BatchClient
from jobs.deployment import Deployment
from jobs.errors import Refusal, error_code
from jobs.job import JobRequest, counted
from trainium_catalogue.instances import JOB_VCPUS
from trainium_catalogue.workloads import Hardware


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota of EC2 in vCPUs, for all instances of its kind in an account and region."""

    code: str
    name: str


TRAINIUM = Quota("L-2C3B7624", "Running On-Demand Trn instances")
SPOT = Quota("L-34B43A08", "All Standard Spot Instance Requests")
ON_DEMAND = Quota("L-1216C47A", "Running On-Demand Standard instances")

ENDED_RESERVATIONS = frozenset({"expired", "cancelled", "failed", "payment-failed", "unsupported"})
"""States of a reservation that never comes back (EC2 API reference, CapacityReservation)."""


def needed_quota(
    target: Deployment, hardware: Hardware, num_nodes: int
) -> tuple[Quota, int] | None:
    """Return the quota that a job counts against and its vCPUs; None if that is not known.

    Whether a Capacity Block counts is not documented, so it is not checked.
    """
    if target.settings is None:
        return None  # deployed by an earlier checkout
    if hardware is Hardware.CPU:
        # The children of an array run one after another if they have to.
        on_spot = target.settings.get("cpu_spot", "true").lower() == "true"
        return (SPOT if on_spot else ON_DEMAND), JOB_VCPUS
    if "capacity_block_id" in target.settings:
        return None
    return TRAINIUM, target.instance_type.vcpus_for(num_nodes)


def check_quota(
    aws: Aws, target: Deployment, request: JobRequest, note: Callable[[str], None]
) -> None:
    """Refuse a job that needs more vCPUs than the account may ever have."""
    needed = needed_quota(target, request.hardware, request.num_nodes)
    if needed is None:
        return
    quota, vcpus = needed
    try:
        answer = aws.quotas().get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
        value = float(answer["Quota"]["Value"])
    except Exception as error:
        # A protective check must not block a job that would work, whatever error it meets.
        reason = error_code(error) or type(error).__name__
        note(
            f"quota {quota.code} ({quota.name}) was not looked at ({reason} of "
            f"servicequotas:GetServiceQuota): the job needs {vcpus} vCPUs of it"
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
        f"and the job needs {vcpus}: it would wait forever; ask for more at "
        f"https://{target.region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/"
        f"{quota.code}{fewer}",
    )


def check_block(
    aws: Aws,
    batch: BatchClient,
    target: Deployment,
    request: JobRequest,
    note: Callable[[str], None],
) -> None:
    """Refuse a job that its queue would cancel before the deployment's Capacity Block starts.

    Launches into a block that has not started fail for want of capacity (EC2 user guide, EC2 Fleet
    and Capacity Blocks), which is what the queue's time limit counts.
    """
    block = (target.settings or {}).get("capacity_block_id")
    if block is None or request.hardware is Hardware.CPU:
        return
    try:
        (found,) = aws.ec2().describe_capacity_reservations(CapacityReservationIds=[block])[
            "CapacityReservations"
        ]
        queues = batch.describe_job_queues(jobQueues=[target.job_queue])["jobQueues"]
    except Exception as error:
        reason = error_code(error) or type(error).__name__
        note(f"Capacity Block {block} was not looked at ({reason}): it must have started")
        return
    now = datetime.now(UTC)
    if found["State"] in ENDED_RESERVATIONS or found.get("EndDate", now) < now:
        raise Refusal(
            "block-ended",
            f"Capacity Block {block} is {found['State']}, and its instances are gone: on Batch "
            "destroy the `batch` stack and deploy again with the next one: "
            f"{target.redeploy(capacity_block_id='<next block>')}",
        )
    limit = _wait_for_capacity(queues)
    start = found.get("StartDate", now)
    if limit is not None and start - now > limit:
        minutes = round(limit.total_seconds() / 60)
        raise Refusal(
            "block-not-started",
            f"Capacity Block {block} ({counted(found['TotalInstanceCount'], 'instance')}) starts "
            f"at {utc(start)}, and the queue cancels a job that has waited {minutes} minutes for "
            f"capacity: submit after {utc(start - limit)}",
        )


def _wait_for_capacity(queues: list[dict[str, Any]]) -> timedelta | None:
    """Time that the queue lets a job wait for capacity; None if it has no limit."""
    seconds = [
        action["maxTimeSeconds"]
        for queue in queues
        for action in queue.get("jobStateTimeLimitActions", ())
        if action["reason"].startswith("CAPACITY")
    ]
    return timedelta(seconds=min(seconds)) if seconds else None


def utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
