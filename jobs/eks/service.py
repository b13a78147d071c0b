"""The EKS implementation of `JobService`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs import errors
from jobs.aws import Aws, LogStreamsClient
from jobs.bucket.objects import Bucket
from jobs.capacity import check_quota, check_window
from jobs.deployment import Deployment, EksTarget
from jobs.eks.cluster import (
    COMMANDS,
    JOBS,
    MERGE_PATCH,
    QUEUES,
    Cluster,
    Json,
    is_missing,
    refusing,
)
from jobs.eks.describe import (
    STOPPED_BY,
    ReportReader,
    describe,
    num_attempts_failed,
    phase_of,
    run_of,
    summarize,
    zone_position,
)
from jobs.eks.log_streams import list_streams
from jobs.eks.node_users import busy_remark
from jobs.eks.nodes import check_ready
from jobs.eks.request import check_run_label, dry_run, launch_spec
from jobs.eks.waiting import waits_for, why_waiting
from jobs.job import Explanation, Job, JobRequest, NodeLog, RunSummary, Shape, ZonePosition
from trainium_catalogue.contract import Orchestrator

WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts to create a job."""
_DEPENDENCY_PAUSE_S = 2.0
"""Pause after submitting a dependency: Volcano's scheduler prefers the older of two jobs, and
compares ages in seconds (pkg/scheduler/framework, JobOrderFn)."""
_POLLS = 20
_POLL_S = 0.25


@dataclass(slots=True)
class EksService:
    """The deployment's cluster."""

    aws: Aws
    target: Deployment
    _cluster: Cluster | None = None
    _reader: ReportReader | None = None
    _logs: LogStreamsClient | None = None
    _built: dict[tuple[str, tuple[str, ...]], Any] = field(default_factory=dict)

    @property
    def orchestrator(self) -> Orchestrator:
        """EKS."""
        return Orchestrator.EKS

    @property
    def log_group(self) -> str:
        """The deployment's log group, shared by all its jobs."""
        return self.target.log_group

    @property
    def eks(self) -> EksTarget:
        """The deployment's cluster settings."""
        if self.target.eks is None:
            raise self.target.unusable[Orchestrator.EKS]
        return self.target.eks

    def cluster(self) -> Cluster:
        """Return the client of the Kubernetes API."""
        if self._cluster is None:
            self._cluster = Cluster(self.aws, self.eks.cluster, self.eks.namespace)
        return self._cluster

    def runs(self, run: str | None = None) -> list[RunSummary]:
        """List the namespace's Volcano jobs, newest first, including those of `torchx run`."""
        with refusing():
            jobs = self.cluster().items(JOBS)
        zones = [*self.eks.node_groups] if self.eks.has_zones else []
        summaries = [summarize(job, zones) for job in jobs]
        chosen = [summary for summary in summaries if run is None or summary.run == run]
        return sorted(chosen, key=lambda summary: summary.created_at_ms, reverse=True)

    def describe(self, job_id: str, shape: Shape | None = None) -> Job | None:
        """Describe a job with its pods."""
        try:
            job = self.cluster().get(f"{JOBS}/{job_id}")
        except Exception as error:
            if is_missing(error):
                return None
            raise
        failed = num_attempts_failed(job)
        endings = self._report_reader().read(run_of(job), job_id, attempts=failed) if failed else {}
        return describe(job, self.cluster().pods_of(job_id), endings)

    def logs(self) -> LogStreamsClient:
        """Return the client for CloudWatch Logs, to which every node sends its pods' logs."""
        if self._logs is None:
            self._logs = self.aws.logs()
        return self._logs

    def set_queue(self, *, is_open: bool) -> bool:
        """Open or close the cluster's queue; return whether it changed.

        Volcano's webhook rejects jobs for a queue that is not open; jobs in the queue remain
        (1.15.1, pkg/webhooks/admission/jobs/validate, pkg/controllers/queue/state).
        """
        path = f"{QUEUES}/{self.eks.queue}"
        with refusing():
            queue = self.cluster().get(path)
            if _is_open(queue) == is_open:
                return False
            action = "OpenQueue" if is_open else "CloseQueue"
            self.cluster().call("POST", COMMANDS, body=_command(queue, action, self.eks.namespace))
            for _ in range(_POLLS):
                if _is_open(self.cluster().get(path)) == is_open:
                    return True
                time.sleep(_POLL_S)
        done = "opened" if is_open else "closed"
        raise errors.Refusal(
            "queue-unchanged",
            f"queue {self.eks.queue} was not {done} within {_POLLS * _POLL_S:g} s; check whether "
            "Volcano's controller is running: kubectl -n volcano-system get pods",
        )

    def find_logs(self, job: Job, nodes: Collection[int] | None = None) -> Sequence[NodeLog]:
        """Find the log streams, including those of deleted pods."""
        return list_streams(self.logs(), self.log_group, job, nodes)

    def check(self, request: JobRequest) -> None:
        """Refuse a run name that cannot be a label."""
        check_run_label(request.run)

    def check_place(self, request: JobRequest, note: Callable[[str], None]) -> None:
        """Refuse a job that lacks ready nodes or quota, or whose reservation is over or ending."""
        check_window(self.target, request)
        if request.scales:
            check_quota(self.aws, self.target, request, note)
        else:
            with refusing():
                check_ready(self.cluster(), self.target, request.num_nodes)
                remark = busy_remark(self.cluster(), self.target, request.num_nodes)
            if remark is not None:
                note(remark)

    def payload(self, request: JobRequest) -> dict[str, Any]:
        """Build the Volcano job."""
        resource: dict[str, Any] = self._dry_run(request).request.resource
        return resource

    def submit(
        self, request: JobRequest, *, earlier: set[str], sleep: Callable[[float], None]
    ) -> str:
        """Create the job under a name chosen once, so that a retry does not create another job."""
        job = self.payload(request)
        name = str(job["metadata"]["name"])
        if request.depends_on:
            sleep(_DEPENDENCY_PAUSE_S)
        with refusing():
            for wait_s in (*WAITS_S, None):
                try:
                    self.cluster().call("POST", JOBS, body=job)
                    return name
                except Exception as error:
                    if errors.http_status(error) == 409:
                        return name  # created by an earlier call whose response was lost
                    if wait_s is None or not errors.is_transient(error):
                        raise
                    sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def stop(self, summary: RunSummary, reason: str) -> None:
        """Terminate the job's pods; the job itself remains until its TTL expires."""
        terminate(self.cluster(), summary.job_id, reason)

    def why_waiting(self, job: Job) -> Explanation | None:
        """Explain why a job waits, from nodes and their users."""
        return why_waiting(self, job)

    def waits_for(self, job: Job) -> Explanation | None:
        """Explain that a job waits for its compile job; None if it does not."""
        return waits_for(self, job)

    def zone(self, job: Job) -> ZonePosition | None:
        """Read the job's zones from the node scaler's annotations."""
        if not self.eks.has_zones:
            return None
        return zone_position(self.cluster().get(f"{JOBS}/{job.job_id}"), [*self.eks.node_groups])

    def is_moving(self, job: Job) -> bool:
        """Return False: jobs on a cluster are never resubmitted."""
        return False

    def _report_reader(self) -> ReportReader:
        if self._reader is None:
            self._reader = ReportReader(Bucket(client=self.aws.s3(), name=self.target.bucket))
        return self._reader

    def _dry_run(self, request: JobRequest) -> Any:
        key = request.run, request.depends_on
        if key not in self._built:
            self._built[key] = dry_run(launch_spec(request, self.target), self.eks)
        return self._built[key]


