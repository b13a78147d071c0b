"""The final steps of `submit`: submit the jobs, follow them, and print the JSON document."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobs.bucket.attempts import note_submission
from jobs.bucket.name_hold import NameHold, hold_name, name_held
from jobs.bucket.objects import Bucket
from jobs.cost import cap_of
from jobs.deployment import where
from jobs.errors import EXIT_OK
from jobs.job import ESTIMATE_NOTE, Job, JobKind, JobRequest, RunSummary, Shape, compile_run
from jobs.orchestrators import JobService
from jobs.output.console import echo, exit_code, follow_command, human, note, print_document
from jobs.submit.choose import Submission, Wheels, wheels_run
from jobs.submit.plan import caveat_of, usd_at_most
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import Hardware

if TYPE_CHECKING:
    from jobs.output.documents import SubmitAction, SubmitDocument

_COMPILE_JOB_IN_A_DRY_RUN = "JOB-ID-OF-THE-COMPILE-JOB"
_WHEELS_JOB_IN_A_DRY_RUN = "JOB-ID-OF-THE-WHEELS-JOB"
_RELIST_AFTER_S = 60
"""Seconds after which the run's jobs are listed again. Until then the lock on the name is enough:
it records the job of a concurrent submission for 5 minutes (``jobs.bucket.name_hold``)."""


def show(submission: Submission) -> int:
    """Print the JSON document if requested, or else the payload; several as a list, in order."""
    if submission.plan.compile_request is not None:
        submission = _with_dependency(submission, _COMPILE_JOB_IN_A_DRY_RUN)
    if _must_collect_wheels(submission) and not _must_wait(submission):
        submission = _with_dependency(submission, _WHEELS_JOB_IN_A_DRY_RUN)
    if submission.spec.options.as_json:
        print_document(_document(submission, action="dry-run"))
    else:
        payloads = _payloads(submission)
        echo(json.dumps(payloads[0] if len(payloads) == 1 else payloads, indent=2))
    return EXIT_OK


def join(submission: Submission, running: RunSummary) -> int:
    """Follow the run's unfinished job, if requested, instead of submitting a new one."""
    note(
        f"run {running.run} is already {running.status}, job {running.job_id}: nothing was "
        "submitted"
    )
    service = submission.services.of(running.orchestrator)
    # Its wheels are handled by the command that submitted it.
    submission = replace(submission, wheels=None)
    return _finish(submission, running.job_id, service=service, status_before=running.status)


def send(submission: Submission) -> int:
    """Submit the planned jobs in order, and finish the command."""
    service, bucket, run = submission.service, submission.bucket, submission.request.run
    wheels, first = submission.wheels, submission.plan.compile_request
    compile_id = wheels_id = None
    if wheels is not None:
        # Read by the job that collects the wheels.
        bucket.write(contract.requirements_key(run, wheels.key), wheels.requirements.text.encode())
    collected = wheels if _must_collect_wheels(submission) else None
    if collected is not None and _must_wait(submission):
        wheels_id = _send_first(bucket, collected.service, collected.request)
        job = _wait_for_wheels(submission, collected, wheels_id)
        if not job.succeeded:
            return _give_up(submission, wheels_id, job)
    with _hold_run_name(submission) as (hold, earlier):
        if collected is not None and wheels_id is None:
            wheels_id = _send_first(bucket, collected.service, collected.request)
            submission = _with_dependency(submission, wheels_id)
        if first is not None:
            compile_id = _send_first(bucket, service, first)
            submission = _with_dependency(submission, compile_id)
        if submission.spec.program is not None:
            _send_program(submission, hold)
        if hold is not None and (len(submission.requests) > 1 or submission.record is not None):
            hold.renew()
        if hold is not None:
            hold.adds_job = True
        job_id = _send(bucket, service, submission.request, earlier=earlier)
        if hold is not None:
            hold.job_id = job_id
    return _finish(submission, job_id, service=service, compile_id=compile_id, wheels_id=wheels_id)


@contextmanager
def _hold_run_name(submission: Submission) -> Iterator[tuple[NameHold | None, set[str]]]:
    """Lock the run's name; yield the lock and the ids of the run's previous jobs.

    Jobs are listed again if confirmation or dependencies took over a minute. A generated name is
    unique and not locked.
    """
    run = submission.request.run
    known = {summary.job_id for summary in submission.earlier}
    if submission.spec.options.name is None:
        yield None, known
        return
    with hold_name(submission.bucket, run, known=known) as hold:
        if time.time() - submission.listed_at > _RELIST_AFTER_S:
            listed = [summary for _, summary in submission.services.runs(run)]
            for summary in listed:
                if summary.job_id not in known and not summary.ended:
                    raise name_held(run, f"job {summary.job_id} was just submitted")
            known = {summary.job_id for summary in listed}
        yield hold, known


