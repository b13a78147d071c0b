"""Unfinished jobs of a deployment to destroy: their unsaved work, and how to stop them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.aws import Aws
from jobs.batch.service import BatchService, list_runs
from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_status
from jobs.deployment import Deployment
from jobs.errors import Refusal, as_refusal
from jobs.job import ON_HOSTS, RunSummary
from jobs.orchestrators import JobService, is_moving, service_for
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import Hardware

Note = Callable[[str], None]
POLL_S = 2.0
_SETTLING_POLLS = 30
"""Maximum number of polls while Batch updates its queues, which takes seconds; the deletion of
their stack waits longer."""
_WITHOUT_JOBS = ("no-cluster", "no-volcano")
"""Refusal codes that mean the cluster cannot have jobs."""


@dataclass(slots=True, kw_only=True)
class UnfinishedJobs:
    """A deployment's unfinished jobs, including those being moved to another zone."""

    aws: Aws
    target: Deployment | None
    """None if the deployment's parameters are missing or from a different version."""
    queues: Sequence[str]
    """Queues that exist or existed."""
    note: Note
    _cluster_error: Refusal | None = None
    """Error of the last request to the cluster, if it failed."""

    def close_queues(self, *, sleep: Callable[[float], None]) -> None:
        """Close the queues of Batch and the cluster to new jobs; queued jobs remain.

        On Batch, this sets the queue's state to DISABLED.
        """
        for queue in self._existing_queues():
            if queue["state"] == "ENABLED":
                self._set_state(queue, "DISABLED")
        self._settle(sleep)
        self._set_cluster_queue(is_open=False)

    def reopen_queues(self, *, sleep: Callable[[float], None]) -> None:
        """Reopen the queues, including those closed by an earlier command.

        Nothing has been destroyed at this point. For a queue that cannot be reopened, print the
        command that reopens it.
        """
        left = list(self.queues)
        opened: list[str] = []
        try:
            # Batch rejects updates of a queue that it is updating.
            found = self._settle(sleep)
            left = [queue["jobQueueArn"] for queue in found if queue["state"] == "DISABLED"]
            for queue in found:
                if queue["jobQueueArn"] in left and self._set_state(queue, "ENABLED"):
                    left.remove(queue["jobQueueArn"])
                    opened.append(queue["jobQueueName"])
        except Exception as error:
            self.note(f"the job queues cannot be reopened: {self._refusal(error)}")
        finally:
            if opened:
                self.note(f"job queues accept jobs again: {', '.join(opened)}")
            region = f" --region {self.aws.region}" if self.aws.region else ""
            for name in left:
                self.note(
                    f"job queue {name} may be closed; reopen it with: aws batch update-job-queue "
                    f"--job-queue {name} --state ENABLED{region}"
                )
            self._set_cluster_queue(is_open=True)

    def _set_cluster_queue(self, *, is_open: bool) -> None:
        if self._cluster() is None or self.target is None:
            return
        from jobs.eks.service import EksService

        state = "open" if is_open else "closed"
        try:
            if EksService(self.aws, self.target).set_queue(is_open=is_open) and is_open:
                self.note("the cluster's queue accepts jobs again")
        except Exception as error:
            self.note(f"the cluster's queue is not {state}: {self._refusal(error)}")
            if is_open and self.target.eks is not None:
                name = self.target.eks.queue
                self.note(f"reopen it with: vcctl queue operate --action open --name {name}")

    def _settle(self, sleep: Callable[[float], None]) -> Sequence[Mapping[str, Any]]:
        """Wait for Batch to update the queues, up to a limit; return them."""
        for _ in range(_SETTLING_POLLS):
            found = self._existing_queues()
            if all(queue["status"] != "UPDATING" for queue in found):
                break
            sleep(POLL_S)
        return found

    def _set_state(self, queue: Mapping[str, Any], state: str) -> bool:
        arn = queue["jobQueueArn"]
        try:
            self.aws.teardown_client("batch").update_job_queue(jobQueue=arn, state=state)
        except Exception as error:
            self.note(f"job queue {arn} is not {state}: {self._refusal(error)}")
            return False
        return True

    def _existing_queues(self) -> Sequence[Mapping[str, Any]]:
        if not self.queues:
            return ()  # an empty list would describe every queue in the account
        found = self.aws.batch().describe_job_queues(jobQueues=list(self.queues))
        return list(found.get("jobQueues", ()))

    def unfinished(self) -> list[RunSummary]:
        """List the jobs, without the cluster's if it does not respond."""
        batch = self.aws.batch()
        queues = [queue["jobQueueArn"] for queue in self._existing_queues()]
        zones = {each.job_queue: each.zone for each in self.target.zones} if self.target else {}
        # The hardware only affects how sizes are parsed, and no sizes are shown here.
        runs = list_runs(batch, dict.fromkeys(queues, Hardware.TRAINIUM), zones=zones)
        newest = {run.run: run for run in reversed(runs)}.values()
        moving = [run for run in newest if run.ended and self._is_moving(run)]
        if (cluster := self._cluster()) is not None:
            try:
                runs += cluster.runs()
                self._cluster_error = None
            except Exception as error:
                self._note_cluster_error(error)
        return moving + [run for run in runs if not run.ended]

    def _is_moving(self, run: RunSummary) -> bool:
        return self.target is not None and is_moving(BatchService(self.aws, self.target), run)

    def stop(self, run: RunSummary, reason: str) -> bool:
        """Stop a job like `jobs stop`, with time to save; return False if the request failed."""
        if run.orchestrator is Orchestrator.BATCH:
            if not run.ended:
                self.aws.batch().terminate_job(jobId=run.job_id, reason=reason)
            if self.target is not None and run.zone is not None and run.status not in ON_HOSTS:
                try:
                    BatchService(self.aws, self.target).prevent_move(run.run)
                except Exception as error:
                    refusal = self._refusal(error)
                    self.note(f"run {run.run} may be moved to another zone: {refusal}")
                    return False
        elif (cluster := self._cluster()) is not None:
            try:
                cluster.stop(run, reason)
            except Exception as error:
                self._note_cluster_error(error)
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
        """Stop all jobs, and wait until none are left; refuse after the time limit.

        Return whether there were any. An unresponsive cluster is retried until the time limit,
        because its jobs may be running.
        """
        deadline = now() + limit_s
        stopped: set[str] = set()
        while (active := self.unfinished()) or self._cluster_error is not None:
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
        """Scale the cluster to 0 nodes; deleting the stack removes the rest."""
        if self._cluster() is None or self.target is None:
            return
        from jobs.eks.cluster import refusing
        from jobs.eks.nodes import read_node_group, read_progress, request_nodes, wait_for_nodes
        from jobs.eks.service import EksService

        service = EksService(self.aws, self.target)
        try:
            with refusing():
                if read_node_group(self.aws, self.target).desired == 0:
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
            self.note(f"the nodes remain until the cluster's stack is deleted: {refusal}")

    def _cluster(self) -> JobService | None:
        if self.target is None or Orchestrator.EKS not in self.target.usable:
            return None
        return service_for(self.aws, self.target, Orchestrator.EKS)

    def _note_cluster_error(self, error: Exception) -> None:
        """Note once that the cluster does not respond; a deleted one has no jobs."""
        refusal = self._refusal(error)
        if refusal.code in _WITHOUT_JOBS:
            self._cluster_error = None
            return
        if self._cluster_error is None:
            self.note(f"the cluster's jobs could not be listed or stopped: {refusal}")
        self._cluster_error = refusal

    def _refusal(self, error: Exception) -> Refusal:
        refusal = as_refusal(error, region=self.aws.region)
        if refusal is None:
            raise error
        return refusal

    def _jobs_remain(self, active: Sequence[RunSummary], limit_s: float) -> Refusal:
        if self._cluster_error is not None:
            return Refusal(
                "jobs-remain",
                f"after {limit_s:g} s the cluster's running jobs are still unknown, so no stack "
                f"was destroyed: {self._cluster_error}; fix that and run this again, or delete the "
                "cluster's stack first if losing its jobs is acceptable",
            )
        left = ", ".join(f"{run.run} ({run.status})" for run in active)
        return Refusal(
            "jobs-remain",
            f"after {limit_s:g} s these jobs have not ended: {left}; their unsaved work would be "
            "lost, so no stack was destroyed; run this again with a longer --wait",
        )


def describe_unsaved(bucket: Bucket, run: str) -> str | None:
    """Describe a run's progress since it last saved; None if there is none, or if unknown."""
    status = read_status(bucket, run)
    if status is None:
        return None
    if "kind" in status:
        return _unsaved_of_program(status)
    step, saved = status.get("step"), status.get("last_checkpoint_step") or 0
    if not isinstance(step, int) or not isinstance(saved, int) or step <= saved:
        return None
    since = f"checkpoint {saved:,}" if saved else "its start, without a checkpoint"
    return f"{counted(step - saved, 'step')} since {since}"


def _unsaved_of_program(status: dict[str, Any]) -> str | None:
    snapshots = status.get("snapshots")
    if status.get("unpersisted"):
        return f"files that no snapshot includes: the program {status['unpersisted']}"
    if not snapshots:
        return "everything, because it has no snapshot yet"
    newest = snapshots[-1] if isinstance(snapshots, list) else None
    at = newest.get("at") if isinstance(newest, dict) else None
    return f"progress since its snapshot of {at}"
