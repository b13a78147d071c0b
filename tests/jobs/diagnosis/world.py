"""Puts a planted run into the emulators: a moto server and the cluster's API server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto.autoscaling.responses import AutoScalingResponse
from moto.batch.models import BatchBackend
from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ec2.responses import EC2Response

from tests.emulators.volcano_jobs import job
from tests.jobs.conftest import ACCOUNT, REGION, Cli
from tests.jobs.diagnosis.plantings import INSTANCE, OnBatch, OnCluster, Planting
from tests.jobs.eks.conftest import INSTANCE_TYPE, NODE_GROUP, EksCli
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.kubernetes import EFA_RESOURCE, NAMESPACE, NEURON_RESOURCE, pod_resources
from trainium_emulators.aws import quotas
from trainium_emulators.kubernetes import store
from trainium_emulators.kubernetes.resources import NODE, POD, VOLCANO_JOB
from trainium_emulators.kubernetes.volcano_objects import record_event

RUN = "planted"
STREAM = "run/default/1a2b"
BLOCK = "cr-0123456789abcdef0"
_PHASES = {
    "RUNNABLE": "Pending",
    "STARTING": "Pending",
    "RUNNING": "Running",
    "FAILED": "Terminated",
    "SUCCEEDED": "Completed",
}
_POD_PHASES = {"STARTING": "Pending", "RUNNING": "Running", "SUCCEEDED": "Succeeded"}
Json = dict[str, Any]


def answer(patch: pytest.MonkeyPatch, service: type, operation: str, found: Json) -> None:
    """Make the server answer an operation with this response."""
    patch.setattr(service, operation, lambda self: ActionResult(found), raising=False)


def plant(planting: Planting, cli: Cli, eks: EksCli | None, patch: pytest.MonkeyPatch) -> None:
    """Set up the account and the cluster as described by the planting."""
    if isinstance(planting, OnBatch):
        _batch(planting, cli, patch)
    else:
        assert isinstance(planting, OnCluster) and eks is not None
        _cluster(planting, eks)
    # Last, since these plantings would make a submission fail.
    _account(planting, cli, patch)


def _account(planting: Planting, cli: Cli, patch: pytest.MonkeyPatch) -> None:
    activities = [
        {
            "ActivityId": str(number),
            "AutoScalingGroupName": "group",
            "Cause": "a difference between desired and actual capacity",
            "Description": "Launching a new EC2 instance",
            "StartTime": datetime.now(UTC) - timedelta(minutes=number),
            "StatusCode": "Failed" if text else "Successful",
            **({"StatusMessage": text} if text else {}),
        }
        for number, text in enumerate(planting.activities, start=1)
    ]
    answer(patch, AutoScalingResponse, "describe_scaling_activities", {"Activities": activities})
    free = 4000 if planting.free_addresses is None else planting.free_addresses
    subnet = {"SubnetId": "subnet-1", "AvailableIpAddressCount": free}
    answer(patch, EC2Response, "describe_subnets", {"Subnets": [subnet]})
    console = planting.console if isinstance(planting, OnBatch) else ""
    reason = planting.state_reason if isinstance(planting, OnBatch) else ""
    host: Json = {"InstanceId": INSTANCE, "StateReason": {"Code": reason, "Message": reason}}
    hosts = [{"Instances": [host]}] if console or reason else []
    answer(patch, EC2Response, "describe_instances", {"Reservations": hosts})
    answer(patch, EC2Response, "get_console_output", {"InstanceId": INSTANCE, "Output": console})
    if planting.reservation is not None:
        cli.parameter(contract.SSM_SETTINGS, f'{{"capacity_block_id": "{BLOCK}"}}')
        starts = datetime.now(UTC) + timedelta(days=planting.reservation["starts"])
        found = {
            **{k: v for k, v in planting.reservation.items() if k != "starts"},
            "CapacityReservationId": BLOCK,
            "StartDate": starts,
            "EndDate": starts + timedelta(days=7),
            "TotalInstanceCount": 4,
        }
        answer(
            patch, EC2Response, "describe_capacity_reservations", {"CapacityReservations": [found]}
        )
    elif planting.quota is not None:
        cli.parameter(contract.SSM_SETTINGS, "{}")
        patch.setitem(quotas.VALUES, "L-2C3B7624", planting.quota)


def _milliseconds(ago: timedelta) -> int:
    return int((time.time() - ago.total_seconds()) * 1000)


def _log(planting: Planting, cli: Cli, stream: str) -> None:
    logs = cli.client("logs")
    logs.create_log_stream(logGroupName="log-group", logStreamName=stream)
    first = _milliseconds(planting.quiet + timedelta(seconds=60))
    events = [
        {"timestamp": first + 1000 * number, "message": text}
        for number, text in enumerate(planting.log)
    ]
    if events:
        logs.put_log_events(logGroupName="log-group", logStreamName=stream, logEvents=events)


# --- Batch -----------------------------------------------------------------------------------
def _batch(planting: OnBatch, cli: Cli, patch: pytest.MonkeyPatch) -> None:
    for run, size in planting.others.items():
        other = cli.backend_job(cli.submitted(run, num_nodes=size))
        # As in ListJobs (Batch API reference, JobSummary); moto omits it.
        short = {**other.describe_short(), "nodeProperties": {"numNodes": size}}
        # A copy each time, since moto's description modifies it.
        patch.setattr(other, "describe_short", lambda shown=short: dict(shown))
    job_id = cli.submitted(RUN)
    _log(planting, cli, STREAM)
    stopped = _milliseconds(timedelta(minutes=1)) if planting.codes else None
    started = _milliseconds(planting.quiet + timedelta(minutes=5))
    nodes = [_node(planting, index, started, stopped) for index in range(2)]
    earlier = [{"container": {"exitCode": code}, "stoppedAt": started} for code in planting.earlier]
    last = [each["attempts"][0] for each in nodes[:1] if each.get("attempts")]
    cli.with_nodes(
        job_id,
        *nodes,
        status=planting.status,
        statusReason=planting.reason or "",
        attempts=[*earlier, *last],
        startedAt=started,
        **({} if stopped is None else {"stoppedAt": stopped}),
    )
    planted = cli.backend_job(job_id)
    short = {"status": planting.status, "statusReason": planting.reason or ""}
    listed = {**planted.describe_short(), **short}
    patch.setattr(planted, "describe_short", lambda: listed)
    name = {"AutoScalingGroupName": "AWSBatch-environment-asg-640012bd"}
    group = {**name, "MinSize": 0, "MaxSize": 4, "DesiredCapacity": 2}
    answer(
        patch, AutoScalingResponse, "describe_auto_scaling_groups", {"AutoScalingGroups": [group]}
    )
    _amend(patch, "describe_job_queues", planting.queue)
    resources = {"maxvCpus": 512, "subnets": ["subnet-1"]}
    _amend(patch, "describe_compute_environments", {"computeResources": resources})
    _amend(patch, "describe_compute_environments", planting.environment)
    if planting.closed_group:
        backend = ec2_backends[ACCOUNT][REGION]
        group_id = backend.get_security_group_from_name(
            "default", vpc_id=backend.get_default_vpc().id
        ).id
        same = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
        cli.client("ec2").revoke_security_group_ingress(GroupId=group_id, IpPermissions=same)


def _node(planting: OnBatch, index: int, started: int, stopped: int | None) -> Json:
    reasons = [*planting.node_reasons, "", ""]
    if index < len(planting.codes):
        container: Json = {"reason": reasons[index]} if reasons[index] else {}
        code = planting.codes[index]
        if code is not None:
            container |= {"exitCode": code, "logStreamName": f"{STREAM}{index or ''}"}
        attempt = {"container": container, "startedAt": started, "stoppedAt": stopped}
        return {"status": planting.status, "attempts": [attempt], "statusReason": ""}
    if planting.status == "RUNNING":
        return {"container": {"logStreamName": f"{STREAM}{index or ''}"}, "startedAt": started}
    return {"status": planting.status, "statusReason": ""}


def _amend(patch: pytest.MonkeyPatch, operation: str, changes: Mapping[str, Any]) -> None:
    """Change a description in moto's Batch."""
    known = getattr(BatchBackend, operation)

    def described(*arguments: Any, **options: Any) -> Any:
        return [{**each, **changes} for each in known(*arguments, **options)]

    patch.setattr(BatchBackend, operation, described)


