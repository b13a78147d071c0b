"""A submission, checked against the deployment and its bucket: one job, or a compile job first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.job import COMPILE_TIME_LIMIT_HOURS, JobRequest
from jobs.submit.checks import valid_run_name
from jobs.submit.inputs import Inputs, export_inputs, tokenize_inputs, training_inputs
from jobs.submit.parameters import with_defaults
from jobs.submit.plan import Plan, check_sweep_values, check_verify_values, training_plan
from trainium_catalogue.parameters.training import GRAPH_PARAMETERS
from trainium_catalogue.releases import NEURON_RELEASES, TorchBackend
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, Value, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is going to be submitted, and what to say about it."""

    request: JobRequest
    plan: Plan = field(default_factory=Plan)
    compile_request: JobRequest | None = None
    """Submitted first; the other one depends on it."""


def compile_run(run: str) -> str:
    """Name of the run that compiles for ``run``; refuses a name that would become too long."""
    return valid_run_name(f"{run}-compile")


def check_compile(workload: Workload, parameters: Mapping[str, Value], run: str) -> None:
    """Refuse ``--compile`` where there is nothing to compile, or nothing to compile for."""
    if workload.preset is None:
        raise Refusal(
            "nothing-to-compile",
            f"--compile: {workload.name} has no graphs to compile beforehand; leave --compile out",
        )
    if parameters.get("compile-only"):
        raise Refusal(
            "nothing-to-compile",
            "--compile and --compile-only exclude each other: the one compiles before training, "
            "the other instead; keep one of them",
        )
    compile_run(run)


def check_cache(neuron_release: str) -> None:
    """Refuse ``--compile`` where what is compiled stays on a node that is gone afterwards."""
    release = NEURON_RELEASES.get(neuron_release)
    if release is not None and release.backend is TorchBackend.TORCH_NEURON:
        raise Refusal(
            "nothing-to-compile",
            f"--compile: Neuron {neuron_release} (TorchNeuron) keeps its compiled graphs on the "
            "node's own disk, so training would find none of them; leave --compile out",
        )


def prepared(
    request: JobRequest,
    workload: Workload,
    *,
    bucket: Bucket,
    num_ranks: int,
    compiles: bool,
) -> Prepared:
    """Look at the bucket and do the arithmetic; refuses what would fail on the nodes."""
    given = request.parameters
    values = with_defaults(workload, given)
    if workload.preset is not None:
        inputs = training_inputs(bucket, workload, request.run, given)
        plan = training_plan(workload, inputs, run=request.run, num_ranks=num_ranks)
        first = _compile_request(request, workload, inputs, bucket) if compiles else None
        return Prepared(request=request, plan=plan, compile_request=first)
    if workload.trains:
        inputs = training_inputs(bucket, workload, request.run, given)
    elif workload.name == "all-reduce":
        check_sweep_values(values, num_ranks=num_ranks)
        inputs = Inputs(values=values)
    elif workload.name == "verify":
        check_verify_values(values, num_ranks=num_ranks)
        inputs = Inputs(values=values)
    elif workload.name == "tokenize":
        inputs = tokenize_inputs(bucket, values)
    elif workload.name == "export":
        inputs = export_inputs(bucket, values)
    else:
        inputs = Inputs(values=values)
    return Prepared(request=request, plan=Plan(lines=inputs.remarks))


def num_ranks_of(deployment: Deployment, num_nodes: int, processes_per_node: int | None) -> int:
    """Ranks of a job; a rehearsal has other processes on a node than the instance type."""
    return num_nodes * (processes_per_node or deployment.instance_type.processes_per_node)


def _compile_request(
    request: JobRequest, workload: Workload, inputs: Inputs, bucket: Bucket
) -> JobRequest:
    run = compile_run(request.run)
    launch = {item.name for item in LAUNCH_PARAMETERS}
    parameters: dict[str, Value] = {
        # All of them, for what an earlier compile job of this name remembers is not to matter.
        **{
            name: inputs.values[name]
            for name in ("dataset", *GRAPH_PARAMETERS)
            if name in inputs.values
        },
        **{name: value for name, value in request.parameters.items() if name in launch},
        "compile-only": True,
    }
    training_inputs(bucket, workload, run, parameters)
    return replace(
        request,
        run=run,
        parameters=parameters,
        time_limit_hours=min(request.time_limit_hours, COMPILE_TIME_LIMIT_HOURS),
    )
