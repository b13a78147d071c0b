"""Jobs and their attempts, in the form of DescribeJobs and ListJobs."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from trainium_emulators.nodes.environment import NodePlace, batch_environment, container_environment

Json = dict[str, Any]

ACTIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")


def now_ms() -> int:
    """Return milliseconds since the epoch, as in Batch's timestamps."""
    return int(time.time() * 1000)


@dataclass(slots=True, kw_only=True)
class NodeRecord:
    """One node in one attempt of its job."""

    log_stream: str
    started_at: int
    stopped_at: int | None = None
    exit_code: int | None = None
    reason: str = ""
    status_reason: str = ""

    def container(self) -> Json:
        """Return the ``container`` of an attempt."""
        details: Json = {"logStreamName": self.log_stream}
        if self.exit_code is not None:
            details["exitCode"] = self.exit_code
        if self.reason:
            details["reason"] = self.reason
        return details

    def describe(self) -> Json:
        """Return an entry of ``attempts``."""
        entry: Json = {"container": self.container(), "startedAt": self.started_at}
        if self.stopped_at is not None:
            entry["stoppedAt"] = self.stopped_at
        if self.status_reason:
            entry["statusReason"] = self.status_reason
        return entry


@dataclass(slots=True, kw_only=True)
class BatchJob:
    """Base class of all kinds of submitted jobs."""

    name: str
    region: str
    account_id: str
    queue_arn: str
    definition_arn: str
    retry_strategy: Json
    timeout_s: int | None
    tags: dict[str, str]
    depends_on: tuple[str, ...] = ()
    """Ids of the jobs that must succeed first."""
    job_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: str = "SUBMITTED"
    status_reason: str = ""
    created_at: int = field(default_factory=now_ms)
    started_at: int | None = None
    stopped_at: int | None = None
    terminate_reason: str | None = None
    attempts: list[list[NodeRecord | None]] = field(default_factory=list)
    """For each attempt, the record of each node, None until the node starts; the current attempt
    is last."""

    @property
    def arn(self) -> str:
        """The job's ARN."""
        return f"arn:aws:batch:{self.region}:{self.account_id}:job/{self.job_id}"

    @property
    def is_active(self) -> bool:
        """True if the job has neither succeeded nor failed."""
        return self.status in ACTIVE

    @property
    def num_nodes(self) -> int:
        """Number of containers in an attempt."""
        return 1

    @property
    def main_index(self) -> int:
        """Index of the container whose outcome is the job's."""
        return 0

    def container(self, index: int) -> Json:
        """Return the properties of one container."""
        raise TypeError(f"{type(self).__name__} has no containers")

    def environment(self, place: NodePlace, *, main_address: str) -> dict[str, str]:
        """Return the environment variables that Batch sets in one container."""
        return container_environment(place)

    def describe(self) -> Json:
        """Return an entry of DescribeJobs."""
        return {
            **self._common(),
            **self._times(self.started_at, self.stopped_at),
            "jobArn": self.arn,
            "jobId": self.job_id,
            "attempts": [
                nodes[self.main_index].describe()  # type: ignore[union-attr]
                for nodes in self.attempts
                if (main := nodes[self.main_index]) is not None and main.stopped_at is not None
            ],
        }

    def summary(self) -> Json:
        """Return an entry of ListJobs."""
        return _summary(self.describe())

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
            "dependsOn": [{"jobId": other} for other in self.depends_on],
            "platformCapabilities": ["EC2"],
            "isTerminated": self.terminate_reason is not None,
            "isCancelled": False,
        }
        if self.timeout_s is not None:
            detail["timeout"] = {"attemptDurationSeconds": self.timeout_s}
        if self.status_reason:
            detail["statusReason"] = self.status_reason
        return detail

    @staticmethod
    def _times(started_at: int | None, stopped_at: int | None) -> Json:
        times = {"startedAt": started_at, "stoppedAt": stopped_at}
        return {key: value for key, value in times.items() if value is not None}