# --- the cluster -----------------------------------------------------------------------------
def _cluster(planting: OnCluster, eks: EksCli) -> None:
    objects = eks.cluster.store
    for run, size in planting.others.items():
        _job(eks, run, size, "Running", {})
    eks.cluster.scale(NODE_GROUP, INSTANCE_TYPE, planting.nodes)
    phase = _PHASES.get(planting.status, "") if planting.phase is None else planting.phase
    made = _job(eks, RUN, 2, phase, dict(planting.annotations), len(planting.earlier))
    if planting.node:
        objects.update(NODE, "", eks.node_names()[0], lambda node: _harm(node, planting.node))
    for index in range(2):
        if _has_pods(planting):
            _pod(planting, eks, index)
    for reason, message in planting.events:
        about = objects.get(POD, NAMESPACE, _name(0)) if planting.status == "STARTING" else made
        record_event(objects, about, reason=reason, message=message, type_="Warning")
    attempts = contract.attempts_prefix(RUN, RUN)
    if planting.ending is not None:
        code, why = planting.ending
        eks.cli.put(f"{attempts}1-node-0.json", {"schema": 1, "code": code, "reason": why})
    for number, code in enumerate(planting.earlier, start=1):
        document = {"schema": 1, "code": code, "reason": "node 1 was lost: closed"}
        eks.cli.put(f"{attempts}{number}-node-0.json", document)


