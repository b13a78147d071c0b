"""The end of `submit`: the compile job, the job itself, following, the document."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from jobs.deployment import Deployment
from jobs.errors import EXIT_OK
from jobs.job import Job, JobRequest, RunSummary
from jobs.orchestrators import JobService, Services
from jobs.output import documents
from jobs.output.console import exit_code, follow_command, note, print_document
from jobs.submit.prepared import Prepared, compile_run
from jobs.submit.same_job import check_same
from jobs.submit.show import show_payload
from trainium_catalogue.workloads import Hardware

_SHOWN_IN_A_DRY_RUN = "JOB-ID-OF-THE-COMPILE-JOB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Where a submission goes, and what happens after it."""

    service: JobService
    target: Deployment
    follows: bool
    as_json: bool
    release: Callable[[], None] | None = None
    """Gives the nodes up when the job has ended."""
    release_command: str = ""
    """Does so by hand."""
    elsewhere: JobService | None = None
    """Where the run is already, when that is another place."""

    def show(self, ready: Prepared) -> int:
        """A dry run: print what would be sent."""
        if ready.compile_request is not None:
            request = replace(ready.request, depends_on=(_SHOWN_IN_A_DRY_RUN,))
            ready = replace(ready, request=request)
        payloads = self.payloads(ready)
        if not self.as_json:
            show_payload(payloads)
            return EXIT_OK
        document = documents.submit_document(
            self.target,
            ready,
            action="dry-run",
            job_id=None,
            compile_id=None,
            status=None,
            job=None,
            payloads=payloads,
        )
        print_document(document)
        return EXIT_OK

    def join(self, ready: Prepared, going_on: RunSummary, services: Services) -> int:
        """Submit nothing: the run is there, wherever it is; refuses if it is another one."""
        its = services.of(going_on.orchestrator)
        job = its.describe(going_on.job_id)
        if job is not None:
            check_same(job, ready.request)
        note(
            f"run {going_on.run} is {going_on.status} already, job {going_on.job_id}: nothing was "
            "submitted"
        )
        return replace(self, elsewhere=its)._finish(
            ready, going_on.job_id, status_before=going_on.status
        )

    def send_all(self, ready: Prepared, *, earlier: set[str]) -> int:
        """Submit what is ready, the compile job first, and see to its end."""
        compile_id = None
        if ready.compile_request is not None:
            compile_id = self._first(ready.compile_request)
            request = replace(ready.request, depends_on=(compile_id,))
            ready = replace(ready, request=request)
        job_id = self._send(ready.request, earlier=earlier)
        return self._finish(ready, job_id, compile_id=compile_id)

    def _first(self, request: JobRequest) -> str:
        """Submit the compile job, or find the one that is running already."""
        earlier = self.service.runs(request.run)
        going_on = next((summary for summary in earlier if not summary.ended), None)
        if going_on is not None:
            note(f"run {request.run} is {going_on.status} already, job {going_on.job_id}")
            return going_on.job_id
        return self._send(request, earlier={summary.job_id for summary in earlier})

    def _send(self, request: JobRequest, *, earlier: set[str]) -> str:
        """Submit one job and return its id; ``earlier`` are the ids that the run had before."""
        try:
            job_id = self.service.submit(request, earlier=earlier, sleep=time.sleep)
        except KeyboardInterrupt:
            note(
                f"interrupted; whether it was submitted tells: python -m jobs status {request.run}"
            )
            if request.depends_on:
                first = compile_run(request.run)
                note(f"its compile job goes on; stop it with: python -m jobs stop {first}")
            raise
        note(f"submitted run {request.run}, job {job_id}")
        return job_id

    def _finish(
        self,
        ready: Prepared,
        job_id: str,
        *,
        compile_id: str | None = None,
        status_before: str | None = None,
    ) -> int:
        """Follow when asked to, print the document when asked to; return the exit code.

        ``status_before`` is that of a job that was submitted earlier.
        """
        try:
            outcome = self._follow(ready, job_id, compile_id) if self.follows else None
        except BaseException:
            if self.release is not None:
                note(f"the nodes stay, and cost; when the job has ended: {self.release_command}")
            raise
        if outcome is None:
            note(f"follow it with: {follow_command(self.target, ready.request.run)}")
        elif self.release is not None:
            self.release()
        if self.as_json:
            document = documents.submit_document(
                self.target,
                ready,
                action="submitted" if status_before is None else "already-running",
                job_id=job_id,
                compile_id=compile_id,
                status=status_before or "SUBMITTED",
                job=outcome,
                payloads=self.payloads(ready),
            )
            print_document(document)
        return EXIT_OK if outcome is None else exit_code(outcome)

    def payloads(self, ready: Prepared) -> list[documents.Document]:
        """What is sent, the compile job first."""
        first = ready.compile_request
        both = [ready.request] if first is None else [first, ready.request]
        return [self.service.payload(request) for request in both]

    def _follow(self, ready: Prepared, job_id: str, compile_id: str | None) -> Job:
        from jobs.output.screen import watch  # rich is not needed before

        service = self.elsewhere or self.service
        if compile_id is not None and ready.compile_request is not None:
            watch(
                service,
                self.target,
                run=ready.compile_request.run,
                job_id=compile_id,
                keep_lines=self.as_json,
            )
        is_array = ready.request.hardware is Hardware.CPU and ready.request.num_nodes > 1
        outcome, _ = watch(
            service,
            self.target,
            run=ready.request.run,
            job_id=job_id,
            keep_lines=self.as_json,
            part="child" if is_array else "node",
        )
        return outcome
