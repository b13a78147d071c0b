"""The log streams of a job's pods in CloudWatch, which outlive pods and nodes."""

from __future__ import annotations

import re
from typing import Any

from jobs.aws import LogStreamsClient
from jobs.job import Job, NodeLog
from trainium_catalogue import kubernetes


def list_streams(logs: LogStreamsClient, log_group: str, job: Job) -> list[NodeLog]:
    """List the streams of all attempts.

    A stream's name says which node it is, not which attempt: that is counted. Volcano restarts all
    pods of a gang, so the second stream of any node begins another attempt. Pods that still exist
    know theirs.
    """
    known = {each.name: each.attempt for each in job.node_logs}
    start = f"{kubernetes.LOG_STREAM_PREFIX}{job.job_id}-{kubernetes.TASK}-"
    name_of = re.compile(rf"{re.escape(start)}(\d+)-\d+/[^/]+")
    found: list[NodeLog] = []
    number, seen = 1, set[int]()
    for stream in sorted(_streams(logs, log_group, start), key=lambda each: each["creationTime"]):
        name = str(stream["logStreamName"])
        if not (match := name_of.fullmatch(name)):
            continue
        node = int(match[1])
        attempt = known.get(name) or (number + 1 if node in seen else number)
        if attempt > number:
            number, seen = attempt, set()
        seen.add(node)
        found.append(NodeLog(name=name, node=node, attempt=attempt))
    return found


def _streams(logs: LogStreamsClient, log_group: str, start: str) -> list[Any]:
    found: list[Any] = []
    token: dict[str, str] = {}
    while True:
        page = logs.describe_log_streams(logGroupName=log_group, logStreamNamePrefix=start, **token)
        found += page["logStreams"]
        if not page.get("nextToken"):
            return found
        token = {"nextToken": page["nextToken"]}