def _has_pods(planting: OnCluster) -> bool:
    shown = planting.codes or planting.unscheduled or planting.status in ("STARTING", "RUNNING")
    return bool(shown)


def _name(index: int) -> str:
    return f"{RUN}-{kubernetes.TASK}-{index}-0"


def _job(
    eks: EksCli, run: str, size: int, phase: str, annotations: Json, restarts: int = 0
) -> Json:
    resources = {"limits": pod_resources(INSTANCE_TYPE)}
    manifest = job(run, ["true"], nodes=size, resources=resources)
    manifest["metadata"] |= {"annotations": annotations}
    with pytest.MonkeyPatch.context() as clock:
        # Old enough for Volcano to have processed it.
        clock.setattr(store, "now", lambda: _time(timedelta(minutes=5)))
        eks.cluster.apply(manifest)
    state = {"phase": phase, "lastTransitionTime": _time()}
    status: Json = {"state": state, "retryCount": restarts} if phase else {}
    if phase == "Running":
        status["conditions"] = [
            {"status": each, "lastTransitionTime": _time()} for each in ("Pending", "Running")
        ]

    def show(entry: Json) -> None:
        entry["status"] = status

    return eks.cluster.store.update(VOLCANO_JOB, NAMESPACE, run, show)


def _time(ago: timedelta = timedelta(0)) -> str:
    return f"{datetime.now(UTC) - ago:%Y-%m-%dT%H:%M:%SZ}"


def _harm(node: Json, how: str) -> None:
    offers, status = node["status"]["allocatable"], node["status"]
    match how:
        case "silent":
            status["conditions"] = [{"type": "Ready", "status": "Unknown"}]
        case "cordoned":
            node["spec"]["unschedulable"] = True
        case "no chips":
            offers[NEURON_RESOURCE] = "0"
        case "no EFA":
            offers[EFA_RESOURCE] = "0"
        case "fault" | "fault and cordon":
            node["spec"]["unschedulable"] = how != "fault"
            fault = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NeuronHBM"}
            status["conditions"] = [*status["conditions"], fault]


def _pod(planting: OnCluster, eks: EksCli, index: int) -> None:
    uid = f"uid-{index}"
    reasons = [*planting.node_reasons, "", ""]
    reason = reasons[index]
    state: Json = {"running": {"startedAt": _time()}}
    if planting.waiting is not None:
        why, message = planting.waiting
        state = {"waiting": {"reason": why, "message": message}}
    elif planting.status == "STARTING":
        state = {"waiting": {"reason": "ContainerCreating"}}
    elif planting.unscheduled:
        state = {}
    elif planting.codes:
        # The last output of a failed container (terminationMessagePolicy).
        last = planting.log[-1] if planting.log and index == 0 else ""
        ended = {"exitCode": planting.codes[index], "finishedAt": _time(), "message": last}
        known = reason if reason == "OOMKilled" else "Error"
        state = {"terminated": {**ended, "startedAt": _time(), "reason": known}}
    status: Json = {"phase": _POD_PHASES.get(planting.status, "Failed")}
    if reason and reason != "OOMKilled":
        status["reason"], _, status["message"] = reason.partition(": ")
    if planting.unscheduled:
        held = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status = {"phase": "Pending", "conditions": [{**held, "message": planting.unscheduled}]}
    if state:
        status["containerStatuses"] = [{"name": "node", "state": state}]
    number = str(len(planting.earlier))
    labels = {"volcano.sh/job-name": RUN}
    metadata = {
        "name": _name(index),
        "namespace": NAMESPACE,
        "labels": labels,
        "uid": uid,
        "annotations": {"volcano.sh/job-retry-count": number},
    }
    spec: Json = {"containers": [{"name": "node", "image": "image"}]}
    if not planting.unscheduled:
        spec["nodeName"] = eks.node_names()[index]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    made = eks.cluster.store.create(POD, NAMESPACE, pod)
    eks.cluster.store.update(POD, NAMESPACE, _name(index), lambda e: e.update(status=status))
    if index == 0:
        stream = kubernetes.log_stream(_name(index), made["metadata"]["uid"])
        _log(planting, eks.cli, stream)
