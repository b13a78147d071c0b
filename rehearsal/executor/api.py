"""Batch's job API over the scheduler, in place of moto's, which runs no multi-node jobs."""

import json
import re
from collections.abc import Iterable
from typing import Any

from moto.batch.exceptions import ClientException
from moto.batch.responses import BatchResponse
from moto.batch.utils import JobStatus

from rehearsal.executor.job import ArrayJob, ContainerJob, Job, MultiNodeJob
from rehearsal.executor.overrides import InvalidOverride, container_properties, node_properties
from rehearsal.executor.scheduler import Scheduler

JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
DEFAULT_LISTED = "RUNNING"
PAGE = 100
ARRAY_SIZES = range(2, 10_001)
"""AWS Batch user guide, array jobs."""
MAX_DEPENDENCIES = 20


def install(scheduler: Scheduler) -> None:
    """Answer the job calls of every region from ``scheduler``."""

    def submit(self: BatchResponse) -> str:
        return json.dumps(_submit(self, scheduler))

    def describe(self: BatchResponse) -> str:
        wanted = self._get_param("jobs") or []
        return json.dumps({"jobs": list(_describe(scheduler, wanted))})

    def list_jobs(self: BatchResponse) -> str:
        return json.dumps(_list(self, scheduler))

    def terminate(self: BatchResponse) -> str:
        scheduler.terminate(_own_id(self._get_param("jobId")), self._get_param("reason"))
        return "{}"

    BatchResponse.submitjob = submit
    BatchResponse.describejobs = describe
    BatchResponse.listjobs = list_jobs
    BatchResponse.terminatejob = terminate
    BatchResponse.canceljob = terminate


def _own_id(job_id: str) -> str:
    """Id of the whole job, from its own id, a node's id or an ARN."""
    return job_id.rpartition("/")[2].partition("#")[0]


def _submit(request: BatchResponse, scheduler: Scheduler) -> dict[str, str]:
    backend = request.batch_backend
    name = request._get_param("jobName")
    if not JOB_NAME.fullmatch(name):
        raise ClientException(f"Job name {name} is not valid")
    queue = backend.get_job_queue(request._get_param("jobQueue"))
    if queue is None:
        raise ClientException(f"Job queue {request._get_param('jobQueue')} does not exist")
    definition = backend.get_job_definition(request._get_param("jobDefinition"))
    if definition is None or definition.status != "ACTIVE":
        raise ClientException(f"JobDefinition {request._get_param('jobDefinition')} is not active")
    timeout = request._get_param("timeout") or definition.timeout or {}
    seconds = timeout.get("attemptDurationSeconds")
    if seconds is not None and int(seconds) < 60:
        raise ClientException("attemptDurationSeconds must be at least 60")
    common: dict[str, Any] = {
        "name": name,
        "region": request.region,
        "account_id": request.current_account,
        "queue_arn": queue.arn,
        "definition_arn": definition.arn,
        "retry_strategy": request._get_param("retryStrategy") or definition.retry_strategy or {},
        "timeout_s": None if seconds is None else int(seconds),
        "tags": request._get_param("tags") or {},
        "depends_on": _dependencies(request._get_param("dependsOn") or [], scheduler),
    }
    try:
        job = _job(request, definition, common)
    except InvalidOverride as refusal:
        raise ClientException(str(refusal)) from None
    scheduler.submit(job)
    return {"jobId": job.job_id, "jobName": job.name, "jobArn": job.arn}


