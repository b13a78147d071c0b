"""A multi-node job and its attempts, as DescribeJobs and ListJobs show them."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

ACTIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")


def now_ms() -> int:
    """Milliseconds since the epoch: Batch's clock."""
    return int(time.time() * 1000)


@dataclass(slots=True, kw_only=True)
class NodeAttempt:
    """One node in one attempt."""

    log_stream: str
    started_at: int
    stopped_at: int | None = None
    exit_code: int | None = None
    reason: str = ""
    status_reason: str = ""

    def container(self) -> Json:
        """The ``container`` of an attempt."""
        details: Json = {"logStreamName": self.log_stream}
        if self.exit_code is not None:
            details["exitCode"] = self.exit_code
        if self.reason:
            details["reason"] = self.reason
        return details

    def describe(self) -> Json:
        """An entry of ``attempts``."""
        entry: Json = {"container": self.container(), "startedAt": self.started_at}
        if self.stopped_at is not None:
            entry["stoppedAt"] = self.stopped_at
        if self.status_reason:
            entry["statusReason"] = self.status_reason
        return entry


@dataclass(slots=True, kw_only=True)
class MultiNodeJob:
    """A submitted job."""

    name: str
    region: str
    account_id: str
    queue_arn: str
    definition_arn: str
    properties: Json
    """Node properties with one container per node under ``nodes``."""
    retry_strategy: Json
    timeout_s: int | None
    tags: dict[str, str]
    job_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: str = "SUBMITTED"
    status_reason: str = ""
    created_at: int = field(default_factory=now_ms)
    started_at: int | None = None
    stopped_at: int | None = None
    terminate_reason: str | None = None
    attempts: list[list[NodeAttempt | None]] = field(default_factory=list)
    """For each attempt, every node that was started; the last list is the current attempt."""

    @property
    def num_nodes(self) -> int:
        """Nodes of the gang."""
        return int(self.properties["numNodes"])

    @property
    def main_index(self) -> int:
        """Index of the main node."""
        return int(self.properties["mainNode"])

    @property
    def arn(self) -> str:
        """The job's ARN."""
        return f"arn:aws:batch:{self.region}:{self.account_id}:job/{self.job_id}"

    @property
    def is_active(self) -> bool:
        """Neither succeeded nor failed."""
        return self.status in ACTIVE

    def _common(self) -> Json:
        detail: Json = {
            "jobName": self.name,
            "jobQueue": self.queue_arn,
            "jobDefinition": self.definition_arn,
            "status": self.status,
            "createdAt": self.created_at,
            "tags": self.tags,
            "retryStrategy": self.retry_strategy,
            "parameters": {},
            "dependsOn": [],
            "platformCapabilities": ["EC2"],
            "isTerminated": self.terminate_reason is not None,
            "isCancelled": False,
        }
        if self.timeout_s is not None:
            detail["timeout"] = {"attemptDurationSeconds": self.timeout_s}
        if self.status_reason:
            detail["statusReason"] = self.status_reason
        return detail

    def describe(self) -> Json:
        """The job itself; its attempts are those of the main node."""
        properties = {key: value for key, value in self.properties.items() if key != "nodes"}
        ended = [nodes[self.main_index] for nodes in self.attempts]
        return {
            **self._common(),
            **self._times(self.started_at, self.stopped_at),
            "jobArn": self.arn,
            "jobId": self.job_id,
            "nodeProperties": properties,
            "attempts": [node.describe() for node in ended if node and node.stopped_at],
        }

    def describe_node(self, index: int) -> Json:
        """A child job, ``<job id>#<index>``."""
        started = [nodes[index] for nodes in self.attempts if nodes[index] is not None]
        last = started[-1] if started else None
        container = dict(self.properties["nodes"][index])
        if last is not None:
            container |= last.container()
        return {
            **self._common(),
            **self._times(last.started_at if last else None, last.stopped_at if last else None),
            "jobArn": f"{self.arn}#{index}",
            "jobId": f"{self.job_id}#{index}",
            "status": self._node_status(last),
            "container": container,
            "nodeDetails": {"nodeIndex": index, "isMainNode": index == self.main_index},
            "attempts": [node.describe() for node in started if node and node.stopped_at],
        }

    def _node_status(self, last: NodeAttempt | None) -> str:
        if last is None:
            return "STARTING" if self.status == "RUNNING" else self.status
        if last.stopped_at is None:
            return "RUNNING"
        return "SUCCEEDED" if last.exit_code == 0 else "FAILED"

    @staticmethod
    def _times(started_at: int | None, stopped_at: int | None) -> Json:
        times = {"startedAt": started_at, "stoppedAt": stopped_at}
        return {key: value for key, value in times.items() if value is not None}

    def summary(self, index: int | None = None) -> Json:
        """An entry of ListJobs: the job, or one of its nodes."""
        detail = self.describe() if index is None else self.describe_node(index)
        keys = ("jobArn", "jobId", "jobName", "status", "statusReason", "createdAt", "startedAt",
                "stoppedAt", "jobDefinition")  # fmt: skip
        entry = {key: detail[key] for key in keys if key in detail}
        node: Mapping[str, Any] = {
            "numNodes": self.num_nodes,
            **(detail["nodeDetails"] if index is not None else {}),
        }
        return {**entry, "nodeProperties": dict(node)}
