"""The last steps of `submit`: the compile job, the job itself, following, the JSON document."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from jobs.deployment import OfRun, where
from jobs.errors import EXIT_OK
from jobs.job import ESTIMATE_NOTE, Job, JobRequest, JobStatus, RunSummary, compile_run
from jobs.orchestrators import JobService
from jobs.output.console import echo, exit_code, follow_command, note, print_document
from jobs.output.documents import Outcome, outcome
from jobs.submit.hold import NameHold, hold_name, name_held
from jobs.submit.program_plan import keep, send_code
from jobs.submit.resolve import ProgramPlan, Submission, TrainingSummary
from jobs.submit.wheels import Wheels, keep_requirements
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Keywords, Positive
from trainium_catalogue.workloads import Hardware

SubmitAction = Literal["submitted", "already-running", "not-submitted", "dry-run"]
_SHOWN_IN_A_DRY_RUN = "JOB-ID-OF-THE-COMPILE-JOB"
_WHEELS_IN_A_DRY_RUN = "JOB-ID-OF-THE-WHEELS-JOB"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """List prices, for orientation only."""

    usd_per_node_hour: float
    usd_at_time_limit: float
    """One attempt of all nodes that uses all its time."""
    max_attempts: Positive
    note: str


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """With --compile: the job that is submitted first."""

    run: str
    job_id: str | None
    """Null with --dry-run."""
    time_limit_hours: Annotated[float, Keywords(exclusiveMinimum=0)]
    usd_at_time_limit: float
    payload: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class WheelsJob:
    """With --requirements: the dependencies, and the job that collects them first."""

    key: Annotated[str, Keywords(pattern="^[0-9a-f]{32}$")]
    collected: bool
    """True if they were there, so that no job is needed."""
    run: str
    job_id: str | None
    """Null with --dry-run, and if they were there."""
    payload: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class SubmitDocument(OfRun):
    """What was submitted, or would be, or is running already."""

    job_id: str | None
    """Null with --dry-run."""
    action: SubmitAction
    status: JobStatus | None
    workload: str
    hardware: Hardware
    """cpu: a data or export job on ordinary instances."""
    orchestrator: Orchestrator
    """What runs the job's nodes; batch for every CPU job."""
    nodes: Positive
    """Of a CPU job: children of an array, or 1."""
    time_limit_hours: Annotated[float, Keywords(exclusiveMinimum=0)]
    """Of each attempt."""
    instance_type: str | None
    """Null for a CPU job: the compute environment chooses."""
    estimate: Estimate
    plan: TrainingSummary | ProgramPlan | None
    compile: CompileJob | None
    wheels: WheelsJob | None
    payload: Mapping[str, Any]
    """The exact arguments of Batch's SubmitJob, or the exact Volcano job."""
    outcome: Outcome | None
    """With --follow: how the job ended."""


def show(submission: Submission) -> int:
    """Print what would be sent: one payload, or a list of both in order."""
    if submission.plan.compile_request is not None:
        submission = _depending(submission, _SHOWN_IN_A_DRY_RUN)
    if _collects(submission) and not _waits_here(submission):
        submission = _depending(submission, _WHEELS_IN_A_DRY_RUN)
    if submission.order.as_json:
        print_document(_document(submission, action="dry-run"))
    else:
        payloads = _payloads(submission)
        echo(json.dumps(payloads[0] if len(payloads) == 1 else payloads, indent=2))
    return EXIT_OK


def join(submission: Submission, going_on: RunSummary) -> int:
    """Submit nothing, because the run already exists."""
    note(
        f"run {going_on.run} is {going_on.status} already, job {going_on.job_id}: nothing was "
        "submitted"
    )
    place = submission.places.of(going_on.orchestrator)
    # Its dependencies were looked after when it was submitted.
    submission = replace(submission, wheels=None)
    return _finish(submission, going_on.job_id, service=place, status_before=going_on.status)


def send(submission: Submission) -> int:
    """Submit the planned jobs, compile job first, and finish the command."""
    service, first = submission.service, submission.plan.compile_request
    compile_id = wheels_id = None
    if submission.wheels is not None:
        keep_requirements(submission.bucket, submission.request.run, submission.wheels)
    collected = submission.wheels if _collects(submission) else None
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
            send_code(submission)
            if hold is not None:
                hold.renew()
            keep(submission)
        if hold is not None:
            hold.renew(adds_job=True)
        job_id = _send(service, submission.request, earlier=earlier)
        if hold is not None:
            hold.job_id = job_id
    return _finish(submission, job_id, service=service, compile_id=compile_id, wheels_id=wheels_id)