def _job(request: BatchResponse, definition: Any, common: dict[str, Any]) -> Job:
    size = (request._get_param("arrayProperties") or {}).get("size")
    for given, kind in (("nodeOverrides", "multinode"), ("containerOverrides", "container")):
        if request._get_param(given) and definition.type != kind:
            raise ClientException(f"{given} must not be given for a {definition.type} job")
    if definition.type == "multinode":
        if size is not None:
            raise ClientException("a multi-node parallel job cannot be an array job")
        properties = node_properties(
            definition.node_properties, request._get_param("nodeOverrides") or {}
        )
        return MultiNodeJob(properties=properties, **common)
    properties = container_properties(
        definition.container_properties, request._get_param("containerOverrides") or {}
    )
    if size is None:
        return ContainerJob(properties=properties, **common)
    if int(size) not in ARRAY_SIZES:
        raise ClientException("Array Job size must be between 2 and 10000")
    parent = ArrayJob(**common)
    parent.children = [
        ContainerJob(
            properties=properties,
            job_id=f"{parent.job_id}:{index}",
            array_index=index,
            array_size=int(size),
            **common,
        )
        for index in range(int(size))
    ]
    return parent


def _dependencies(given: list[dict[str, str]], scheduler: Scheduler) -> tuple[str, ...]:
    """Ids of the jobs that must succeed first."""
    if len(given) > MAX_DEPENDENCIES:
        raise ClientException(f"a job can depend on {MAX_DEPENDENCIES} jobs at most")
    for entry in given:
        if "type" in entry:
            raise ClientException("the rehearsal does not understand types of dependencies")
        if scheduler.get(_own_id(entry["jobId"])) is None:
            raise ClientException(f"Job {entry['jobId']} does not exist")
    return tuple(_own_id(entry["jobId"]) for entry in given)


def _describe(scheduler: Scheduler, wanted: Iterable[str]) -> Iterable[dict[str, Any]]:
    for text in wanted:
        job = scheduler.get(_own_id(text))
        if job is None:
            continue
        _, mark, index = text.partition("#")
        if not mark:
            yield job.describe()
        elif isinstance(job, MultiNodeJob) and index.isdigit() and int(index) < job.num_nodes:
            yield job.describe_node(int(index))


def _list(request: BatchResponse, scheduler: Scheduler) -> dict[str, Any]:
    """Filters replace the status, as the API reference says; newest first."""
    parent = request._get_param("multiNodeJobId")
    if parent is not None:
        job = scheduler.get(_own_id(parent))
        nodes = range(job.num_nodes) if isinstance(job, MultiNodeJob) else ()
        return {"jobSummaryList": [job.node_summary(index) for index in nodes]}  # type: ignore[union-attr]
    parent = request._get_param("arrayJobId")
    if parent is not None:
        array = scheduler.get(_own_id(parent))
        status = request._get_param("jobStatus") or DEFAULT_LISTED
        children = array.children if isinstance(array, ArrayJob) else []
        entries = [child.summary() for child in children if child.status == status]
        return {"jobSummaryList": entries}
    queue = request.batch_backend.get_job_queue(request._get_param("jobQueue"))
    if queue is None:
        raise ClientException(f"Job queue {request._get_param('jobQueue')} does not exist")
    # Children of an array are listed by their parent only.
    jobs = [
        job
        for job in reversed(scheduler.jobs())
        if job.queue_arn == queue.arn and ":" not in job.job_id
    ]
    filters = request._get_param("filters") or []
    for entry in filters:
        jobs = [job for job in jobs if _passes(job, entry)]
    if not filters:
        status = request._get_param("jobStatus") or DEFAULT_LISTED
        jobs = [job for job in jobs if job.status == JobStatus(status).value]
    start = int(request._get_param("nextToken") or 0)
    size = int(request._get_param("maxResults") or PAGE)
    page: dict[str, Any] = {"jobSummaryList": [job.summary() for job in jobs[start : start + size]]}
    if start + size < len(jobs):
        page["nextToken"] = str(start + size)
    return page


def _passes(job: Job, entry: dict[str, Any]) -> bool:
    value = str(entry["values"][0])
    match entry["name"]:
        case "JOB_NAME":
            if value.endswith("*"):
                return job.name.lower().startswith(value[:-1].lower())
            return job.name.lower() == value.lower()
        case "AFTER_CREATED_AT":
            return job.created_at > int(value)
        case "BEFORE_CREATED_AT":
            return job.created_at < int(value)
        case other:
            raise ClientException(f"the rehearsal does not understand the filter {other}")
