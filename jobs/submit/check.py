"""Checks on the deployment before anything is spent; each fails with one message and its remedy."""

from __future__ import annotations

import itertools
import math
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.job import Job, JobRequest, RunSummary, compile_run, counted
from jobs.orchestrators import JobService
from jobs.output.console import note
from jobs.submit.choose import Submission
from jobs.submit.read import SubmitOptions
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.parameters.parameter import flag_value
from trainium_catalogue.parameters.program import PROCESSES, check_processes
from trainium_catalogue.releases import NEURON_RELEASES, TorchBackend
from trainium_catalogue.workloads import Hardware, Workload, find_workload

MIN_TIME_LIMIT_HOURS = 60 / 3600
"""Batch's minimum ``attemptDurationSeconds`` is 60 (API reference, JobTimeout)."""
PREPARE = "prepare"
"""Workload whose jobs are usually named after what they make, not by the user."""


def check(submission: Submission) -> Submission:
    """Refuse what the deployment cannot run or already runs differently; find earlier jobs."""
    order, target, request = submission.order, submission.target, submission.request
    options = order.options
    _check_options(options, request, target.neuron_release)
    check_request(target, order.workload, request)
    if submission.wheels is not None:
        from jobs.program.image_packages import check_image_packages

        check_image_packages(submission.wheels.requirements, target, note)
    submission.service.check(request)
    if options.compiles:
        submission.service.check(replace(request, run=compile_run(request.run)))
    if options.dry_run:
        return submission  # nothing is submitted, so there is nothing to look for
    if options.name is not None:  # a generated name is new
        listed_at = time.time()
        earlier = tuple(summary for _, summary in submission.places.runs(request.run))
        submission = replace(submission, earlier=earlier, listed_at=listed_at)
    running = submission.running
    if running is None:
        _check_alone(submission.service, request)
        return submission
    job = submission.places.of(running.orchestrator).describe(running.job_id)
    if order.program is not None:
        _check_same_program(running, job, submission)
    elif job is not None:
        _check_same(job, request)
    return submission


def _check_options(options: SubmitOptions, request: JobRequest, neuron_release: str) -> None:
    """Refuse options that would do nothing here."""
    release = NEURON_RELEASES.get(neuron_release)
    on_batch = request.orchestrator is Orchestrator.BATCH
    if options.compiles and release and release.backend is TorchBackend.TORCH_NEURON:
        raise Refusal(
            "nothing-to-compile",
            f"--compile: Neuron {neuron_release} (TorchNeuron) keeps its compiled graphs on the "
            "node's own disk, so training would find none of them; leave --compile out",
        )
    if options.releases and on_batch:
        raise Refusal(
            "nothing-to-release",
            "--release: Batch ends idle instances itself; leave --release out",
        )
    if options.releases and not options.follows:
        raise Refusal(
            "release-needs-follow",
            "--release: it is this command that gives the nodes up when the job has ended, so it "
            "has to stay; add --follow",
        )
    if options.scales and on_batch:
        raise Refusal(
            "nothing-to-scale",
            "--scale: Batch starts the instances that a job needs itself; leave --scale out",
        )


def check_request(deployment: Deployment, workload: Workload, request: JobRequest) -> None:
    """Refuse more nodes or hours than the deployment has."""
    if workload.hardware is not Hardware.CPU:
        _check_nodes(deployment, request.num_nodes)
    _check_hours(deployment, workload, request)
    _check_processes(deployment, request)


def _check_processes(deployment: Deployment, request: JobRequest) -> None:
    try:
        check_processes(
            int(request.parameters.get(PROCESSES) or 0), deployment.instance_type.processes_per_node
        )
    except ValueError as error:
        raise Refusal("processes-per-node", str(error)) from None


def _check_nodes(deployment: Deployment, num_nodes: int) -> None:
    instance_type = deployment.instance_type
    if num_nodes > 1 and not instance_type.supports_multi_node:
        raise Refusal(
            "single-node-type",
            f"--nodes {num_nodes} cannot run on {instance_type.name}, which deployment "
            f"{deployment.name!r} uses: it has no EFA; submit with --nodes 1, or deploy a type "
            f"with EFA: {deployment.redeploy(instance_type='trn1.32xlarge')}",
        )
    if num_nodes > deployment.max_nodes:
        raise Refusal(
            "too-many-nodes",
            f"--nodes {num_nodes} is more than deployment {deployment.name!r} can hold "
            f"({deployment.max_nodes}); submit with --nodes {deployment.max_nodes} or fewer, or "
            f"deploy again with {deployment.redeploy(max_nodes=num_nodes)}",
        )


