"""The log streams of a job's pods in CloudWatch, which outlive pods and nodes."""

from __future__ import annotations

import re
from collections.abc import Collection

from jobs.aws import LogStreamsClient, pages
from jobs.job import Job, NodeLog
from trainium_catalogue import kubernetes


def list_streams(
    logs: LogStreamsClient, log_group: str, job: Job, nodes: Collection[int] | None = None
) -> list[NodeLog]:
    """List the streams of all attempts, for ``nodes`` or for all nodes.

    A stream's name contains the node but not the attempt, so attempts are counted: Volcano restarts
    all pods of a gang, so a second stream of a node belongs to the next attempt. The attempt of an
    existing pod is known.
    """
    known = {each.name: each.attempt for each in job.node_logs}
    start = f"{kubernetes.LOG_STREAM_PREFIX}{job.job_id}-{kubernetes.TASK}-"
    name_of = re.compile(rf"{re.escape(start)}(\d+)-\d+/[^/]+")
    starts = [start] if nodes is None else [f"{start}{node}-" for node in sorted(nodes)]
    listed = [
        stream
        for each in starts
        for page in pages(
            logs.describe_log_streams, logGroupName=log_group, logStreamNamePrefix=each
        )
        for stream in page["logStreams"]
    ]
    node_logs: list[NodeLog] = []
    number, seen = 1, set[int]()
    for stream in sorted(listed, key=lambda each: each["creationTime"]):
        name = str(stream["logStreamName"])
        if not (match := name_of.fullmatch(name)):
            continue
        node = int(match[1])
        attempt = known.get(name) or (number + 1 if node in seen else number)
        if attempt > number:
            number, seen = attempt, set()
        seen.add(node)
        node_logs.append(NodeLog(name=name, node=node, attempt=attempt))
    return node_logs
