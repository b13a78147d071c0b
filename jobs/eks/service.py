"""The cluster as a service where jobs go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs import errors
from jobs.aws import Aws, LogStreamsClient
from jobs.bucket.objects import Bucket
from jobs.capacity import check_quota
from jobs.deployment import Deployment, EksTarget
from jobs.eks.cluster import (
    COMMANDS,
    JOBS,
    MERGE_PATCH,
    Cluster,
    Json,
    is_missing,
    refusing,
    status_of,
)
from jobs.eks.describe import (
    STOPPED_BY,
    EndingReader,
    describe,
    num_attempts_failed,
    phase_of,
    run_of,
    summarize,
)
from jobs.eks.log_streams import list_streams
from jobs.eks.node_users import busy_remark
from jobs.eks.nodes import check_ready
from jobs.eks.request import check_run_label, dry_run, launch_spec
from jobs.eks.waiting import ClusterView, waits_for, why_waiting
from jobs.job import Explanation, Job, JobRequest, NodeLog, RunSummary, Shape
from trainium_catalogue.contract import Orchestrator

WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts to create a job."""
_YOUNGER_S = 2.0
"""Age difference from the job that this one waits for: Volcano's scheduler prefers the older of two
jobs, and compares ages in seconds (pkg/scheduler/framework, JobOrderFn)."""
_LOOKS = 20
_LOOK_S = 0.25


@dataclass(slots=True)
class EksService:
    """The deployment's cluster."""

    aws: Aws
    target: Deployment
    _cluster: Cluster | None = None
    _reader: EndingReader | None = None
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
        """The names of the deployment's cluster."""
        if self.target.eks is None:
            raise self.target.unusable[Orchestrator.EKS]
        return self.target.eks

    def cluster(self) -> Cluster:
        """The Kubernetes API."""
        if self._cluster is None:
            self._cluster = Cluster(self.aws, self.eks.cluster, self.eks.namespace)
        return self._cluster

    def runs(self, run: str | None = None) -> list[RunSummary]:
        """List the namespace's Volcano jobs, newest first, including those of `torchx run`."""
        with refusing():
            jobs = self.cluster().items(JOBS)
        found = [summarize(job) for job in jobs]
        chosen = [summary for summary in found if run is None or summary.run == run]
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
        endings = self._endings().read(run_of(job), job_id, attempts=failed) if failed else {}
        return describe(job, self.cluster().pods_of(job_id), endings)

    def logs(self) -> LogStreamsClient:
        """Make a client of CloudWatch Logs, where every node sends the logs of its pods."""
        if self._logs is None:
            self._logs = self.aws.logs()
        return self._logs

    def find_logs(self, job: Job) -> Sequence[NodeLog]:
        """Find the streams of pods that are gone."""
        return list_streams(self.logs(), self.log_group, job)

    def check(self, request: JobRequest) -> None:
        """Refuse a run name that cannot be a label."""
        check_run_label(request.run)

    def check_place(self, request: JobRequest, note: Callable[[str], None]) -> None:
        """Refuse a job that does not fit on the ready nodes, unless the cluster gets more."""
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
        """Create the job under its given name, so that a repetition creates no second one."""
        job = self.payload(request)
        name = str(job["metadata"]["name"])
        if request.depends_on:
            sleep(_YOUNGER_S)
        with refusing():
            for wait_s in (*WAITS_S, None):
                try:
                    self.cluster().call("POST", JOBS, body=job)
                    return name
                except Exception as error:
                    if status_of(error) == 409:
                        return name  # an earlier call created the job, but its answer was lost
                    if wait_s is None or not errors.is_transient(error):
                        raise
                    sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def stop(self, summary: RunSummary, reason: str) -> None:
        """Terminate the job: its pods end; the job remains until its time to live has passed."""
        terminate(self.cluster(), summary.job_id, reason)

    def why_waiting(self, job: Job) -> Explanation | None:
        """Look at the nodes and who uses them."""
        return why_waiting(self.view(), job)

    def waits_for(self, job: Job) -> Explanation | None:
        """Look at the job that compiles for this one."""
        return waits_for(self.view(), job)

    def view(self) -> ClusterView:
        """The cluster and its jobs, as needed to explain a job."""
        return ClusterView(
            aws=self.aws,
            target=self.target,
            cluster=self.cluster(),
            runs=self.runs,
            describe=self.describe,
        )

    def _endings(self) -> EndingReader:
        if self._reader is None:
            self._reader = EndingReader(Bucket(client=self.aws.s3(), name=self.target.bucket))
        return self._reader

    def _dry_run(self, request: JobRequest) -> Any:
        key = request.run, request.depends_on
        if key not in self._built:
            self._built[key] = dry_run(launch_spec(request, self.target), self.eks)
        return self._built[key]


def terminate(cluster: Cluster, job_id: str, reason: str) -> None:
    """Have Volcano's controller end a job's pods; the job keeps the ``reason``.

    Not by aborting it: Volcano deletes an aborted job never, whatever ttlSecondsAfterFinished says
    (1.15.1, pkg/controllers/garbagecollector/garbagecollector.go, isJobFinished).
    """
    path = f"{JOBS}/{job_id}"
    with refusing():
        note = {"metadata": {"annotations": {STOPPED_BY: reason}}}
        job = cluster.call("PATCH", path, body=note, content_type=MERGE_PATCH)
        cluster.call("POST", COMMANDS, body=_command(job))
        _see_it_terminated(cluster, path)


def _see_it_terminated(cluster: Cluster, path: str) -> None:
    """Terminate a job between two attempts, when Volcano drops the command.

    In phase Restarting, Volcano only carries out its own steps (Volcano 1.15.1,
    pkg/controllers/job/state/restarting.go), and the run would go on. But anyone may set the
    phase itself; TorchX cancels jobs that way.
    """
    for _ in range(_LOOKS):
        phase = phase_of(cluster.get(path))
        if phase == "Restarting":
            status = {"status": {"state": {"phase": "Terminating"}}}
            cluster.call("PATCH", f"{path}/status", body=status, content_type=MERGE_PATCH)
            return
        if phase not in (None, "Pending", "Running"):
            return
        time.sleep(_LOOK_S)


def _command(job: Json) -> Json:
    """Build a Command, which Volcano's controller runs once (volcano.sh/apis, bus/v1alpha1)."""
    metadata = job["metadata"]
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {
            "generateName": f"{metadata['name']}-terminate-",
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "target": owner,
        "action": "TerminateJob",
    }
