"""Starts jobs as Batch does: queue by queue, in order, once the jobs they wait for have succeeded.

All queues share one machine: a queue runs one gang at a time, and as many single containers as
there are processors.
"""

import fnmatch
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from moto.batch.models import batch_backends
from moto.s3.models import s3_backends
from moto.ssm.models import ssm_backends

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_emulators.aws.batch.gang import Gang, NodeSettings
from trainium_emulators.aws.batch.job import ArrayJob, BatchJob, MultiNodeJob, now_ms
from trainium_emulators.aws.cloudformation.contributions import AccountRegion
from trainium_emulators.nodes import faults
from trainium_emulators.nodes.events import emit

NEXT_FAULT = "/rehearsal/next-fault"
"""SSM parameter that arms a fault: JSON with ``kind``, and optionally ``run``, and ``after`` or
``after_key`` (and ``after_path``). A parameter with a run's name below it arms another one at the
same time."""

NO_CAPACITY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
MAX_RESOURCE = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"
DEPENDENCY_FAILED = "Dependent Job failed"

EXPLAINED = {
    NO_CAPACITY: NO_CAPACITY
    + " - Service cannot fulfill the capacity requested for instance type [{type}]",
    MAX_RESOURCE: MAX_RESOURCE
    + " - The job needs {needed} vCPUs, the compute environment may have {allowed}",
}
_CONTAINERS_AT_ONCE = max(1, os.cpu_count() or 1)
_FIRST_CONTAINER = 100
"""First loopback address for single containers, above those of all gangs."""
_ADDRESSES = 100
_STOP_S = 10.0
"""Time for nodes to stop by themselves, below the time after which the server is killed."""


class JobScheduler:
    """The jobs of one server."""

    def __init__(self, settings: Callable[[], NodeSettings]):
        self._settings = settings
        self._jobs: dict[str, BatchJob] = {}
        self._changed = threading.Condition()
        self._queues: set[str] = set()
        self._containers = threading.Semaphore(_CONTAINERS_AT_ONCE)
        self._started = 0
        self._gangs: list[Gang] = []

    def submit(self, job: BatchJob) -> None:
        """Queue a job and, for the parent of an array, its children."""
        children = job.children if isinstance(job, ArrayJob) else []
        with self._changed:
            for entry in (job, *children):
                self._jobs[entry.job_id] = entry
            emit("job-submitted", job_id=job.job_id, run=job.name, num_nodes=job.num_nodes)
            if job.queue_arn not in self._queues:
                self._queues.add(job.queue_arn)
                arguments = (job.queue_arn,)
                threading.Thread(target=self._serve, args=arguments, daemon=True).start()
            self._changed.notify_all()

    def jobs(self) -> list[BatchJob]:
        """Return all jobs in order of submission; children follow their parent."""
        return list(self._jobs.values())

    def get(self, job_id: str) -> BatchJob | None:
        """Return the job with this id."""
        return self._jobs.get(job_id)

    def terminate(self, job_id: str, reason: str) -> None:
        """Ask a job to end, and an array's children with it; ignore an unknown job."""
        job = self._jobs.get(job_id)
        if job is None:
            return
        children = job.children if isinstance(job, ArrayJob) else []
        for entry in (job, *children):
            if entry.is_active and entry.terminate_reason is None:
                entry.terminate_reason = reason
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Terminate all jobs and wait for their end; kill nodes that take too long."""
        for job in self.jobs():
            self.terminate(job.job_id, "the rehearsal's server stops")
        deadline = time.monotonic() + _STOP_S
        while any(job.is_active for job in self.jobs()):
            time.sleep(0.05)
            if time.monotonic() > deadline:
                for gang in list(self._gangs):
                    gang.kill()

    def left(self) -> list[str]:
        """Tell what is left of all nodes on this machine."""
        return [text for gang in list(self._gangs) for text in gang.left()]

    def _serve(self, queue_arn: str) -> None:
        """Start the jobs of one queue."""
        while True:
            with self._changed:
                job = self._next(queue_arn)
                if job is None:
                    # This queue is not notified when jobs of other queues end.
                    self._changed.wait(0.2)
                    continue
                job.status = "RUNNABLE"
            if isinstance(job, MultiNodeJob):
                self._guarded(job, 0)
                continue
            self._containers.acquire()
            self._started += 1
            first_address = _FIRST_CONTAINER + self._started % _ADDRESSES
            arguments = (job, first_address)
            threading.Thread(target=self._run_container, args=arguments, daemon=True).start()

    def _next(self, queue_arn: str) -> BatchJob | None:
        """Return the first job that may start; fail or leave PENDING those that cannot."""
        for job in self.jobs():
            if job.queue_arn != queue_arn or job.status not in ("SUBMITTED", "PENDING"):
                continue
            if job.terminate_reason is not None and not isinstance(job, ArrayJob):
                self._end(job, job.terminate_reason)
                continue
            if isinstance(job, ArrayJob):
                self._follow_children(job)
                continue
            waits = self._waits(job)
            if waits is None:
                self._end(job, DEPENDENCY_FAILED)
            elif waits:
                self._show(job, "PENDING")
            else:
                self._show(job, "PENDING")
                emit("job-status", job_id=job.job_id, status="RUNNABLE", reason="")
                return job
        return None

    def _waits(self, job: BatchJob) -> bool | None:
        """True while a job it depends on has not ended; None once one has failed."""
        others = [self._jobs[identity] for identity in job.depends_on]
        if any(other.status == "FAILED" for other in others):
            return None
        return any(other.is_active for other in others)

    def _follow_children(self, job: ArrayJob) -> None:
        started = [child.started_at for child in job.children if child.started_at is not None]
        job.started_at = min(started, default=None)
        if not job.ended:
            if any(child.status != "SUBMITTED" for child in job.children):
                self._show(job, "PENDING")
            return
        failed = sum(child.status == "FAILED" for child in job.children)
        job.status = "FAILED" if failed else "SUCCEEDED"
        job.status_reason = job.terminate_reason or (
            # AWS Batch user guide, array jobs.
            "Array Child Job failed" if failed else ""
        )
        job.stopped_at = now_ms()
        emit("job-status", job_id=job.job_id, status=job.status, reason=job.status_reason)
        emit(
            "job-ended", job_id=job.job_id, status=job.status, reason=job.status_reason, attempts=1
        )

    @staticmethod
    def _show(job: BatchJob, status: str) -> None:
        if job.status != status:
            job.status = status
            emit("job-status", job_id=job.job_id, status=status, reason="")

    def _run_container(self, job: BatchJob, first_address: int) -> None:
        try:
            self._guarded(job, first_address)
        finally:
            self._containers.release()

    def _guarded(self, job: BatchJob, first_address: int) -> None:
        try:
            self._run(job, first_address)
        except Exception as error:
            # A bug of ours must not leave a job RUNNING forever.
            self._end(job, f"the rehearsal failed: {type(error).__name__}: {error}")
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def _run(self, job: BatchJob, first_address: int) -> None:
        place = AccountRegion(account_id=job.account_id, region=job.region)
        queue = batch_backends[job.account_id][job.region].get_job_queue(job.queue_arn)
        environment = queue.environments[0]
        fault = self._take_fault(place, job)
        blocked = self._blocked(job, environment, fault)
        if blocked and not self._wait_blocked(job, queue, *blocked):
            return
        if job.terminate_reason is not None:
            self._end(job, job.terminate_reason)
            return
        gang = Gang(
            job,
            settings=self._settings(),
            place=place,
            compute_environment=environment.name,
            fault=fault,
            first_address=first_address,
        )
        self._gangs.append(gang)
        gang.run()
        emit("job-ended", job_id=job.job_id, status=job.status, reason=job.status_reason,
             attempts=len(job.attempts))  # fmt: skip

    def _take_fault(self, place: AccountRegion, job: BatchJob) -> faults.NodeFault | None:
        return take_fault(ssm_backends[place.account_id][place.region], job.name)

    @staticmethod
    def _blocked(
        job: BatchJob, environment: Any, fault: faults.NodeFault | None
    ) -> tuple[str, str] | None:
        """Return Batch's reason why the job cannot start, and its message."""
        resources = environment.compute_resources
        names = resources["instanceTypes"]
        needed = _vcpus(job, names)
        allowed = int(resources["maxvCpus"])
        if needed > allowed:
            text = EXPLAINED[MAX_RESOURCE].format(needed=needed, allowed=allowed)
            return MAX_RESOURCE, text
        if fault is not None and fault.kind == faults.NO_CAPACITY:
            return NO_CAPACITY, EXPLAINED[NO_CAPACITY].format(type=", ".join(names))
        return None

    def _wait_blocked(self, job: BatchJob, queue: Any, reason: str, text: str) -> bool:
        """Stay RUNNABLE until the queue's time limit for this reason or a request to stop."""
        job.status_reason = text
        emit("job-status", job_id=job.job_id, status=job.status, reason=text)
        started = time.monotonic()
        clock = self._settings().runnable_clock
        limits = [
            action
            for action in getattr(queue, "job_state_time_limit_actions", [])
            if action["state"] == "RUNNABLE" and action["reason"] == reason
        ]
        while job.terminate_reason is None:
            waited = (time.monotonic() - started) * clock
            if any(waited > float(limit["maxTimeSeconds"]) for limit in limits):
                self._end(job, text)
                return False
            time.sleep(0.05)
        return True

    @staticmethod
    def _end(job: BatchJob, reason: str) -> None:
        job.status, job.status_reason, job.stopped_at = "FAILED", reason, now_ms()
        emit("job-status", job_id=job.job_id, status="FAILED", reason=reason)
        emit("job-ended", job_id=job.job_id, status="FAILED", reason=reason,
             attempts=len(job.attempts))  # fmt: skip


