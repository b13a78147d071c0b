"""The last steps of `submit`: the compile job, the job itself, following, the JSON document."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobs.deployment import where
from jobs.errors import EXIT_OK
from jobs.job import ESTIMATE_NOTE, Job, JobRequest, RunSummary, compile_run, counted
from jobs.orchestrators import JobService
from jobs.output.console import echo, exit_code, follow_command, human, note, print_document
from jobs.submit.choose import Submission, Wheels
from jobs.submit.hold import NameHold, hold_name, name_held
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware

if TYPE_CHECKING:
    from jobs.output.documents import SubmitAction, SubmitDocument

_SHOWN_IN_A_DRY_RUN = "JOB-ID-OF-THE-COMPILE-JOB"
_WHEELS_IN_A_DRY_RUN = "JOB-ID-OF-THE-WHEELS-JOB"
_LISTED_FOR_S = 60
"""Seconds after which the run's jobs are listed again. Until then taking the name is enough: its
holder names the job of a submission that came in between, for 5 minutes (``jobs.submit.hold``)."""


def show(submission: Submission) -> int:
    """Print what would be sent: one payload, or a list of both in order."""
    if submission.plan.compile_request is not None:
        submission = _depending(submission, _SHOWN_IN_A_DRY_RUN)
    if _collects(submission) and not _waits_here(submission):
        submission = _depending(submission, _WHEELS_IN_A_DRY_RUN)
    if submission.order.options.as_json:
        print_document(_document(submission, action="dry-run"))
    else:
        payloads = _payloads(submission)
        echo(json.dumps(payloads[0] if len(payloads) == 1 else payloads, indent=2))
    return EXIT_OK


def join(submission: Submission, running: RunSummary) -> int:
    """Submit nothing, because the run already exists."""
    note(
        f"run {running.run} is {running.status} already, job {running.job_id}: nothing was "
        "submitted"
    )
    place = submission.places.of(running.orchestrator)
    # Its dependencies were looked after when it was submitted.
    submission = replace(submission, wheels=None)
    return _finish(submission, running.job_id, service=place, status_before=running.status)


def send(submission: Submission) -> int:
    """Submit the planned jobs, compile job first, and finish the command."""
    service, bucket, run = submission.service, submission.bucket, submission.request.run
    wheels, first = submission.wheels, submission.plan.compile_request
    compile_id = wheels_id = None
    if wheels is not None:
        # Where the job that collects wheels looks for them.
        bucket.write(contract.requirements_key(run, wheels.key), wheels.requirements.text.encode())
    collected = wheels if _collects(submission) else None
    if collected is not None and _waits_here(submission):
        wheels_id = _send_first(collected.service, collected.request)
        job = _collect(submission, collected, wheels_id)
        if not job.succeeded:
            return _give_up(submission, wheels_id, job)
    with _held(submission) as (hold, earlier):
        if collected is not None and wheels_id is None:
            wheels_id = _send_first(collected.service, collected.request)
            submission = _depending(submission, wheels_id)
        if first is not None:
            compile_id = _send_first(service, first)
            submission = _depending(submission, compile_id)
        if submission.order.program is not None:
            _send_program(submission, hold)
        if hold is not None and (len(submission.requests) > 1 or submission.record is not None):
            hold.renew()
        if hold is not None:
            hold.adds_job = True
        job_id = _send(service, submission.request, earlier=earlier)
        if hold is not None:
            hold.job_id = job_id
    return _finish(submission, job_id, service=service, compile_id=compile_id, wheels_id=wheels_id)


@contextmanager
def _held(submission: Submission) -> Iterator[tuple[NameHold | None, set[str]]]:
    """Hold the run's name; yields the hold and the ids of the jobs that the run has had.

    They are listed once more if the user or the dependencies have taken their time. A generated
    name is this submission's own, and is not held.
    """
    run = submission.request.run
    known = {summary.job_id for summary in submission.earlier}
    if submission.order.options.name is None:
        yield None, known
        return
    with hold_name(submission.bucket, run, known=known) as hold:
        if time.time() - submission.listed_at > _LISTED_FOR_S:
            listed = [summary for _, summary in submission.places.runs(run)]
            for summary in listed:
                if summary.job_id not in known and not summary.ended:
                    raise name_held(run, f"job {summary.job_id} has been submitted meanwhile")
            known = {summary.job_id for summary in listed}
        yield hold, known


def _send_program(submission: Submission, hold: NameHold | None) -> None:
    """Put the bundle, the choice of a snapshot and the record into the bucket."""
    from jobs.program.bundle import upload
    from jobs.program.record import add_record, now
    from jobs.program.snapshots import go_back

    program, record, bucket = submission.order.program, submission.record, submission.bucket
    assert program is not None and record is not None
    bundle, run = program.bundle, submission.request.run
    if upload(bucket, run, bundle, note):  # which may take minutes
        note(f"sent {counted(len(bundle.files), 'file')}, {human(len(bundle.data))}")
    if hold is not None:
        hold.renew()
    if program.choice is not None:
        go_back(bucket, run, program.choice)
    add_record(bucket, run, replace(record, submitted_at=now()))


def _collects(submission: Submission) -> bool:
    """Tell whether wheels have to be collected first."""
    return submission.wheels is not None and not submission.wheels.are_collected


def _waits_here(submission: Submission) -> bool:
    """Tell whether this command waits for the wheels, because the job itself cannot."""
    return submission.request.orchestrator is Orchestrator.EKS


def _collect(submission: Submission, wheels: Wheels, job_id: str) -> Job:
    """Stay until the wheels are collected."""
    run = submission.request.run
    note(f"run {run} is submitted when its dependencies are collected; this command waits")
    try:
        return _watch(submission, wheels.service, wheels.request, job_id)
    except BaseException:
        note(f"run {run} was not submitted; its dependencies go on being collected: submit again")
        raise


def _give_up(submission: Submission, wheels_id: str, job: Job) -> int:
    """Submit nothing more, because the wheels could not be collected."""
    note(f"run {submission.request.run} was not submitted: its dependencies were not collected")
    if submission.order.options.as_json:
        print_document(_document(submission, action="not-submitted", wheels_id=wheels_id, job=job))
    return exit_code(job)


def _payloads(submission: Submission) -> list[dict[str, Any]]:
    return [submission.service_of(item).payload(item) for item in submission.requests]


def _depending(submission: Submission, compile_id: str) -> Submission:
    return replace(submission, request=replace(submission.request, depends_on=(compile_id,)))


def _send_first(service: JobService, request: JobRequest) -> str:
    """Submit the compile job, or find the one that is already running."""
    earlier = service.runs(request.run)
    running = next((summary for summary in earlier if not summary.ended), None)
    if running is not None:
        note(f"run {request.run} is {running.status} already, job {running.job_id}")
        return running.job_id
    return _send(service, request, earlier={summary.job_id for summary in earlier})


def _send(service: JobService, request: JobRequest, *, earlier: set[str]) -> str:
    """Submit one job and return its id; ``earlier`` holds the ids of the run's previous jobs."""
    try:
        job_id = service.submit(request, earlier=earlier, sleep=time.sleep)
    except KeyboardInterrupt:
        note(f"interrupted; whether it was submitted tells: python -m jobs status {request.run}")
        if request.depends_on:
            first = compile_run(request.run)
            note(f"its compile job goes on; stop it with: python -m jobs stop {first}")
        raise
    note(f"submitted run {request.run}, job {job_id}")
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
    """Follow and print the document if requested; return the exit code.

    ``status_before`` is the status of a job that had been submitted earlier.
    """
    options, wheels = submission.order.options, submission.wheels
    first = submission.plan.compile_request
    job: Job | None = None
    try:
        if options.follows:
            if wheels is not None and wheels_id is not None and not _waits_here(submission):
                _watch(submission, wheels.service, wheels.request, wheels_id)
            if first is not None and compile_id is not None:
                _watch(submission, service, first, compile_id)
            job = _watch(submission, service, submission.request, job_id)
    except BaseException:
        if options.releases:
            command = _release_command(submission.service)
            note(f"the nodes stay, and cost; when the job has ended: {command}")
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
    """Show one of the jobs until it ends."""
    from jobs.output.screen import watch  # rich is only needed here

    is_array = request.hardware is Hardware.CPU and request.num_nodes > 1
    job, _ = watch(
        service,
        submission.target,
        run=request.run,
        job_id=job_id,
        keep_lines=submission.order.options.as_json,
        folds=submission.order.options.folds,
        part="child" if is_array else "node",
    )
    return job


