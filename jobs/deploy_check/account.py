"""Read-only view of the deployed stacks and the jobs running on them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.aws import BatchClient, CloudFormationClient
from jobs.batch.service import list_runs
from jobs.deploy_check.assembly import Template, stack_pattern
from jobs.job import ON_HOSTS, RunSummary
from trainium_catalogue.workloads import Hardware

_GONE = "DELETE_COMPLETE"
# REVIEW_IN_PROGRESS: its change set was never executed. In the ROLLBACK states creation failed;
# `cdk deploy` deletes such a stack and creates it again.
_NEVER_CREATED = ("REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED")
_PER_CALL = 100  # ids of DescribeJobs (Batch API reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A deployed stack."""

    name: str
    status: str
    template: Template
    physical_ids: Mapping[str, str]
    """By logical id."""


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
        """Seconds until its own time limit ends it; None if it has none."""
        if self.limit_s is None:
            return None
        begun = self.summary.started_at_ms
        return self.limit_s - (0.0 if begun is None else now_s - begun / 1000)


def read_stacks(cloudformation: CloudFormationClient, deployment: str) -> dict[str, Stack]:
    """Read every stack of a deployment."""
    pattern = stack_pattern(deployment)
    return {
        name: Stack(
            name=name,
            status=status,
            template=_template(cloudformation, name),
            physical_ids=_physical_ids(cloudformation, name),
        )
        for name, status in _names(cloudformation, pattern)
    }


def _names(
    cloudformation: CloudFormationClient, pattern: re.Pattern[str]
) -> Iterator[tuple[str, str]]:
    for page in _pages(cloudformation.describe_stacks):
        for stack in page["Stacks"]:
            name, status = stack["StackName"], stack["StackStatus"]
            if pattern.fullmatch(name) and status not in (_GONE, *_NEVER_CREATED):
                yield name, status


def _template(cloudformation: CloudFormationClient, stack: str) -> Template:
    body: Any = cloudformation.get_template(StackName=stack, TemplateStage="Original")
    body = body["TemplateBody"]
    if not isinstance(body, str):
        return dict(body)
    try:
        found: Template = json.loads(body)
    except ValueError:
        import yaml  # the CDK CLI sends small templates as YAML

        # BaseLoader leaves scalars as text; otherwise a template's version would become a date.
        found = yaml.load(body, Loader=yaml.BaseLoader)
    return found


def _physical_ids(cloudformation: CloudFormationClient, stack: str) -> dict[str, str]:
    return {
        item["LogicalResourceId"]: item.get("PhysicalResourceId", "")
        for page in _pages(cloudformation.list_stack_resources, StackName=stack)
        for item in page["StackResourceSummaries"]
    }


def _pages(call: Any, **kwargs: Any) -> Iterator[Mapping[str, Any]]:
    token: dict[str, str] = {}
    while True:
        page = call(**kwargs, **token)
        yield page
        if not page.get("NextToken"):
            return
        token = {"NextToken": page["NextToken"]}


@dataclass(slots=True)
class BatchJobs:
    """Unfinished jobs of the queues."""

    batch: BatchClient
    _queues: list[Mapping[str, Any]] | None = None
    _jobs: dict[str, list[ActiveJob]] = field(default_factory=dict)

    def of_environment(self, arn: str) -> list[ActiveJob]:
        """List the jobs of every queue attached to a compute environment."""
        if self._queues is None:
            self._queues = list(self._all_queues())
        return [
            job
            for queue in self._queues
            if any(entry["computeEnvironment"] == arn for entry in queue["computeEnvironmentOrder"])
            for job in self.of_queue(queue["jobQueueArn"])
        ]

    def of_queue(self, queue: str) -> list[ActiveJob]:
        """List the jobs of one queue, newest first."""
        if queue not in self._jobs:
            # The hardware only determines how sizes are read, and no sizes are shown here.
            runs = list_runs(self.batch, {queue: Hardware.TRAINIUM})
            active = [run for run in runs if not run.ended]
            limits = self._limits([run.job_id for run in active])
            self._jobs[queue] = [
                ActiveJob(summary=run, limit_s=limits.get(run.job_id)) for run in active
            ]
        return self._jobs[queue]

    def _all_queues(self) -> Iterator[Mapping[str, Any]]:
        token: dict[str, str] = {}
        while True:
            page = self.batch.describe_job_queues(**token)
            yield from page["jobQueues"]
            if not page.get("nextToken"):
                return
            token = {"nextToken": page["nextToken"]}

    def _limits(self, ids: list[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for start in range(0, len(ids), _PER_CALL):
            for job in self.batch.describe_jobs(jobs=ids[start : start + _PER_CALL])["jobs"]:
                limit = (job.get("timeout") or {}).get("attemptDurationSeconds")
                if limit:
                    found[job["jobId"]] = float(limit)
        return found
