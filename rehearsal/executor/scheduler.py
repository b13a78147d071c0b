"""Takes jobs from the queue, one gang at a time, within the compute environment's vCPUs."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from moto.batch.models import batch_backends
from moto.ssm.models import ssm_backends

from rehearsal.executor import faults
from rehearsal.executor.events import emit
from rehearsal.executor.gang import Gang, Settings
from rehearsal.executor.job import MultiNodeJob, now_ms
from rehearsal.models.spi import Place
from trainium_catalogue.instances import INSTANCE_TYPES

NEXT_FAULT = "/rehearsal/next-fault"
"""SSM parameter by which a fault is armed for the next job: JSON with its ``kind``."""

NO_CAPACITY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
MAX_RESOURCE = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"

EXPLAINED = {
    NO_CAPACITY: NO_CAPACITY
    + " - Service cannot fulfill the capacity requested for instance type [{type}]",
    MAX_RESOURCE: MAX_RESOURCE
    + " - The job needs {needed} vCPUs, the compute environment may have {allowed}",
}


class Scheduler:
    """The jobs of one server."""

    def __init__(self, settings: Callable[[], Settings]):
        self._settings = settings
        self._jobs: dict[str, MultiNodeJob] = {}
        self._wake = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, job: MultiNodeJob) -> None:
        """Queue a job."""
        with self._wake:
            self._jobs[job.job_id] = job
            emit("job-submitted", job_id=job.job_id, run=job.name, num_nodes=job.num_nodes)
            self._wake.notify()

    def jobs(self) -> list[MultiNodeJob]:
        """Every job, in order of submission."""
        return list(self._jobs.values())

    def get(self, job_id: str) -> MultiNodeJob | None:
        """The job of this id."""
        return self._jobs.get(job_id)

    def terminate(self, job_id: str, reason: str) -> None:
        """Ask a job to end; an unknown one is ignored, as Batch does."""
        job = self._jobs.get(job_id)
        if job is not None and job.is_active and job.terminate_reason is None:
            job.terminate_reason = reason

    def stop(self) -> None:
        """Terminate everything and wait for it."""
        for job in self.jobs():
            self.terminate(job.job_id, "the rehearsal's server stops")
        while any(job.is_active for job in self.jobs()):
            time.sleep(0.05)

    def _work(self) -> None:
        while True:
            with self._wake:
                waiting = [job for job in self._jobs.values() if job.is_active]
                if not waiting:
                    self._wake.wait()
                    continue
            try:
                self._run(waiting[0])
            except Exception as error:
                # A mistake of ours must not leave a job RUNNING for ever.
                self._end(waiting[0], f"the rehearsal failed: {type(error).__name__}: {error}")
                raise

    def _run(self, job: MultiNodeJob) -> None:
        for status in ("PENDING", "RUNNABLE"):
            job.status = status
            emit("job-status", job_id=job.job_id, status=status, reason="")
        place = Place(account_id=job.account_id, region=job.region)
        queue = batch_backends[job.account_id][job.region].get_job_queue(job.queue_arn)
        environment = queue.environments[0]
        fault = self._take_fault(place)
        blocked = self._blocked(job, environment, fault)
        if blocked and not self._wait_blocked(job, queue, *blocked):
            return
        if job.terminate_reason is not None:
            self._end(job, job.terminate_reason)
            return
        Gang(
            job,
            settings=self._settings(),
            place=place,
            compute_environment=environment.name,
            fault=fault,
        ).run()
        emit("job-ended", job_id=job.job_id, status=job.status, reason=job.status_reason,
             attempts=len(job.attempts))  # fmt: skip

    def _take_fault(self, place: Place) -> faults.Fault | None:
        backend = ssm_backends[place.account_id][place.region]
        parameter = backend.get_parameter(NEXT_FAULT)
        if parameter is None:
            return None
        backend.delete_parameter(NEXT_FAULT)
        return faults.Fault(kind=json.loads(parameter.value)["kind"])

    @staticmethod
    def _blocked(
        job: MultiNodeJob, environment: Any, fault: faults.Fault | None
    ) -> tuple[str, str] | None:
        """Batch's reason why the job cannot start, and its words."""
        resources = environment.compute_resources
        (name,) = resources["instanceTypes"]
        needed = INSTANCE_TYPES[name].vcpus_for(job.num_nodes)
        allowed = int(resources["maxvCpus"])
        if needed > allowed:
            text = EXPLAINED[MAX_RESOURCE].format(needed=needed, allowed=allowed)
            return MAX_RESOURCE, text
        if fault is not None and fault.kind == faults.NO_CAPACITY:
            return NO_CAPACITY, EXPLAINED[NO_CAPACITY].format(type=name)
        return None

    def _wait_blocked(self, job: MultiNodeJob, queue: Any, reason: str, text: str) -> bool:
        """Stay RUNNABLE until the queue's time limit for this reason, or a request to stop."""
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
    def _end(job: MultiNodeJob, reason: str) -> None:
        job.status, job.status_reason, job.stopped_at = "FAILED", reason, now_ms()
        emit("job-status", job_id=job.job_id, status="FAILED", reason=reason)
        emit("job-ended", job_id=job.job_id, status="FAILED", reason=reason,
             attempts=len(job.attempts))  # fmt: skip