def _check_hours(deployment: Deployment, workload: Workload, request: JobRequest) -> None:
    asked, cap = request.time_limit_hours, deployment.cap_hours(request.orchestrator)
    if not math.isfinite(asked) or asked < MIN_TIME_LIMIT_HOURS:
        raise Refusal(
            "time-limit-too-short",
            f"--time-limit {asked:g} is too short: the least is {MIN_TIME_LIMIT_HOURS:.4f} hours "
            "(60 seconds); leave it out for the workload's default of "
            f"{workload.time_limit_hours:g}",
        )
    if asked > cap:
        raise Refusal(
            "time-limit-over-cap",
            f"--time-limit {asked:g} hours is over the cap of deployment {deployment.name!r} "
            f"({cap:g}); submit with --time-limit {cap:g} or less, or deploy again with "
            f"{deployment.redeploy(job_time_limit_hours=f'{asked:g}')}",
        )


def _check_same(job: Job, request: JobRequest) -> None:
    """Refuse a submission that would not get what it asks for.

    Parameters not given now keep the job's values.
    """
    found = list(_differences(job, request))
    if found:
        raise _goes_on(job, request.run, " and ".join(found))


def _check_same_program(running: RunSummary, job: Job | None, submission: Submission) -> None:
    """Refuse a program's submission that differs from the run's newest, whose job is running.

    The record is compared, because Batch describes a job without the command that overrides its
    definition's.
    """
    program, request = submission.order.program, submission.request
    assert program is not None
    if (word := program.from_snapshot) is not None:
        why = f"--from-snapshot {word} says what a job begins with, and this one has begun"
        raise _goes_on(running, request.run, why)
    if job is not None and job.workload not in (None, request.workload):
        raise _goes_on(job, request.run, f"it is {job.workload}, not a program of your own")
    if not program.ran:
        raise _goes_on(
            running,
            request.run,
            f"what it runs is not known: the bucket has no {contract.RUN_PROGRAM} of it",
        )
    if submission.changes:
        why = f"this is another submission ({'; '.join(submission.changes)})"
        if program.ran[-1].code != program.bundle.sha256:
            folder = shlex.quote(str(program.entry.folder))
            why += f"; `python -m jobs code {request.run} --diff {folder}` compares the files"
        raise _goes_on(running, request.run, why)


def _goes_on(job: Job | RunSummary, run: str, why: str) -> Refusal:
    return Refusal(
        "another-job-goes-on",
        f"run {run} is {job.status} already, job {job.job_id}, but {why}; nothing was submitted; "
        f"wait until it ends, end it with `python -m jobs stop {run}`, or give another --name",
    )


def _check_alone(service: JobService, request: JobRequest) -> None:
    """Refuse to prepare what another run is preparing: both would write, and pay for, the same."""
    if request.workload != PREPARE:
        return
    dataset = request.parameters["dataset"]
    for summary in service.runs():
        if summary.ended or summary.hardware is not Hardware.CPU:
            continue
        job = service.describe(summary.job_id, summary.shape)
        if job is None or job.workload != PREPARE or _flags(job.command).get("dataset") != dataset:
            continue
        raise Refusal(
            "prepared-already",
            f"run {summary.run} prepares {dataset} already, it is {summary.status}, job "
            f"{summary.job_id}; nothing was submitted; follow it with `python -m jobs logs "
            f"{summary.run} --follow`, or end it with `python -m jobs stop {summary.run}`",
        )


def _differences(job: Job, request: JobRequest) -> Iterator[str]:
    if job.workload not in (None, request.workload):
        yield f"it is {job.workload}, not {request.workload}"
        return
    if job.num_nodes != request.num_nodes:
        yield f"on {counted(job.num_nodes, 'node')}, not {request.num_nodes}"
    its = _flags(job.command)
    if not its:
        return  # unknown, or none given, as for a resumed run
    defaults = {item.name: item.default for item in find_workload(request.workload).parameters}
    for name, value in request.parameters.items():
        wanted = flag_value(value)
        has = its.get(name)
        if has is None and name in defaults:
            has = flag_value(defaults[name])
        if has is not None and has != wanted:
            yield f"with --{name} {has}, not {wanted}"


def _flags(command: Sequence[str]) -> dict[str, str]:
    """Read the flags of a command built by ``JobRequest.command``."""
    own = itertools.takewhile(lambda word: word != contract.ARGV_MARK, command)
    found = {}
    for word, following in itertools.pairwise((*own, "")):
        name, joined, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            found[name] = value if joined else following
    return found
