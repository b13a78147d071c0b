"""Serves Batch's job API from the scheduler; moto's cannot run multi-node jobs."""

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from moto.batch.exceptions import ClientException
from moto.batch.responses import BatchResponse
from moto.batch.utils import JobStatus

from trainium_emulators.aws import refusals
from trainium_emulators.aws.batch.job import ArrayJob, BatchJob, ContainerJob, MultiNodeJob
from trainium_emulators.aws.batch.scheduler import JobScheduler
from trainium_emulators.aws.cloudformation.account import StackAccount
from trainium_emulators.aws.cloudformation.contributions import AccountRegion
from trainium_emulators.aws.refusals.request import AwsRequest
from trainium_emulators.aws.refusals.table import SUBMIT, nodes_of

DEFAULT_LISTED = "RUNNING"
PAGE = 100
_SUBMIT_PARAMETERS = (
    "jobName", "jobQueue", "jobDefinition", "arrayProperties", "dependsOn", "parameters",
    "containerOverrides", "nodeOverrides", "retryStrategy", "propagateTags", "timeout", "tags",
    "shareIdentifier", "schedulingPriorityOverride",
)  # fmt: skip
Json = dict[str, Any]


def install(scheduler: JobScheduler) -> None:
    """Serve the job calls of every region from ``scheduler``."""

    def submit(self: BatchResponse) -> str:
        return json.dumps(_submit(self, scheduler))

    def describe(self: BatchResponse) -> str:
        job_ids = self._get_param("jobs") or []
        return json.dumps({"jobs": list(_describe(scheduler, job_ids))})

    def list_jobs(self: BatchResponse) -> str:
        return json.dumps(_list(self, scheduler))

    def terminate(self: BatchResponse) -> str:
        scheduler.terminate(_own_id(self._get_param("jobId")), self._get_param("reason"))
        return "{}"

    def cancel(self: BatchResponse) -> str:
        scheduler.cancel(_own_id(self._get_param("jobId")), self._get_param("reason"))
        return "{}"

    BatchResponse.submitjob = submit
    BatchResponse.describejobs = describe
    BatchResponse.listjobs = list_jobs
    BatchResponse.terminatejob = terminate
    BatchResponse.canceljob = cancel


def _check_submission(request: BatchResponse, definition: Any, queue: Any) -> None:
    values = {name: request._get_param(name) for name in _SUBMIT_PARAMETERS}
    given = {name: value for name, value in values.items() if value is not None}
    known = {
        "definition": {"type": definition.type, "nodeProperties": definition.node_properties},
        "queue": {"state": queue.state},
    }
    place = AccountRegion(account_id=request.current_account, region=request.region)
    submission = AwsRequest(properties={**given, **known}, account=StackAccount(place))
    for message in refusals.messages(SUBMIT, submission):
        raise ClientException(message)


def _own_id(job_id: str) -> str:
    """Return the id of the whole job from its own id, a node's id or an ARN."""
    return job_id.rpartition("/")[2].partition("#")[0]


def _submit(request: BatchResponse, scheduler: JobScheduler) -> dict[str, str]:
    backend = request.batch_backend
    name = request._get_param("jobName")
    queue = backend.get_job_queue(request._get_param("jobQueue"))
    if queue is None:
        raise ClientException(f"Job queue {request._get_param('jobQueue')} does not exist")
    definition = backend.get_job_definition(request._get_param("jobDefinition"))
    if definition is None or definition.status != "ACTIVE":
        raise ClientException(f"JobDefinition {request._get_param('jobDefinition')} is not active")
    _check_submission(request, definition, queue)
    timeout = request._get_param("timeout") or definition.timeout or {}
    seconds = timeout.get("attemptDurationSeconds")
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
    except UnsupportedOverride as refusal:
        raise ClientException(str(refusal)) from None
    scheduler.submit(job)
    return {"jobId": job.job_id, "jobName": job.name, "jobArn": job.arn}


def _job(request: BatchResponse, definition: Any, common: dict[str, Any]) -> BatchJob:
    size = (request._get_param("arrayProperties") or {}).get("size")
    if definition.type == "multinode":
        properties = node_properties(
            definition.node_properties, request._get_param("nodeOverrides") or {}
        )
        return MultiNodeJob(properties=properties, **common)
    properties = container_properties(
        definition.container_properties, request._get_param("containerOverrides") or {}
    )
    if size is None:
        return ContainerJob(properties=properties, **common)
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


def _dependencies(given: list[dict[str, str]], scheduler: JobScheduler) -> tuple[str, ...]:
    """Return the ids of the jobs that must succeed first."""
    for entry in given:
        if "type" in entry:
            raise ClientException("the rehearsal does not support dependency types")
        if scheduler.get(_own_id(entry["jobId"])) is None:
            raise ClientException(f"Job {entry['jobId']} does not exist")
    return tuple(_own_id(entry["jobId"]) for entry in given)