def _send_program(submission: Submission, hold: NameHold | None) -> None:
    """Upload the bundle, the choice of a snapshot and the record."""
    from jobs.program.bundle import upload
    from jobs.program.record import add_record, now
    from jobs.program.snapshots import roll_back

    program, record, bucket = submission.spec.program, submission.record, submission.bucket
    assert program is not None and record is not None
    bundle, run = program.bundle, submission.request.run
    if upload(bucket, run, bundle):  # may take minutes
        note(f"uploaded {counted(len(bundle.files), 'file')}, {human(len(bundle.data))}")
    if hold is not None:
        hold.renew()
    if program.choice is not None:
        roll_back(bucket, run, program.choice)
    add_record(bucket, run, replace(record, submitted_at=now()))


def _must_collect_wheels(submission: Submission) -> bool:
    """Return whether wheels must be collected first."""
    return submission.wheels is not None and not submission.wheels.are_collected


def _must_wait(submission: Submission) -> bool:
    """Return whether this command must wait for the wheels, because the job cannot."""
    return submission.request.orchestrator is Orchestrator.EKS


def _wait_for_wheels(submission: Submission, wheels: Wheels, job_id: str) -> Job:
    """Wait until the wheels are collected."""
    run = submission.request.run
    note(f"waiting to submit run {run} until its dependencies are collected")
    try:
        return _watch(submission, wheels.service, wheels.request, job_id)
    except BaseException:
        note(
            f"run {run} was not submitted, because its dependencies are still being collected; "
            "submit it again later"
        )
        raise


def _give_up(submission: Submission, wheels_id: str, job: Job) -> int:
    """Finish without submitting, because the wheels could not be collected."""
    note(f"run {submission.request.run} was not submitted: its dependencies were not collected")
    if submission.spec.options.as_json:
        print_document(_document(submission, action="not-submitted", wheels_id=wheels_id, job=job))
    return exit_code(job)


def _payloads(submission: Submission) -> list[dict[str, Any]]:
    return [submission.service_of(item).payload(item) for item in submission.requests]


def _with_dependency(submission: Submission, job_id: str) -> Submission:
    return replace(submission, request=replace(submission.request, depends_on=(job_id,)))


def _send_first(bucket: Bucket, service: JobService, request: JobRequest) -> str:
    """Submit a job to run first, or find it if it is already running."""
    earlier = service.runs(request.run)
    running = next((summary for summary in earlier if not summary.ended), None)
    if running is not None:
        note(f"run {request.run} is already {running.status}, job {running.job_id}")
        return running.job_id
    return _send(bucket, service, request, earlier={summary.job_id for summary in earlier})


def _send(bucket: Bucket, service: JobService, request: JobRequest, *, earlier: set[str]) -> str:
    """Submit one job, record it in the bucket and return its id.

    ``earlier`` are the ids of the run's previous jobs.
    """
    try:
        job_id = service.submit(request, earlier=earlier, sleep=time.sleep)
    except KeyboardInterrupt:
        note(
            "interrupted; the job may have been submitted; check: python -m jobs status "
            f"{request.run}"
        )
        if request.depends_on:
            what, first = "compile job", compile_run(request.run)
            if request.workload == contract.PROGRAM:
                what, first = "wheels job", wheels_run(str(request.parameters["wheels"]))
            note(f"its {what} keeps running; stop it with: python -m jobs stop {first}")
        raise
    note(f"submitted run {request.run}, job {job_id}")
    # Best effort: without it, `report` queries the service, which keeps the job for 7 days.
    with suppress(Exception):
        note_submission(bucket, request, job_id)
    return job_id


def _finish(
    submission: Submission,
    job_id: str,
    *,
    service: JobService,
    compile_id: str | None = None,
    wheels_id: str | None = None,
    status_before: str | None = None,
) -> int:
    """Follow the jobs and print the JSON document, if requested; return the exit code.

    ``status_before`` is the status of a job that already existed.
    """
    options, wheels = submission.spec.options, submission.wheels
    first = submission.plan.compile_request
    job: Job | None = None
    try:
        if options.follows:
            if wheels is not None and wheels_id is not None and not _must_wait(submission):
                _watch(submission, wheels.service, wheels.request, wheels_id)
            if first is not None and compile_id is not None:
                _watch(submission, service, first, compile_id)
            job = _watch(submission, service, submission.request, job_id)
    except BaseException:
        if options.releases:
            command = _release_command(submission.service)
            note(
                f"the nodes keep running, and are billed; remove them after the job with: {command}"
            )
        raise
    if job is None:
        note(f"follow it with: {follow_command(submission.target, submission.request.run)}")
    elif options.releases:
        _release(submission.service)
    if options.as_json:
        document = _document(
            submission,
            action="submitted" if status_before is None else "already-running",
            job_id=job_id,
            compile_id=compile_id,
            wheels_id=wheels_id,
            status=status_before or "SUBMITTED",
            job=job,
        )
        print_document(document)
    return EXIT_OK if job is None else exit_code(job)


