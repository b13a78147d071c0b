"""Whether a job that goes on is the one that is asked for again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from jobs.errors import Refusal
from jobs.job import Job, JobRequest, flag_value
from jobs.orchestrators import JobService
from trainium_catalogue.workloads import Hardware, find_workload

PREPARE = "prepare"
"""Workload whose jobs have no name of the user's, as a rule, but of what they make."""


def check_same(job: Job, request: JobRequest) -> None:
    """Refuse a submission that would not get what it asks for.

    Parameters that were not given now are those of the job.
    """
    found = list(_differences(job, request))
    if found:
        raise Refusal(
            "another-job-goes-on",
            f"run {request.run} is {job.status} already, job {job.job_id}, but "
            f"{' and '.join(found)}; nothing was submitted; wait until it ends, end it with "
            f"`python -m jobs stop {request.run}`, or give another --name",
        )


def check_alone(service: JobService, request: JobRequest) -> None:
    """Refuse to prepare what another run prepares: both would write, and pay for, the same."""
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
        yield f"on {job.num_nodes} nodes, not {request.num_nodes}"
    its = _flags(job.command)
    if not its:
        return  # not known, or none was given: that of a resumed run says nothing
    defaults = {item.name: item.default for item in find_workload(request.workload).parameters}
    for name, value in request.parameters.items():
        wanted = flag_value(value)
        has = its.get(name)
        if has is None and name in defaults:
            has = flag_value(defaults[name])
        if has is not None and has != wanted:
            yield f"with --{name} {has}, not {wanted}"


def _flags(command: Sequence[str]) -> dict[str, str]:
    """Of a command as ``JobRequest.command`` makes it."""
    return {
        word.removeprefix("--"): value
        for word, value in itertools.pairwise(command)
        if word.startswith("--")
    }
