"""Read the deployed stacks and their running jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.aws import BatchClient, CloudFormationClient
from jobs.batch.service import list_runs
from jobs.deploy_check.assembly import Template, stack_pattern
from jobs.job import ON_HOSTS, RunSummary
from trainium_catalogue.workloads import Hardware

# REVIEW_IN_PROGRESS: the stack's first change set was never executed. In the ROLLBACK states, its
# creation failed, and `cdk deploy` deletes and recreates it.
_NOT_DEPLOYED = ("DELETE_COMPLETE", "REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED")
_PER_CALL = 100  # maximum number of ids in a DescribeJobs request (Batch API reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedStack:
    """A deployed stack."""

    name: str
    status: str
    template: Template
    physical_ids: Mapping[str, str]
    """Physical ids by logical id, including deleted resources."""
    deleted: frozenset[str] = frozenset()
    """Logical ids of deleted resources, as after an interrupted destroy."""

    def physical_ids_of(self, resource_type: str) -> list[str]:
        """List the physical ids of its existing resources of a type."""
        return [
            self.physical_ids[name]
            for name, entry in self.template.get("Resources", {}).items()
            if entry["Type"] == resource_type
            # A resource that was never created has no id.
            and self.physical_ids.get(name)
            and name not in self.deleted
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveJob:
    """A job that has not ended."""

    summary: RunSummary
    limit_s: float | None
    """Time limit of its attempt; None if it has none."""

    @property
    def on_hosts(self) -> bool:
        """True if it is running or about to run."""
        return self.summary.status in ON_HOSTS

    def seconds_left(self, now_s: float) -> float | None:
        """Return the seconds left of the job's own time limit; before the start, all of it.

        None if it has none.
        """
        if self.limit_s is None:
            return None
        started_ms = self.summary.started_at_ms
        return self.limit_s - (0.0 if started_ms is None else now_s - started_ms / 1000)


def read_stacks(cloudformation: CloudFormationClient, deployment: str) -> dict[str, DeployedStack]:
    """Read every stack of a deployment."""
    pattern = stack_pattern(deployment)
    pages = cloudformation.get_paginator("describe_stacks").paginate()
    statuses = {
        stack["StackName"]: stack["StackStatus"]
        for page in pages
        for stack in page["Stacks"]
        if pattern.fullmatch(stack["StackName"]) and stack["StackStatus"] not in _NOT_DEPLOYED
    }
    return {
        name: read_stack(cloudformation, name, name, status) for name, status in statuses.items()
    }


def read_stack(
    cloudformation: CloudFormationClient, name: str, stack_id: str, status: str
) -> DeployedStack:
    """Read a stack; a deleted one can be read by id for 90 days (API reference, GetTemplate)."""
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack_id)
    resources = [item for page in pages for item in page["StackResourceSummaries"]]
    return DeployedStack(
        name=name,
        status=status,
        template=_template(cloudformation, stack_id),
        physical_ids={
            item["LogicalResourceId"]: item.get("PhysicalResourceId", "") for item in resources
        },
        deleted=frozenset(
            item["LogicalResourceId"]
            for item in resources
            if item["ResourceStatus"] == "DELETE_COMPLETE"
        ),
    )


def _template(cloudformation: CloudFormationClient, stack: str) -> Template:
    body: Any = cloudformation.get_template(StackName=stack, TemplateStage="Original")
    body = body["TemplateBody"]
    if not isinstance(body, str):
        return dict(body)
    try:
        found: Template = json.loads(body)
    except ValueError:
        import yaml  # the CDK CLI sends small templates as YAML

        # BaseLoader keeps scalars as strings; otherwise a template's version would become a date.
        found = yaml.load(body, Loader=yaml.BaseLoader)
    return found


def jobs_of_queues(batch: BatchClient, queues: list[str]) -> list[ActiveJob]:
    """List the unfinished jobs of queues, newest first."""
    # The hardware only affects how sizes are parsed, and no sizes are shown here.
    runs = list_runs(batch, dict.fromkeys(queues, Hardware.TRAINIUM))
    active = [run for run in runs if not run.ended]
    limits: dict[str, float | None] = {}
    for start in range(0, len(active), _PER_CALL):
        ids = [run.job_id for run in active[start : start + _PER_CALL]]
        for job in batch.describe_jobs(jobs=ids)["jobs"]:
            limits[job["jobId"]] = (job.get("timeout") or {}).get("attemptDurationSeconds")
    return [ActiveJob(summary=run, limit_s=limits.get(run.job_id)) for run in active]