def _release_command(service: JobService) -> str:
    from jobs.eks.nodes import scale_command
    from jobs.eks.service import EksService

    assert isinstance(service, EksService)
    return scale_command(service.target, 0)


def _release(service: JobService) -> None:
    """Have idle nodes removed when the job has ended, unless another run still needs them."""
    from jobs.eks.cluster import refusing
    from jobs.eks.node_users import read_use
    from jobs.eks.nodes import request_nodes
    from jobs.eks.service import EksService

    assert isinstance(service, EksService)
    command = _release_command(service)
    needing = [summary.run for summary in service.runs() if not summary.ended]
    if needing:
        note(f"the nodes stay: {', '.join(needing)} needs them; then: {command}")
        return
    with refusing():
        use = read_use(service.cluster(), service.target)
        left = len(use.runs)
        request_nodes(service.cluster(), left)
    users = ", ".join(dict.fromkeys(run for runs in use.runs.values() for run in runs))
    note(
        f"the node scaler removes all nodes but {left}: {users} still uses them; then: {command}"
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
    """Make the document of ``submit --json``."""
    from jobs.output.documents import CompileJob, Estimate, SubmitDocument, WheelsJob, outcome

    request, deployment, plan = submission.request, submission.target, submission.plan
    wheels = submission.wheels
    first = plan.compile_request
    payloads = _payloads(submission)
    on_cpu = request.hardware is Hardware.CPU
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