def _vcpus(job: BatchJob, instance_types: list[str]) -> int:
    """Return the vCPUs that the job needs at once: of all its nodes, or of its container."""
    if isinstance(job, MultiNodeJob):
        (name,) = instance_types
        return INSTANCE_TYPES[name].vcpus_for(job.num_nodes)
    requirements = job.container(0).get("resourceRequirements", ())
    return sum(int(entry["value"]) for entry in requirements if entry["type"] == "VCPU")


def take_fault(backend: Any, run: str) -> faults.NodeFault | None:
    """Take the fault that is armed for a run in one region's parameters, once."""
    for name in (f"{NEXT_FAULT}/{run}", NEXT_FAULT):
        if (parameter := backend.get_parameter(name)) is None:
            continue
        fault = faults.NodeFault.parse(parameter.value, has_object)
        if fault.run in (None, run):
            backend.delete_parameter(name)
            return fault
    return None


def has_object(key: str, path: str) -> bool:
    """Tell whether any bucket has an object whose key matches a pattern.

    With ``path``, one that is JSON and lists a matching path in its ``files``.
    """
    return any(
        fnmatch.fnmatchcase(name, key) and (not path or _lists(bucket.keys.get(name), path))
        for account in list(s3_backends)
        for bucket in list(s3_backends[account]["aws"].buckets.values())
        for name in list(bucket.keys)
    )


def _lists(item: Any, path: str) -> bool:
    """Tell whether an object lists a file whose path matches."""
    try:
        files = json.loads(item.value)["files"]
        return any(fnmatch.fnmatchcase(file["path"], path) for file in files)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False  # another kind of object, or deleted meanwhile: moto closes its file