def terminate(cluster: Cluster, job_id: str, reason: str) -> None:
    """Make Volcano terminate a job's pods, and record the ``reason`` on the job.

    The job is not aborted, because Volcano never deletes aborted jobs, regardless of
    ttlSecondsAfterFinished (1.15.1, pkg/controllers/garbagecollector/garbagecollector.go,
    isJobFinished).
    """
    path = f"{JOBS}/{job_id}"
    with refusing():
        patch = {"metadata": {"annotations": {STOPPED_BY: reason}}}
        job = cluster.call("PATCH", path, body=patch, content_type=MERGE_PATCH)
        command = _command(job, "TerminateJob", job["metadata"]["namespace"])
        cluster.call("POST", COMMANDS, body=command)
        _ensure_terminated(cluster, path)


def _ensure_terminated(cluster: Cluster, path: str) -> None:
    """Terminate a job between two attempts, when Volcano ignores commands.

    In phase Restarting, Volcano drops the command (1.15.1,
    pkg/controllers/job/state/restarting.go), and the run would continue. The phase can be set
    directly, though, which is how TorchX cancels jobs.
    """
    for _ in range(_POLLS):
        phase = phase_of(cluster.get(path))
        if phase == "Restarting":
            status = {"status": {"state": {"phase": "Terminating"}}}
            cluster.call("PATCH", f"{path}/status", body=status, content_type=MERGE_PATCH)
            return
        if phase not in (None, "Pending", "Running"):
            return
        time.sleep(_POLL_S)


def _is_open(queue: Json) -> bool:
    return bool(queue.get("status", {}).get("state") == "Open")


def _command(target: Json, action: str, namespace: str) -> Json:
    """Build a Command, which Volcano's controller executes once (volcano.sh/apis, bus/v1alpha1)."""
    metadata = target["metadata"]
    owner = {
        "apiVersion": target["apiVersion"],
        "kind": target["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {
            "generateName": f"{metadata['name']}-{action.lower()}-",
            "namespace": namespace,
            "ownerReferences": [owner],
        },
        "target": owner,
        "action": action,
    }
