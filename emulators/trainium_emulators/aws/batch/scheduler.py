"""Starts jobs as Batch does: per queue, in order, once their dependencies have succeeded.

A gang starts when its compute environment has enough nodes, and until then blocks the later jobs of
its queue. All queues share one machine, which runs as many single containers as it has processors.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from moto.batch.models import batch_backends
from moto.ec2.models import ec2_backends
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
``after_key`` (and ``after_path``). Parameters under it, named by run, arm concurrent faults."""

FULL_ZONES = "/rehearsal/full-zones"
"""SSM parameter: ids of zones that have no capacity, separated by commas."""

NO_CAPACITY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
MAX_RESOURCE = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"
DEPENDENCY_FAILED = "Dependent Job failed"

CANCELED = "Canceled by JobStateTimeLimit action due to reason: "
"""AWS Batch user guide, jobs stuck in RUNNABLE due to capacity."""

STATUS_REASONS = {
    NO_CAPACITY: NO_CAPACITY
    + " - Service cannot fulfill the capacity requested for instance type [{type}]",
    MAX_RESOURCE: MAX_RESOURCE
    + " - The job needs {needed} vCPUs, the compute environment has at most {allowed}",
}
_WAITING = ("SUBMITTED", "PENDING", "RUNNABLE")
_MAX_CONTAINERS = max(1, os.cpu_count() or 1)
_FIRST_CONTAINER = 100
"""Number of the first loopback address for single containers, above those of all gangs."""
_NUM_CONTAINER_ADDRESSES = 100
_STOP_TIMEOUT_S = 10.0
"""Seconds for nodes to stop before they are killed; less than the rehearsal waits for the
server to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admitted:
    """The compute environment and the fault of an admitted job."""

    place: AccountRegion
    environment: Any
    fault: faults.NodeFault | None


class JobScheduler:
    """Queues, starts and ends the jobs of one server."""

    def __init__(self, settings: Callable[[], NodeSettings]):
        self._settings = settings
        self._jobs: dict[str, BatchJob] = {}
        self._changed = threading.Condition()
        self._queues: set[str] = set()
        self._containers = threading.Semaphore(_MAX_CONTAINERS)
        self._started = 0
        self._gangs: list[Gang] = []
        self._nodes: dict[str, tuple[str, range]] = {}
        """Compute environment and address numbers of each running gang, by job id."""

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
        """Request termination of a job and, for an array, its children; ignore an unknown job."""
        job = self._jobs.get(job_id)
        if job is None:
            return
        children = job.children if isinstance(job, ArrayJob) else []
        for entry in (job, *children):
            if entry.is_active and entry.terminate_reason is None:
                entry.terminate_reason = reason
        with self._changed:
            self._changed.notify_all()

    def cancel(self, job_id: str, reason: str) -> None:
        """Cancel a job that has not started; ignore any other (API reference, CancelJob)."""
        with self._changed:
            job = self._jobs.get(job_id)
            if job is not None and job.status in _WAITING:
                self.terminate(job_id, reason)

    def stop(self) -> None:
        """Terminate all jobs and wait for their end; kill nodes that take too long."""
        for job in self.jobs():
            self.terminate(job.job_id, "the rehearsal's server is stopping")
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while any(job.is_active for job in self.jobs()):
            time.sleep(0.05)
            if time.monotonic() > deadline:
                for gang in list(self._gangs):
                    gang.kill()

    def leftovers(self) -> list[str]:
        """Describe leftovers of all nodes on this machine."""
        return [text for gang in list(self._gangs) for text in gang.leftovers()]

    def _serve(self, queue_arn: str) -> None:
        """Start the jobs of one queue."""
        while True:
            with self._changed:
                job = self._next(queue_arn)
                if job is None:
                    # With a timeout, because the start of an array's child, which affects the
                    # array's status, notifies no queue.
                    self._changed.wait(0.2)
                    continue
                job.status = "RUNNABLE"
            if isinstance(job, MultiNodeJob):
                with self._fail_on_error(job):
                    self._start_gang(job)
                continue
            self._containers.acquire()
            self._started += 1
            first_address = _FIRST_CONTAINER + self._started % _NUM_CONTAINER_ADDRESSES
            arguments = (job, first_address)
            threading.Thread(target=self._run_container, args=arguments, daemon=True).start()

    def _next(self, queue_arn: str) -> BatchJob | None:
        """Return the first job that may start, after updating the status of the jobs before it."""
        for job in self.jobs():
            if job.queue_arn != queue_arn or job.status not in ("SUBMITTED", "PENDING"):
                continue
            if isinstance(job, ArrayJob):
                self._update_from_children(job)
                continue
            if job.terminate_reason is not None:
                self._fail(job, job.terminate_reason)
                continue
            waits = self._waits(job)
            if waits is None:
                self._fail(job, DEPENDENCY_FAILED)
                continue
            self._set_status(job, "PENDING")
            if not waits:
                emit("job-status", job_id=job.job_id, status="RUNNABLE", reason="")
                return job
        return None

    def _waits(self, job: BatchJob) -> bool | None:
        """Return whether any dependency is unfinished; None if one has failed."""
        others = [self._jobs[identity] for identity in job.depends_on]
        if any(other.status == "FAILED" for other in others):
            return None
        return any(other.is_active for other in others)

    def _update_from_children(self, job: ArrayJob) -> None:
        started = [child.started_at for child in job.children if child.started_at is not None]
        job.started_at = min(started, default=None)
        if not job.ended:
            if any(child.status != "SUBMITTED" for child in job.children):
                self._set_status(job, "PENDING")
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
    def _set_status(job: BatchJob, status: str) -> None:
        if job.status != status:
            job.status = status
            emit("job-status", job_id=job.job_id, status=status, reason="")

    def _run_container(self, job: BatchJob, first_address: int) -> None:
        try:
            with self._fail_on_error(job):
                if (admitted := self._admit(job)) is not None:
                    self._run(job, admitted, first_address)
        finally:
            self._containers.release()

    def _start_gang(self, job: MultiNodeJob) -> None:
        """Start a gang as soon as its nodes are available."""
        if (admitted := self._admit(job)) is None:
            return
        first = self._take_nodes(job, admitted.environment)
        if first is not None:
            arguments = (job, admitted, first)
            threading.Thread(target=self._run_gang, args=arguments, daemon=True).start()

    def _run_gang(self, job: MultiNodeJob, admitted: _Admitted, first_address: int) -> None:
        try:
            with self._fail_on_error(job):
                self._run(job, admitted, first_address)
        finally:
            with self._changed:
                del self._nodes[job.job_id]
                self._changed.notify_all()

    @contextmanager
    def _fail_on_error(self, job: BatchJob) -> Iterator[None]:
        """Fail the job if the block raises, so that a bug does not leave it RUNNING forever."""
        try:
            yield
        except Exception as error:
            self._fail(job, f"the rehearsal failed: {type(error).__name__}: {error}")
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def _admit(self, job: BatchJob) -> _Admitted | None:
        """Wait until nothing blocks the RUNNABLE job; return None if it ends first."""
        place = AccountRegion(account_id=job.account_id, region=job.region)
        queue = batch_backends[job.account_id][job.region].get_job_queue(job.queue_arn)
        environment = queue.environments[0]
        fault = take_fault(ssm_backends[place.account_id][place.region], job.name)

        def check() -> tuple[str, str] | None:
            return self._find_blocker(job, place, environment, fault)

        if (blocker := check()) and not self._wait_until_unblocked(job, queue, *blocker, check):
            return None
        if job.terminate_reason is not None:
            self._fail(job, job.terminate_reason)
            return None
        return _Admitted(place=place, environment=environment, fault=fault)

    def _take_nodes(self, job: MultiNodeJob, environment: Any) -> int | None:
        """Wait until the environment has room for the gang, and reserve addresses for its nodes.

        Return the number of the first address; None if the job is stopped first.
        """
        with self._changed:
            while job.terminate_reason is None:
                others = [nodes for name, nodes in self._nodes.values() if name == environment.name]
                if _fits(environment, job.num_nodes + sum(map(len, others))):
                    taken = {number for _, nodes in self._nodes.values() for number in nodes}
                    first = next(
                        number
                        for number in itertools.count()
                        if taken.isdisjoint(range(number, number + job.num_nodes))
                    )
                    self._nodes[job.job_id] = environment.name, range(first, first + job.num_nodes)
                    job.status = "STARTING"
                    return first
                self._changed.wait(0.2)
            self._fail(job, job.terminate_reason)
            return None

    def _run(self, job: BatchJob, admitted: _Admitted, first_address: int) -> None:
        gang = Gang(
            job,
            settings=self._settings(),
            place=admitted.place,
            compute_environment=admitted.environment.name,
            fault=admitted.fault,
            first_address=first_address,
        )
        self._gangs.append(gang)
        gang.run()
        emit("job-ended", job_id=job.job_id, status=job.status, reason=job.status_reason,
             attempts=len(job.attempts))  # fmt: skip

    @staticmethod
    def _find_blocker(
        job: BatchJob, place: AccountRegion, environment: Any, fault: faults.NodeFault | None
    ) -> tuple[str, str] | None:
        """Return Batch's reason why the job cannot start, and its message."""
        resources = environment.compute_resources
        names = resources["instanceTypes"]
        needed = _vcpus(job, names)
        allowed = int(resources["maxvCpus"])
        if needed > allowed:
            text = STATUS_REASONS[MAX_RESOURCE].format(needed=needed, allowed=allowed)
            return MAX_RESOURCE, text
        is_full = fault is not None and fault.kind == faults.NO_CAPACITY
        if is_full or _zones(place, environment) & _full_zones(place):
            return NO_CAPACITY, STATUS_REASONS[NO_CAPACITY].format(type=", ".join(names))
        return None

    def _wait_until_unblocked(
        self,
        job: BatchJob,
        queue: Any,
        reason: str,
        text: str,
        check: Callable[[], tuple[str, str] | None],
    ) -> bool:
        """Return True once nothing blocks the RUNNABLE job, or its termination was requested.

        Return False if the queue's time limit for this reason canceled it.
        """
        job.status_reason = text
        emit("job-status", job_id=job.job_id, status=job.status, reason=text)
        started = time.monotonic()
        clock = self._settings().runnable_clock
        limits = [
            action
            for action in getattr(queue, "job_state_time_limit_actions", [])
            if action["state"] == "RUNNABLE" and action["reason"] == reason
        ]
        while job.terminate_reason is None and check() is not None:
            waited = (time.monotonic() - started) * clock
            if any(waited > float(limit["maxTimeSeconds"]) for limit in limits):
                self._fail(job, f"{CANCELED}{reason}")
                return False
            time.sleep(0.05)
        job.status_reason = ""
        return True

    @staticmethod
    def _fail(job: BatchJob, reason: str) -> None:
        job.status, job.status_reason, job.stopped_at = "FAILED", reason, now_ms()
        emit("job-status", job_id=job.job_id, status="FAILED", reason=reason)
        emit("job-ended", job_id=job.job_id, status="FAILED", reason=reason,
             attempts=len(job.attempts))  # fmt: skip


