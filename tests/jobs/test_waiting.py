"""Why a job waits if Batch gives no reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from jobs.batch.waiting import why_waiting
from tests.jobs.fakes import FakeBatch, FakeClock
from tests.jobs.samples import DEPLOYMENT, JOB

IN_ORDER = {"state": "ENABLED", "status": "VALID", "computeResources": {"maxvCpus": 512}}


@dataclass(slots=True)
class Infrastructure(FakeBatch):
    """A queue and a compute environment."""

    queue: dict[str, Any] = field(default_factory=lambda: dict(IN_ORDER))
    environment: dict[str, Any] = field(default_factory=lambda: dict(IN_ORDER))

    def describe_job_queues(self, **kwargs: Any) -> Mapping[str, Any]:
        return {"jobQueues": [self.queue]}

    def describe_compute_environments(self, **kwargs: Any) -> Mapping[str, Any]:
        return {"computeEnvironments": [self.environment]}


@pytest.mark.parametrize("part", ["queue", "environment"])
@pytest.mark.parametrize("fault", [{"state": "DISABLED"}, {"status": "INVALID"}])
def test_disabled_or_invalid_part_is_named(part: str, fault: dict[str, str]) -> None:
    batch = Infrastructure(FakeClock())
    getattr(batch, part).update(fault, statusReason="CLIENT_ERROR - no such role")

    found = why_waiting(batch, DEPLOYMENT, JOB)

    assert part in found.meaning
    assert next(iter(fault.values())) in found.meaning
    assert "CLIENT_ERROR - no such role" in found.meaning


def test_too_small_compute_environment_is_named_with_figures() -> None:
    batch = Infrastructure(FakeClock())
    batch.environment["computeResources"] = {"maxvCpus": 256}

    found = why_waiting(batch, DEPLOYMENT, JOB)

    assert found.meaning == "the job needs 512 vCPUs; the compute environment allows only 256"
    assert "trainium:max_nodes=4" in found.remedy


def test_quota_is_suggested_if_infrastructure_is_healthy() -> None:
    found = why_waiting(Infrastructure(FakeClock()), DEPLOYMENT, JOB)

    assert "(L-2C3B7624) covers 512" in found.remedy


def test_invalidated_environment_points_at_hosts() -> None:
    batch = Infrastructure(FakeClock())
    # Verbatim: AWS Batch user guide, INVALID compute environment.
    batch.environment.update(
        status="INVALID",
        statusReason="Your compute environment has been INVALIDATED and scaled down because none "
        "of the instances joined the underlying ECS Cluster. Common issues preventing instances "
        "joining are the following: VPC/Subnet configuration preventing communication to ECS, "
        "incorrect Instance Profile policy preventing authorization to ECS, or customized AMI or "
        "LaunchTemplate configurations affecting ECS agent.",
    )

    found = why_waiting(batch, DEPLOYMENT, JOB)

    assert "aws ec2 get-console-output" in found.remedy
