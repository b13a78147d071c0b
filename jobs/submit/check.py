"""Checks against the deployment before anything is spent."""

from __future__ import annotations

import itertools
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.job import Job, JobRequest, RunSummary, compile_run
from jobs.orchestrators import JobService
from jobs.output.console import note
from jobs.submit.choose import Submission
from jobs.submit.read import SubmitOptions
from trainium_catalogue import contract, torus
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.parameters import layout
from trainium_catalogue.parameters.parameter import flag_value
from trainium_catalogue.parameters.plan import refuse_shared_heads
from trainium_catalogue.parameters.program import PROCESSES, check_processes
from trainium_catalogue.parameters.training import TENSOR_PARALLEL
from trainium_catalogue.releases import NEURON_RELEASES, TorchBackend
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import Hardware, Value, Workload, find_workload

MIN_TIME_LIMIT_HOURS = 60 / 3600
"""Batch's minimum ``attemptDurationSeconds`` is 60 (API reference, JobTimeout)."""
PREPARE = "prepare"
"""Workload whose runs usually have generated names, so two runs could prepare one dataset."""


def check(submission: Submission) -> Submission:
    """Refuse a job that cannot run, or that differs from a running one; find earlier jobs."""
    spec, target, request = submission.spec, submission.target, submission.request
    options = spec.options
    _check_options(options, request, target.neuron_release)
    check_request(target, spec.workload, request)
    if submission.wheels is not None:
        from jobs.program.image_packages import check_image_packages

        check_image_packages(submission.wheels.requirements, target, note)
    submission.service.check(request)
    if options.compiles:
        submission.service.check(replace(request, run=compile_run(request.run)))
    if options.dry_run:
        return submission  # nothing is submitted, so earlier jobs do not matter
    if options.name is not None:  # a generated name is new
        listed_at = time.time()
        earlier = tuple(summary for _, summary in submission.services.runs(request.run))
        submission = replace(submission, earlier=earlier, listed_at=listed_at)
    running = submission.running
    if running is None:
        _check_prepare(submission.service, request)
        return submission
    job = submission.services.of(running.orchestrator).describe(running.job_id)
    if spec.program is not None:
        _check_same_program(running, job, submission)
    elif job is not None:
        _check_same(job, request)
    return submission


def _check_options(options: SubmitOptions, request: JobRequest, neuron_release: str) -> None:
    """Refuse options that would have no effect."""
    release = NEURON_RELEASES.get(neuron_release)
    on_batch = request.orchestrator is Orchestrator.BATCH
    if options.compiles and release and release.backend is TorchBackend.TORCH_NEURON:
        raise Refusal(
            "nothing-to-compile",
            f"--compile: Neuron {neuron_release} (TorchNeuron) compiles during training, and its "
            "nodes share the graphs through the bucket; omit --compile",
        )
    if options.releases and on_batch:
        raise Refusal(
            "nothing-to-release",
            "--release: Batch terminates idle instances automatically; omit --release",
        )
    if options.releases and not options.follows:
        raise Refusal(
            "release-needs-follow",
            "--release: this command removes the nodes after the job ends, so it must keep "
            "running; add --follow",
        )
    if options.scales and on_batch:
        raise Refusal(
            "nothing-to-scale",
            "--scale: Batch launches a job's instances automatically; omit --scale",
        )


def check_request(deployment: Deployment, workload: Workload, request: JobRequest) -> None:
    """Refuse nodes, hours or processes per node that the deployment does not allow."""
    if workload.hardware is not Hardware.CPU:
        _check_nodes(deployment, request.num_nodes)
    _check_hours(deployment, workload, request)
    _check_processes(deployment, request)


def check_backend(deployment: Deployment, values: Mapping[str, Value]) -> None:
    """Refuse parameters that the backend does not support, or an invalid tensor parallel degree.

    A resumed run keeps its values, unless new ones are given.
    """
    release = NEURON_RELEASES.get(deployment.neuron_release)
    if release is None or release.backend is None:
        return
    try:
        layout.check_backend(values, release.backend)
    except ValueError as error:
        raise Refusal("not-of-this-backend", str(error)) from None
    degree = int(values.get(TENSOR_PARALLEL) or 0)
    if not degree:
        return  # 0 means that verify chooses a degree that fits
    on_torch_neuron = release.backend is TorchBackend.TORCH_NEURON
    try:
        if on_torch_neuron:
            torus.check_mesh(deployment.instance_type, degree)
        elif heads := values.get("num-kv-heads"):
            refuse_shared_heads(degree, int(heads))
    except ValueError as error:
        code = "mesh-not-routable" if on_torch_neuron else "shared-heads"
        raise Refusal(code, str(error)) from None


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
            f"--nodes {num_nodes} cannot run on {instance_type.name}, the instance type of "
            f"deployment {deployment.name!r}, which has no EFA; submit with --nodes 1, or deploy a "
            f"type with EFA: {deployment.redeploy(instance_type='trn1.32xlarge')}",
        )
    if num_nodes > deployment.max_nodes:
        raise Refusal(
            "too-many-nodes",
            f"--nodes {num_nodes} is more than the maximum of deployment {deployment.name!r} "
            f"({deployment.max_nodes}); submit with --nodes {deployment.max_nodes} or fewer, or "
            f"deploy again with {deployment.redeploy(max_nodes=num_nodes)}",
        )