def _watch(submission: Submission, service: JobService, request: JobRequest, job_id: str) -> Job:
    """Follow one of the jobs until it ends."""
    from jobs.output.screen import watch  # imports rich, which is slow

    is_array = request.hardware is Hardware.CPU and request.num_nodes > 1
    job, _ = watch(
        service,
        submission.target,
        run=request.run,
        job_id=job_id,
        keep_lines=submission.spec.options.as_json,
        folds=submission.spec.options.folds,
        shape=Shape(kind=JobKind.ARRAY if is_array else JobKind.NODES, size=request.num_nodes),
    )
    return job


def _release_command(service: JobService) -> str:
    from jobs.eks.nodes import scale_command
    from jobs.eks.service import EksService

    assert isinstance(service, EksService)
    return scale_command(service.target, 0)


def _release(service: JobService) -> None:
    """Request the removal of idle nodes after the job ends, unless another run needs them."""
    from jobs.eks.cluster import refusing
    from jobs.eks.node_users import read_use
    from jobs.eks.nodes import request_nodes
    from jobs.eks.service import EksService

    assert isinstance(service, EksService)
    command = _release_command(service)
    others = [f"run {summary.run}" for summary in service.runs() if not summary.ended]
    if others:
        need = "needs" if len(others) == 1 else "need"
        note(
            f"the nodes keep running, because {' and '.join(others)} {need} them; remove them "
            f"later with: {command}"
        )
        return
    with refusing():
        use = read_use(service.cluster(), service.target)
        left = len(use.runs)
        request_nodes(service.cluster(), left)
    users = list(dict.fromkeys(run for runs in use.runs.values() for run in runs))
    still = "still uses" if len(users) == 1 else "still use"
    note(
        f"the node scaler removes all nodes except {left}, which {' and '.join(users)} {still}; "
        f"remove {'it' if left == 1 else 'them'} later with: {command}"
        if left
        else "the node scaler removes all nodes within a minute"
    )


def _document(
    submission: Submission,
    *,
    action: SubmitAction,
    job_id: str | None = None,
    compile_id: str | None = None,
    wheels_id: str | None = None,
    status: str | None = None,
    job: Job | None = None,
) -> SubmitDocument:
    """Build the document of ``submit --json``."""
    from jobs.output.documents import CompileJob, Estimate, SubmitDocument, WheelsJob, outcome

    request, deployment, plan = submission.request, submission.target, submission.plan
    wheels = submission.wheels
    first = plan.compile_request
    payloads = _payloads(submission)
    on_cpu = request.hardware is Hardware.CPU
    cap = cap_of(deployment, submission.spec.options.max_usd)
    return SubmitDocument(
        **where(deployment, request.run),
        job_id=job_id,
        action=action,
        status=job.status if job else status,
        workload=request.workload,
        hardware=request.hardware,
        orchestrator=request.orchestrator,
        nodes=request.num_nodes,
        time_limit_hours=request.time_limit_hours,
        instance_type=None if on_cpu else deployment.instance_type.name,
        estimate=Estimate(
            usd_per_node_hour=request.usd_per_node_hour,
            usd_at_time_limit=round(request.usd_at_time_limit, 2),
            usd_at_most=round(usd_at_most(submission), 2),
            usd_at_most_caveat=caveat_of(submission),
            cap_usd=None if cap is None else cap.usd,
            max_attempts=contract.ATTEMPTS,
            note=ESTIMATE_NOTE,
        ),
        plan=plan.document,
        compile=None
        if first is None
        else CompileJob(
            run=first.run,
            job_id=compile_id,
            time_limit_hours=first.time_limit_hours,
            usd_at_time_limit=round(first.usd_at_time_limit, 2),
            payload=payloads[-2],
        ),
        wheels=None
        if wheels is None
        else WheelsJob(
            key=wheels.key,
            collected=wheels.are_collected,
            run=wheels.request.run,
            job_id=wheels_id,
            payload=None if wheels.are_collected else payloads[0],
        ),
        payload=payloads[-1],
        outcome=outcome(job) if job else None,
    )