@contextmanager
def _held(submission: Submission) -> Iterator[tuple[NameHold | None, set[str]]]:
    """Hold the run's name; yields the hold and the ids of the jobs that the run has had.

    They are listed once more, because the user and the dependencies may have taken their time.
    A generated name is this submission's own, and is not held.
    """
    run = submission.request.run
    known = {summary.job_id for summary in submission.earlier}
    if not submission.order.is_named:
        yield None, known
        return
    with hold_name(submission.bucket, run, known=known) as hold:
        listed = [summary for _, summary in submission.places.runs(run)]
        for summary in listed:
            if summary.job_id not in known and not summary.ended:
                raise name_held(run, f"job {summary.job_id} has been submitted meanwhile")
        yield hold, {summary.job_id for summary in listed}


def _collects(submission: Submission) -> bool:
    """Tell whether wheels have to be collected first."""
    return submission.wheels is not None and not submission.wheels.are_collected


def _waits_here(submission: Submission) -> bool:
    """Tell whether this command waits for the wheels, because the job itself cannot."""
    return submission.request.orchestrator is Orchestrator.EKS


def _collect(submission: Submission, wheels: Wheels, job_id: str) -> Job:
    """Stay until the wheels are collected."""
    from jobs.output.screen import watch  # rich is only needed here

    run, quiet = submission.request.run, submission.order.as_json
    note(f"run {run} is submitted when its dependencies are collected; this command waits")
    try:
        job, _ = watch(
            wheels.service,
            submission.target,
            run=wheels.request.run,
            job_id=job_id,
            keep_lines=quiet,
            folds=submission.order.folds,
        )
    except BaseException:
        note(f"run {run} was not submitted; its dependencies go on being collected: submit again")
        raise
    return job


def _give_up(submission: Submission, wheels_id: str, job: Job) -> int:
    """Submit nothing more, because the wheels could not be collected."""
    note(f"run {submission.request.run} was not submitted: its dependencies were not collected")
    if submission.order.as_json:
        print_document(_document(submission, action="not-submitted", wheels_id=wheels_id, job=job))
    return exit_code(job)


def _payloads(submission: Submission) -> list[dict[str, Any]]:
    return [submission.service_of(item).payload(item) for item in submission.requests]


def _depending(submission: Submission, compile_id: str) -> Submission:
    return replace(submission, request=replace(submission.request, depends_on=(compile_id,)))


def _send_first(service: JobService, request: JobRequest) -> str:
    """Submit the compile job, or find the one that is already running."""
    earlier = service.runs(request.run)
    going_on = next((summary for summary in earlier if not summary.ended), None)
    if going_on is not None:
        note(f"run {request.run} is {going_on.status} already, job {going_on.job_id}")
        return going_on.job_id
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
    order = submission.order
    try:
        if order.follows and not _waits_here(submission):
            _follow_wheels(submission, wheels_id)
        job = _follow(submission, job_id, service, compile_id) if order.follows else None
    except BaseException:
        if order.releases:
            command = _release_command(submission.service)
            note(f"the nodes stay, and cost; when the job has ended: {command}")
        raise
    if job is None:
        note(f"follow it with: {follow_command(submission.target, submission.request.run)}")
    elif order.releases:
        _release(submission.service)
    if order.as_json:
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


def _follow_wheels(submission: Submission, wheels_id: str | None) -> None:
    """Show the job that collects wheels, which the program's job waits for."""
    from jobs.output.screen import watch  # rich is only needed here

    if (wheels := submission.wheels) is None or wheels_id is None:
        return
    watch(
        wheels.service,
        submission.target,
        run=wheels.request.run,
        job_id=wheels_id,
        keep_lines=submission.order.as_json,
        folds=submission.order.folds,
    )


def _follow(
    submission: Submission, job_id: str, service: JobService, compile_id: str | None
) -> Job:
    from jobs.output.screen import watch  # rich is only needed here

    target, request, quiet = submission.target, submission.request, submission.order.as_json
    folds = submission.order.folds
    first = submission.plan.compile_request
    if compile_id is not None and first is not None:
        watch(service, target, run=first.run, job_id=compile_id, keep_lines=quiet, folds=folds)
    is_array = request.hardware is Hardware.CPU and request.num_nodes > 1
    part = "child" if is_array else "node"
    job, _ = watch(
        service,
        target,
        run=request.run,
        job_id=job_id,
        keep_lines=quiet,
        folds=folds,
        part=part,
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
