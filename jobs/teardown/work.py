"""The jobs of a deployment that is to end: what they have not saved, and how they are ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.aws import Aws
from jobs.batch.service import list_runs
from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_status
from jobs.deployment import Deployment
from jobs.errors import Refusal, as_refusal
from jobs.job import RunSummary
from jobs.orchestrators import JobService, service_for
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware

Note = Callable[[str], None]
POLL_S = 2.0
_WITHOUT_JOBS = ("no-cluster", "no-volcano")
"""Codes of refusals after which no job can be on the cluster: it, or what runs jobs, is gone."""


@dataclass(slots=True, kw_only=True)
class UnfinishedJobs:
    """The jobs on a deployment's queues and cluster that have not ended."""

    aws: Aws
    target: Deployment | None
    """None if a stack that describes the deployment is gone already."""
    queues: Sequence[str]
    """Queues that exist or existed."""
    note: Note
    _silence: Refusal | None = None
    """Why the cluster did not answer when it was last asked."""

    def unfinished(self) -> list[RunSummary]:
        """List them, without those of a cluster that does not answer this time."""
        batch = self.aws.batch()
        there = batch.describe_job_queues(jobQueues=list(self.queues)) if self.queues else {}
        queues = [queue["jobQueueArn"] for queue in there.get("jobQueues", ())]
        # The hardware only determines how sizes are read, and no sizes are shown here.
        runs = list_runs(batch, dict.fromkeys(queues, Hardware.TRAINIUM))
        if (cluster := self._cluster()) is not None:
            try:
                runs += cluster.runs()
                self._silence = None
            except Exception as error:
                self._keep_silence(error)
        return [run for run in runs if not run.ended]

    def stop(self, run: RunSummary, reason: str) -> bool:
        """End a job as `jobs stop` does: it gets the time to save. False if it was not heard."""
        if run.orchestrator is Orchestrator.BATCH:
            self.aws.batch().terminate_job(jobId=run.job_id, reason=reason)
        elif (cluster := self._cluster()) is not None:
            try:
                cluster.stop(run, reason)
            except Exception as error:
                self._keep_silence(error)
                return False
        return True

    def end_all(
        self,
        *,
        reason: str,
        limit_s: float,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> bool:
        """Stop every job, and wait until none is left; refuse if that takes too long.

        Returns whether there was one. A cluster that does not answer is asked until the end of
        the time, because its jobs may be running.
        """
        deadline = now() + limit_s
        stopped: set[str] = set()
        while (active := self.unfinished()) or self._silence is not None:
            for run in active:
                if run.job_id not in stopped and self.stop(run, reason):
                    stopped.add(run.job_id)
            if now() >= deadline:
                raise self._jobs_remain(active, limit_s)
            sleep(POLL_S)
        return bool(stopped)

    def remove_nodes(
        self, *, limit_s: float, now: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        """Scale the cluster to 0 nodes; the stack's end removes those that remain."""
        if self._cluster() is None or self.target is None:
            return
        from jobs.eks.cluster import refusing
        from jobs.eks.nodes import read_node_group, read_progress, request_nodes, wait_for_nodes
        from jobs.eks.service import EksService

        service = EksService(self.aws, self.target)
        try:
            with refusing():
                if read_node_group(self.aws, self.target).wanted == 0:
                    return
                request = request_nodes(service.cluster(), 0)
                for progress in wait_for_nodes(
                    lambda: read_progress(
                        self.aws, service.cluster(), service.target, request, fewer=True
                    ),
                    0,
                    limit_s=limit_s,
                    now=now,
                    sleep=sleep,
                ):
                    self.note(progress.text(0))
        except Exception as error:
            refusal = self._refusal(error)
            self.note(f"the nodes are left to the cluster's stack: {refusal}")

    def _cluster(self) -> JobService | None:
        if self.target is None or Orchestrator.EKS not in self.target.usable:
            return None
        return service_for(self.aws, self.target, Orchestrator.EKS)

    def _keep_silence(self, error: Exception) -> None:
        """Note once that the cluster does not answer; one that is gone has no jobs."""
        refusal = self._refusal(error)
        if refusal.code in _WITHOUT_JOBS:
            self._silence = None
            return
        if self._silence is None:
            self.note(f"jobs on the cluster are not known: {refusal}")
        self._silence = refusal

    def _refusal(self, error: Exception) -> Refusal:
        refusal = as_refusal(error, region=self.aws.region)
        if refusal is None:
            raise error
        return refusal

    def _jobs_remain(self, active: Sequence[RunSummary], limit_s: float) -> Refusal:
        if self._silence is not None:
            return Refusal(
                "jobs-remain",
                f"after {limit_s:g} s it is not known which jobs run on the cluster, so no stack "
                f"was destroyed: {self._silence}; see to that and run this again, or delete the "
                "cluster's stack first if its jobs may be lost",
            )
        left = ", ".join(f"{run.run} ({run.status})" for run in active)
        return Refusal(
            "jobs-remain",
            f"after {limit_s:g} s these jobs have not ended: {left}; what they have not saved "
            "would be lost, so no stack was destroyed: run this again with a longer --wait",
        )


def unsaved_work(bucket: Bucket, run: str) -> str | None:
    """Describe what a run has made since it last saved; None if nothing, or nothing is known."""
    status = read_status(bucket, run)
    if status is None:
        return None
    if "kind" in status:
        return _unsaved_of_program(status)
    step, saved = status.get("step"), status.get("last_checkpoint_step") or 0
    if not isinstance(step, int) or not isinstance(saved, int) or step <= saved:
        return None
    since = f"checkpoint {saved:,}" if saved else "its start, without a checkpoint"
    return f"{step - saved:,} steps since {since}"


def _unsaved_of_program(status: dict[str, Any]) -> str | None:
    snapshots = status.get("snapshots")
    if status.get("unkept"):
        return f"not kept: the program {status['unkept']}"
    if not snapshots:
        return "everything: it has no snapshot yet"
    newest = snapshots[-1] if isinstance(snapshots, list) else None
    at = newest.get("at") if isinstance(newest, dict) else None
    return f"what it has made since its snapshot of {at}"