def _summary(detail: Json) -> Json:
    keys = ("jobArn", "jobId", "jobName", "status", "statusReason", "createdAt", "startedAt",
            "stoppedAt", "jobDefinition")  # fmt: skip
    entry = {key: detail[key] for key in keys if key in detail}
    last = detail.get("container", {})
    if "exitCode" in last:
        entry["container"] = {key: last[key] for key in ("exitCode", "reason") if key in last}
    array = detail.get("arrayProperties")
    if array is not None:
        entry["arrayProperties"] = {key: array[key] for key in ("index", "size") if key in array}
    return entry


@dataclass(slots=True, kw_only=True)
class ContainerJob(BatchJob):
    """A single-container job, standalone or a child of an array."""

    properties: Json
    """Container properties with the submission's overrides."""
    array_index: int | None = None
    array_size: int | None = None

    def container(self, index: int) -> Json:
        return self.properties

    def environment(self, place: NodePlace, *, main_address: str) -> dict[str, str]:
        environment = container_environment(place)
        if self.array_index is not None:
            environment |= {
                "AWS_BATCH_JOB_ARRAY_INDEX": str(self.array_index),
                "AWS_BATCH_JOB_ARRAY_SIZE": str(self.array_size),
            }
        return environment

    def describe(self) -> Json:
        last = self.attempts[-1][0] if self.attempts else None
        detail = {
            **BatchJob.describe(self),
            "container": {**self.properties, **(last.container() if last else {})},
        }
        if self.array_index is not None:
            detail["arrayProperties"] = {"index": self.array_index}
        return detail


@dataclass(slots=True, kw_only=True)
class ArrayJob(BatchJob):
    """The parent of an array, which has no container of its own.

    AWS Batch user guide, array jobs and job states: the parent is PENDING from the time when its
    first child is RUNNABLE until the last one ends, and fails if any child fails.
    """

    children: list[ContainerJob] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """True once every child has ended."""
        return not any(child.is_active for child in self.children)

    def array_properties(self) -> Json:
        """Return the array's size and the number of children per status."""
        counts = dict.fromkeys((*ACTIVE, "SUCCEEDED", "FAILED"), 0)
        for child in self.children:
            counts[child.status] += 1
        return {"size": len(self.children), "statusSummary": counts}

    def describe(self) -> Json:
        first = self.children[0].properties if self.children else {}
        return {
            **BatchJob.describe(self),
            "container": first,
            "arrayProperties": self.array_properties(),
        }


@dataclass(slots=True, kw_only=True)
class MultiNodeJob(BatchJob):
    """A multi-node parallel job."""

    properties: Json
    """Node properties, with one container per node under ``nodes``."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the job."""
        return int(self.properties["numNodes"])

    @property
    def main_index(self) -> int:
        """Index of the main node."""
        return int(self.properties["mainNode"])

    def container(self, index: int) -> Json:
        return dict(self.properties["nodes"][index])

    def environment(self, place: NodePlace, *, main_address: str) -> dict[str, str]:
        return batch_environment(place, main_address=main_address)

    def describe(self) -> Json:
        """Describe the job itself, with the main node's attempts."""
        properties = {key: value for key, value in self.properties.items() if key != "nodes"}
        return {**BatchJob.describe(self), "nodeProperties": properties}

    def describe_node(self, index: int) -> Json:
        """Describe a child job, ``<job id>#<index>``."""
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

    def _node_status(self, last: NodeRecord | None) -> str:
        if last is None:
            return "STARTING" if self.status == "RUNNING" else self.status
        if last.stopped_at is None:
            return "RUNNING"
        return "SUCCEEDED" if last.exit_code == 0 else "FAILED"

    def node_summary(self, index: int) -> Json:
        """Return an entry of ListJobs for one of the nodes."""
        return self._with_nodes(self.describe_node(index))

    def summary(self) -> Json:
        return self._with_nodes(self.describe())

    def _with_nodes(self, detail: Json) -> Json:
        node = {"numNodes": self.num_nodes, **detail.get("nodeDetails", {})}
        return {**_summary(detail), "nodeProperties": node}
