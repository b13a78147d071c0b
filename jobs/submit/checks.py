"""What is refused before a job is submitted: each check is one message with its remedy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.job import JobRequest
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.instances import USD_PER_JOB_HOUR_ESTIMATE
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, Hardware, Value, Workload, find_workload

(_STOP_GRACE,) = (item for item in LAUNCH_PARAMETERS if item.name == "stop-grace-s")
MAX_OVERRIDE_CHARACTERS = 8192
"""Limit of ECS for the overrides of one task (RunTask API reference, ``overrides``)."""
MAX_PAYLOAD_BYTES = 30 * 1024
"""Limit of Batch for SubmitJob (Batch user guide, service quotas)."""
MAX_ARRAY_SIZE = 10_000
"""Children of an array job (Batch user guide, array jobs)."""
MIN_TIME_LIMIT_HOURS = 60 / 3600
"""Batch's least ``attemptDurationSeconds`` is 60 (API reference, JobTimeout)."""


def known_workload(name: str) -> Workload:
    """Look the workload up; refuse an unknown one."""
    try:
        return find_workload(name)
    except ValueError as error:
        raise Refusal("unknown-workload", str(error)) from None


def valid_run_name(run: str) -> str:
    """Refuse what cannot be a Batch job name and a prefix in the bucket."""
    if re.fullmatch(contract.RUN_NAME_PATTERN, run):
        return run
    nearest = re.sub(r"[^A-Za-z0-9_-]+", "-", run).lstrip("-_")[:100].rstrip("-_")
    hint = f"; {nearest!r} would do" if nearest else ""
    raise Refusal(
        "run-name",
        f"{run!r} cannot be a run name: it takes 1 to 100 letters, digits, hyphens and "
        f"underscores and begins with a letter or digit{hint}",
    )


def checked_request(
    deployment: Deployment,
    workload: Workload,
    *,
    run: str,
    num_nodes: int,
    time_limit_hours: float | None,
    parameters: dict[str, Value],
    orchestrator: Orchestrator = Orchestrator.BATCH,
    scales: bool = False,
) -> JobRequest:
    """Build the request that this deployment can run, or refuse."""
    on_cpu = workload.hardware is Hardware.CPU
    if not on_cpu:
        _check_nodes(deployment, num_nodes)
    if orchestrator is Orchestrator.BATCH:
        _check_grace(parameters)
    cap = deployment.job_time_limit_hours
    queue = deployment.cpu_job_queue if on_cpu else deployment.job_queue
    definition = deployment.job_definition
    if orchestrator is Orchestrator.EKS:
        assert deployment.eks is not None
        cap, queue, definition = deployment.eks.job_time_limit_hours, deployment.eks.queue, None
    assert queue is not None
    hours = _checked_hours(deployment, workload, time_limit_hours, cap)
    request = JobRequest(
        run=valid_run_name(run),
        workload=workload.name,
        num_nodes=num_nodes,
        time_limit_hours=hours,
        deployment=deployment.name,
        job_queue=queue,
        job_definition=definition,
        usd_per_node_hour=(
            USD_PER_JOB_HOUR_ESTIMATE if on_cpu else deployment.instance_type.usd_per_hour_estimate
        ),
        hardware=workload.hardware,
        orchestrator=orchestrator,
        parameters=parameters,
        scales=scales,
    )
    check_length(request)
    return request


def check_size(workload: Workload, num_nodes: int) -> None:
    """Refuse a number of nodes that the workload cannot use on any deployment."""
    least = max(1, workload.min_nodes)
    if num_nodes < least:
        raise Refusal(
            "too-few-nodes",
            f"--nodes {num_nodes} is too few: {workload.name} needs at least {least}; submit with "
            f"--nodes {least}",
        )
    if workload.hardware is Hardware.CPU:
        if num_nodes > 1 and not workload.is_array:
            raise Refusal(
                "too-many-nodes",
                f"--nodes {num_nodes}: {workload.name} is one container on an ordinary instance "
                "and cannot be split; leave --nodes out",
            )
        if num_nodes > MAX_ARRAY_SIZE:
            raise Refusal(
                "too-many-nodes",
                f"--nodes {num_nodes}: an array job has at most {MAX_ARRAY_SIZE:,} children; "
                "submit with fewer",
            )
    if workload.max_nodes is not None and num_nodes > workload.max_nodes:
        raise Refusal(
            "too-many-nodes",
            f"--nodes {num_nodes}: {workload.name} runs on at most {workload.max_nodes}; submit "
            f"with --nodes {workload.max_nodes}",
        )