def _check_hours(deployment: Deployment, workload: Workload, request: JobRequest) -> None:
    hours, cap = request.time_limit_hours, deployment.cap_hours(request.orchestrator)
    if not math.isfinite(hours) or hours < MIN_TIME_LIMIT_HOURS:
        raise Refusal(
            "time-limit-too-short",
            f"--time-limit {hours:g} is too short; use at least {MIN_TIME_LIMIT_HOURS:.4f} hours "
            "(60 seconds), or omit it to use the workload's default of "
            f"{workload.time_limit_hours:g}",
        )
    if hours > cap:
        raise Refusal(
            "time-limit-over-cap",
            f"--time-limit {hours:g} hours is over the cap of deployment {deployment.name!r} "
            f"({cap:g}); submit with --time-limit {cap:g} or less, or deploy again with "
            f"{deployment.redeploy(job_time_limit_hours=f'{hours:g}')}",
        )


def _check_same(job: Job, request: JobRequest) -> None:
    """Refuse a submission that differs from the running job.

    Omitted parameters keep the job's values.
    """
    differences = list(_differences(job, request))
    if differences:
        raise _already_running(job, request.run, " and ".join(differences))


def _check_same_program(running: RunSummary, job: Job | None, submission: Submission) -> None:
    """Refuse a program's submission that differs from the newest one, whose job is running.

    The records are compared, because DescribeJobs is not documented to return the command that a
    submission overrides in a multi-node job.
    """
    program, request = submission.spec.program, submission.request
    assert program is not None
    if (word := program.from_snapshot) is not None:
        why = f"--from-snapshot {word} selects where a job starts, and this one has started"
        raise _already_running(running, request.run, why)
    if job is not None and job.workload not in (None, request.workload):
        why = f"it runs {job.workload}, not a program of your own"
        raise _already_running(job, request.run, why)
    if not program.earlier:
        raise _already_running(
            running,
            request.run,
            f"its program is unknown: the bucket has no {contract.RUN_PROGRAM} for it",
        )
    if submission.changes:
        why = f"this submission differs ({'; '.join(submission.changes)})"
        if program.earlier[-1].code != program.bundle.sha256:
            folder = shlex.quote(str(program.entry.folder))
            why += f"; `python -m jobs code {request.run} --diff {folder}` compares the files"
        raise _already_running(running, request.run, why)


def _already_running(job: Job | RunSummary, run: str, why: str) -> Refusal:
    return Refusal(
        "another-job-is-active",
        f"run {run} is already {job.status}, job {job.job_id}, but {why}; nothing was submitted; "
        f"wait until it ends, stop it with `python -m jobs stop {run}`, or use another --name",
    )


def _check_prepare(service: JobService, request: JobRequest) -> None:
    """Refuse to prepare a dataset that another run is preparing, at double the cost."""
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
            f"run {summary.run} is already preparing {dataset}: it is {summary.status}, job "
            f"{summary.job_id}; nothing was submitted; follow it with `python -m jobs logs "
            f"{summary.run} --follow`, or stop it with `python -m jobs stop {summary.run}`",
        )


def _differences(job: Job, request: JobRequest) -> Iterator[str]:
    if job.workload not in (None, request.workload):
        yield f"it runs {job.workload}, not {request.workload}"
        return
    if job.num_nodes != request.num_nodes:
        yield f"on {counted(job.num_nodes, 'node')}, not {request.num_nodes}"
    flags = _flags(job.command)
    if not flags:
        return  # unknown, or none given, as for a resumed run
    defaults = {item.name: item.default for item in find_workload(request.workload).parameters}
    for name, value in request.parameters.items():
        requested = flag_value(value)
        current = flags.get(name)
        if current is None and name in defaults:
            current = flag_value(defaults[name])
        if current is not None and current != requested:
            yield f"with --{name} {current}, not {requested}"


def _flags(command: Sequence[str]) -> dict[str, str]:
    """Read the flags of a command built by ``JobRequest.command``."""
    own = itertools.takewhile(lambda word: word != contract.ARGV_MARK, command)
    flags = {}
    for word, following in itertools.pairwise((*own, "")):
        name, joined, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            flags[name] = value if joined else following
    return flags