def _describe(scheduler: JobScheduler, job_ids: Iterable[str]) -> Iterable[dict[str, Any]]:
    for job_id in job_ids:
        job = scheduler.get(_own_id(job_id))
        if job is None:
            continue
        _, separator, index = job_id.partition("#")
        if not separator:
            yield job.describe()
        elif isinstance(job, MultiNodeJob) and index.isdigit() and int(index) < job.num_nodes:
            yield job.describe_node(int(index))


def _list(request: BatchResponse, scheduler: JobScheduler) -> dict[str, Any]:
    """List jobs, newest first; filters override the status (API reference)."""
    status = request._get_param("jobStatus") or DEFAULT_LISTED
    parent = request._get_param("multiNodeJobId")
    if parent is not None:
        job = scheduler.get(_own_id(parent))
        indexes = range(job.num_nodes) if isinstance(job, MultiNodeJob) else ()
        nodes = [job.node_summary(index) for index in indexes]  # type: ignore[union-attr]
        return {"jobSummaryList": [node for node in nodes if node["status"] == status]}
    parent = request._get_param("arrayJobId")
    if parent is not None:
        array = scheduler.get(_own_id(parent))
        children = array.children if isinstance(array, ArrayJob) else []
        entries = [child.summary() for child in children if child.status == status]
        return {"jobSummaryList": entries}
    queue = request.batch_backend.get_job_queue(request._get_param("jobQueue"))
    if queue is None:
        raise ClientException(f"Job queue {request._get_param('jobQueue')} does not exist")
    # Children of an array are listed only under their parent.
    jobs = [
        job
        for job in reversed(scheduler.jobs())
        if job.queue_arn == queue.arn and ":" not in job.job_id
    ]
    filters = request._get_param("filters") or []
    for entry in filters:
        jobs = [job for job in jobs if _passes(job, entry)]
    if not filters:
        jobs = [job for job in jobs if job.status == JobStatus(status).value]
    start = int(request._get_param("nextToken") or 0)
    size = int(request._get_param("maxResults") or PAGE)
    page: dict[str, Any] = {"jobSummaryList": [job.summary() for job in jobs[start : start + size]]}
    if start + size < len(jobs):
        page["nextToken"] = str(start + size)
    return page


def _passes(job: BatchJob, entry: dict[str, Any]) -> bool:
    value = str(entry["values"][0])
    match entry["name"]:
        case "JOB_NAME":
            return job.name.lower() == value.lower()
        case "AFTER_CREATED_AT":
            return job.created_at > int(value)
        case other:
            raise ClientException(f"the rehearsal does not support the filter {other}")


class UnsupportedOverride(ValueError):
    """Raised for overrides that the emulator does not support, although Batch may."""


def node_properties(definition: Mapping[str, Any], overrides: Mapping[str, Any]) -> Json:
    """Return the job's node properties, with one container per node index under ``nodes``.

    The node ranges cover all nodes, because the table of refusals refuses any other submission.
    Raises ``UnsupportedOverride``.
    """
    properties = copy.deepcopy(dict(definition))
    ranges = properties["nodeRangeProperties"]
    num_nodes = int(overrides.get("numNodes", properties["numNodes"]))
    properties["numNodes"] = num_nodes
    containers: dict[int, Json] = {}
    for entry in ranges:
        for index in nodes_of(entry["targetNodes"], num_nodes):
            containers[index] = copy.deepcopy(entry["container"])
    for override in overrides.get("nodePropertyOverrides", ()):
        given = override.get("containerOverrides", {})
        for index in nodes_of(override["targetNodes"], num_nodes):
            _apply(containers[index], given)
    return {**properties, "nodes": [containers[index] for index in range(num_nodes)]}


def container_properties(definition: Mapping[str, Any], overrides: Mapping[str, Any]) -> Json:
    """Return the definition's container properties with the submission's overrides.

    Raises ``UnsupportedOverride``.
    """
    properties = copy.deepcopy(dict(definition))
    _apply(properties, overrides)
    return properties


def _apply(container: Json, given: Mapping[str, Any]) -> None:
    # Resource requirements are accepted, but have no effect because nodes are processes.
    unknown = set(given) - {"command", "environment", "resourceRequirements"}
    if unknown:
        raise UnsupportedOverride(f"the rehearsal does not support overrides of {sorted(unknown)}")
    if "command" in given:
        container["command"] = list(given["command"])
    environment = {pair["name"]: pair["value"] for pair in container.get("environment", ())}
    environment |= {pair["name"]: pair["value"] for pair in given.get("environment", ())}
    container["environment"] = [{"name": k, "value": v} for k, v in environment.items()]