def _check_nodes(deployment: Deployment, num_nodes: int) -> None:
    instance_type = deployment.instance_type
    if num_nodes > 1 and not instance_type.supports_multi_node:
        raise Refusal(
            "single-node-type",
            f"--nodes {num_nodes} cannot run on {instance_type.name}, which deployment "
            f"{deployment.name!r} uses: it has no EFA; submit with --nodes 1, or deploy a type "
            f"with EFA: {deployment.redeploy_command(instance_type='trn1.32xlarge')}",
        )
    if num_nodes > deployment.max_nodes:
        raise Refusal(
            "too-many-nodes",
            f"--nodes {num_nodes} is more than deployment {deployment.name!r} can hold "
            f"({deployment.max_nodes}); submit with --nodes {deployment.max_nodes} or fewer, or "
            f"deploy again with `{deployment.redeploy_command(max_nodes=num_nodes)}` and the other "
            "-c settings it was deployed with",
        )


def _check_grace(parameters: Mapping[str, Value]) -> None:
    """Refuse a grace that ECS, whose limit is the hosts' and the same for all jobs, would cut."""
    asked = float(parameters.get(_STOP_GRACE.name, _STOP_GRACE.default))
    most = float(_STOP_GRACE.default)
    if asked > most:
        raise Refusal(
            "grace-too-long",
            f"--{_STOP_GRACE.name} {asked:g} is too long on AWS Batch: hosts are set up to kill a "
            f"container soon after {most:g} s, whatever a job wants; give {most:g} or less, or "
            "submit with --on eks, where a pod's own grace follows",
        )


def _checked_hours(
    deployment: Deployment, workload: Workload, asked: float | None, cap: float
) -> float:
    if asked is None:
        # A default must not be refused: the deployment's cap simply shortens it.
        return min(workload.time_limit_hours, cap)
    if not math.isfinite(asked) or asked < MIN_TIME_LIMIT_HOURS:
        raise Refusal(
            "time-limit-too-short",
            f"--time-limit {asked:g} is too short: the least is {MIN_TIME_LIMIT_HOURS:.4f} hours "
            "(60 seconds); leave it out for the workload's default of "
            f"{workload.time_limit_hours:g}",
        )
    if asked > cap:
        raise Refusal(
            "time-limit-over-cap",
            f"--time-limit {asked:g} hours is over the cap of deployment {deployment.name!r} "
            f"({cap:g}); submit with --time-limit {cap:g} or less, or deploy again with "
            f"`{deployment.redeploy_command(job_time_limit_hours=f'{asked:g}')}` and the other "
            "-c settings it was deployed with",
        )
    return asked


def check_length(request: JobRequest) -> None:
    """Refuse parameters that Batch or ECS would refuse for their length; a cluster takes more."""
    if request.orchestrator is Orchestrator.EKS:
        return
    length = request.overrides_length()
    if length > MAX_OVERRIDE_CHARACTERS:
        raise Refusal(
            "parameters-too-long",
            f"the parameters make container overrides of {length} characters; ECS takes at most "
            f"{MAX_OVERRIDE_CHARACTERS}; shorten their values",
        )
    size = len(json.dumps(request.to_submit_kwargs()).encode())
    if size > MAX_PAYLOAD_BYTES:
        raise Refusal(
            "parameters-too-long",
            f"the submission is {size} bytes long; Batch takes at most {MAX_PAYLOAD_BYTES}; "
            "shorten their values",
        )