def _fits(environment: Any, num_nodes: int) -> bool:
    """Return whether the environment's maximum allows this many nodes."""
    resources = environment.compute_resources
    (name,) = resources["instanceTypes"]
    return INSTANCE_TYPES[name].vcpus_for(num_nodes) <= int(resources["maxvCpus"])


def _zones(place: AccountRegion, environment: Any) -> set[str]:
    """Return the ids of the environment's zones."""
    ec2 = ec2_backends[place.account_id][place.region]
    names = environment.compute_resources.get("subnets", ())
    return {ec2.get_subnet(name).availability_zone_id for name in names}


def _full_zones(place: AccountRegion) -> set[str]:
    parameter = ssm_backends[place.account_id][place.region].get_parameter(FULL_ZONES)
    return set() if parameter is None else set(parameter.value.split(","))


def _vcpus(job: BatchJob, instance_types: list[str]) -> int:
    """Return the vCPUs that the job needs, for all its nodes or its container."""
    if isinstance(job, MultiNodeJob):
        (name,) = instance_types
        return INSTANCE_TYPES[name].vcpus_for(job.num_nodes)
    requirements = job.container(0).get("resourceRequirements", ())
    return sum(int(entry["value"]) for entry in requirements if entry["type"] == "VCPU")


def take_fault(backend: Any, run: str) -> faults.NodeFault | None:
    """Remove and return the fault armed for a run in one region's parameters."""
    for name in (f"{NEXT_FAULT}/{run}", NEXT_FAULT):
        if (parameter := backend.get_parameter(name)) is None:
            continue
        fault = faults.NodeFault.parse(parameter.value, has_object)
        if fault.run in (None, run):
            backend.delete_parameter(name)
            return fault
    return None


def has_object(key: str, path: str) -> bool:
    """Return whether any bucket has an object whose key matches a pattern.

    With ``path``, the object must also be JSON and list a matching path in its ``files``.
    """
    return any(
        fnmatch.fnmatchcase(name, key) and (not path or _lists(bucket.keys.get(name), path))
        for account in list(s3_backends)
        for bucket in list(s3_backends[account]["aws"].buckets.values())
        for name in list(bucket.keys)
    )


def _lists(item: Any, path: str) -> bool:
    """Return whether an object lists a file whose path matches."""
    try:
        files = json.loads(item.value)["files"]
        return any(fnmatch.fnmatchcase(file["path"], path) for file in files)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False  # another kind of object, or deleted in the meantime: moto closes its file
