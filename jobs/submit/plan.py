"""The plan of a submission: its arithmetic, its cost, and the confirmation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from jobs.capacity import window_line
from jobs.cost import (
    BilledHours,
    cap_of,
    endless_wait,
    hours_of,
    not_included,
    settings_for,
    unknown_facts,
    why_over,
    why_unbounded,
)
from jobs.errors import Refusal
from jobs.job import COMPILE_TIME_LIMIT_HOURS, ESTIMATE_NOTE, JobRequest, compile_run
from jobs.output.console import confirm, needs_confirmation, note
from jobs.submit.check import check_backend
from jobs.submit.choose import Submission, SubmissionPlan
from jobs.submit.inputs import Inputs, export_inputs, tokenize_inputs, training_inputs
from jobs.submit.read import SubmitSpec
from trainium_catalogue.contract import ATTEMPTS, Orchestrator
from trainium_catalogue.instances import JOB_VCPUS
from trainium_catalogue.parameters.allreduce import check_sweep
from trainium_catalogue.parameters.plan import TrainingPlan
from trainium_catalogue.parameters.training import GRAPH_PARAMETERS
from trainium_catalogue.parameters.verify import SHAPE, check_verify
from trainium_catalogue.releases import DEFAULT_RELEASE
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, Hardware, Value


def check_program(spec: SubmitSpec) -> None:
    """Check a program without a deployment, for the Python version of the default release."""
    if spec.program is not None:
        from jobs.submit.program_plan import check_syntax, remarks

        program, given = spec.program, spec.values.given
        check_syntax(program, DEFAULT_RELEASE)
        for remark in remarks(program, program.argv(given), program.job_parameters(given)):
            note(remark)


def planned(submission: Submission) -> Submission:
    """Add the plan to a submission; refuse one that would fail on the nodes."""
    spec, bucket, run = submission.spec, submission.bucket, submission.request.run
    if spec.program is not None:
        from jobs.submit.program_plan import program_plan

        return replace(submission, plan=program_plan(submission))
    if spec.workload.trains:
        inputs = training_inputs(bucket, run, spec.values)
        check_backend(submission.target, inputs.values)
        if spec.workload.preset is not None:
            return replace(submission, plan=_training_plan(submission, inputs))
        return submission
    values = spec.values.own
    # The shape of verify's model is not a parameter.
    check_backend(submission.target, {**SHAPE, **values})
    remarks: tuple[str, ...] = ()
    match spec.workload.name:
        case "all-reduce":
            _check_values(check_sweep, values, submission.num_ranks)
        case "verify":
            _check_values(check_verify, values, submission.num_ranks)
        case "tokenize":
            remarks = tokenize_inputs(bucket, values)
        case "export":
            remarks = export_inputs(bucket, values)
    return replace(submission, plan=SubmissionPlan(lines=remarks))


def show_plan(submission: Submission) -> None:
    """Print the job, the consequences of its parameters, and its cost."""
    request, target, plan = submission.request, submission.target, submission.plan
    first = plan.compile_request
    lines = [_job_line(submission), *plan.lines]
    if submission.processes_per_node is not None and plan.document is not None:
        lines.append(
            f"processes per node: {submission.processes_per_node}, from TRAINIUM_PROCESSES_PER_NODE"
        )
    if first is not None:
        lines.append(
            f"first, as run {first.run}: compile its graphs on the same number of nodes, for at "
            f"most {first.time_limit_hours:g} h; training starts after that"
        )
    if request.scales and target.eks is not None:
        from jobs.eks.nodes import scale_command

        lines.append(
            f"the cluster adds the missing nodes, up to {target.max_nodes}, and removes "
            + (
                f"them after {counted(target.eks.idle_minutes, 'minute')} without a job"
                if target.eks.idle_minutes
                else f"none of them automatically; remove them with: {scale_command(target, 0)}"
            )
        )
    if request.window is not None:
        lines.append(window_line(request.window, datetime.now(UTC)))
    if submission.wheels is not None:
        lines.append(submission.wheels.line)
    lines.append(_price_line(request))
    if first is not None:
        lines.append(f"and {_price_line(first)} for compiling")
    lines.append(_bound_line(submission))
    note("\n".join(lines))


def usd_at_most(
    submission: Submission, *, num_nodes: int | None = None, hours: float | None = None
) -> float:
    """Return the upper bound of all jobs' instance cost, by default with the requested size."""
    wheels, total = submission.wheels, 0.0
    for request in submission.requests:
        smaller = request
        if wheels is None or request is not wheels.request:
            smaller = replace(
                request,
                num_nodes=num_nodes or request.num_nodes,
                time_limit_hours=min(hours or request.time_limit_hours, request.time_limit_hours),
            )
        total += smaller.num_nodes * smaller.usd_per_node_hour * _hours(submission, smaller).total
    return total


def _hours(submission: Submission, request: JobRequest) -> BilledHours:
    """Bound the billed hours of a job, which on EKS may wait on its nodes for a compile job."""
    waits = (
        submission.plan.compile_request is not None
        and request.orchestrator is Orchestrator.EKS
        and request.run == submission.request.run
    )
    return hours_of(request, submission.target, waits=waits)


def caveat_of(submission: Submission) -> str | None:
    """Explain why the bound is uncertain; None if it is certain."""
    return _unknown_of(submission) or _endless_wait_of(submission)


def _unknown_of(submission: Submission) -> str | None:
    reasons = (unknown_facts(request, submission.target) for request in submission.requests)
    return next((unknown for unknown in reasons if unknown is not None), None)


def _endless_wait_of(submission: Submission) -> str | None:
    return endless_wait(submission.request.orchestrator, _gang_size(submission.request))


def _gang_size(request: JobRequest) -> int:
    """Return the number of hosts that wait for each other."""
    return 1 if request.hardware is Hardware.CPU else request.num_nodes


def check_cap(submission: Submission) -> None:
    """Refuse a submission that can cost more than its cap, or an unknown amount.

    An indefinite wait is not refused, since every multi-node job on Batch can have one; it is
    printed with the cap instead.
    """
    request, options = submission.request, submission.spec.options
    cap = cap_of(submission.target, options.max_usd)
    if cap is None:
        return
    if (unknown := _unknown_of(submission)) is not None:
        raise Refusal("cost-not-known", why_unbounded(cap, unknown))
    why = why_over(
        cap,
        lambda nodes, hours: usd_at_most(submission, num_nodes=nodes, hours=hours),
        num_nodes=request.num_nodes,
        fewest=max(1, submission.spec.workload.min_nodes),
        time_limit_hours=request.time_limit_hours,
        breakdown=_breakdown(submission),
    )
    if why is not None:
        raise Refusal("over-cap", why)


def check_places(submission: Submission) -> None:
    """Refuse jobs that could not start, or whose nodes could not connect."""
    submission.service.check_place(submission.request, note)
    if (wheels := submission.wheels) is not None and not wheels.are_collected:
        wheels.service.check_place(wheels.request, note)


def ask(submission: Submission) -> None:
    """Ask for confirmation of costly jobs; refuse without it."""
    if needs_confirmation(submission.requests):
        confirm(
            f"a job of {_size(submission)}",
            question="submit it with these changes?" if submission.changes else "submit it?",
            declined="nothing was submitted",
        )


def _check_values(
    rule: Callable[[Mapping[str, Value], int], object], values: Mapping[str, Value], num_ranks: int
) -> None:
    """Refuse contradictory parameters, or ones that do not fit the number of ranks."""
    try:
        rule(values, num_ranks)
    except ValueError as error:
        raise Refusal("plan", f"--{error}") from None


def _training_plan(submission: Submission, inputs: Inputs) -> SubmissionPlan:
    """Derive the plan from model, batch and ranks; refuse values that do not divide evenly."""
    from jobs.output.documents import TrainingSummary

    values, num_ranks, run = inputs.values, submission.num_ranks, submission.request.run
    try:
        plan = TrainingPlan.from_values(values, num_ranks)
    except ValueError as error:
        raise Refusal("plan", f"--{error}") from None
    max_steps = int(values["max-steps"])
    step = inputs.checkpoints.newest if inputs.checkpoints is not None else None
    tokens = int(inputs.dataset["num_tokens"])
    document = TrainingSummary(
        num_parameters=plan.shape.num_parameters,
        num_ranks=num_ranks,
        tensor_parallel=plan.tensor_parallel,
        data_parallel=plan.data_parallel,
        global_batch=plan.global_batch,
        micro_batch=plan.micro_batch,
        accumulation_steps=plan.accumulation_steps,
        seq_len=plan.seq_len,
        tokens_per_step=plan.tokens_per_step,
        max_steps=max_steps,
        checkpoint_bytes=plan.checkpoint_bytes,
        dataset=str(values["dataset"]),
        dataset_tokens=tokens,
        run_exists=inputs.exists,
        continues_from_step=step,
    )
    total = max_steps * plan.tokens_per_step
    model = f"{values['model']}, " if "model" in values else ""
    adapters = ""
    if plan.lora is not None:
        adapters = f", plus {plan.num_trained_parameters:,} trainable parameters of adapters"
    lines = (
        f"model: {model}{plan.shape.num_parameters:,} parameters{adapters}, checkpoints of "
        f"{plan.checkpoint_bytes / 1e9:.3g} GB",
        f"ranks: {num_ranks} = tensor parallel {plan.tensor_parallel} x data parallel "
        f"{plan.data_parallel}",
        f"batch: {counted(plan.global_batch, 'sequence')} of {plan.seq_len:,} = data parallel "
        f"{plan.data_parallel} x micro-batch {plan.micro_batch} x "
        f"{counted(plan.accumulation_steps, 'accumulation step')}; "
        f"{plan.tokens_per_step:,} tokens per step",
        f"data: {values['dataset']}, {tokens:,} tokens; {counted(max_steps, 'step')} "
        f"{'reads' if max_steps == 1 else 'read'} {total:,} tokens, {total / tokens:.3g} times the "
        "dataset",
        *_extras(values),
        f"run {run}: {_resume_text(inputs, max_steps)}",
    )
    first = _compile_request(submission, inputs) if submission.spec.options.compiles else None
    return SubmissionPlan(lines=lines, document=document, compile_request=first)


def _extras(values: Mapping[str, Value]) -> Iterator[str]:
    """Describe optional features of a run that are enabled."""
    if values.get("document-masks"):
        yield "document masks: tokens attend only to their own document"
    if every := values.get("eval-every"):
        sequences = f"{values['eval-sequences']} sequences" if "eval-sequences" in values else "all"
        yield f"evaluation: every {every} steps, on {sequences} of the validation split"


def _resume_text(inputs: Inputs, max_steps: int) -> str:
    """Describe which step the run resumes from, if any."""
    checkpoints = inputs.checkpoints
    if checkpoints is None:
        return "new"
    if not checkpoints.are_seen:
        return f"resumes from the newest checkpoint in {checkpoints.uri}"
    step = checkpoints.newest
    if step is None:
        return "no complete checkpoint yet; starts from step 0"
    if step >= max_steps:
        return (
            f"has completed {counted(step, 'step')} and its --max-steps is {max_steps:,}, so the "
            "job would train no further; pass a larger --max-steps to continue"
        )
    return f"resumes from step {step:,} of {max_steps:,}"


def _compile_request(submission: Submission, inputs: Inputs) -> JobRequest:
    request = submission.request
    run = compile_run(request.run)
    launch = {item.name for item in LAUNCH_PARAMETERS}
    # Training of adapters requires pretrained weights.
    weights = ("init-from",) if inputs.values.get("lora-rank") else ()
    parameters: dict[str, Value] = {
        # Pass all of them to override values stored by an earlier compile job of the same name.
        **{
            name: inputs.values[name]
            for name in ("dataset", *GRAPH_PARAMETERS, *weights)
            if name in inputs.values
        },
        **{name: value for name, value in request.parameters.items() if name in launch},
        "compile-only": True,
    }
    values = replace(submission.spec.values, given=parameters)
    training_inputs(submission.bucket, run, values)  # refuses values that do not fit
    return replace(
        request,
        run=run,
        parameters=parameters,
        time_limit_hours=min(request.time_limit_hours, COMPILE_TIME_LIMIT_HOURS),
    )


def _job_line(submission: Submission) -> str:
    request = submission.request
    return (
        f"{request.workload} as run {request.run}: {_size(submission)}, at most "
        f"{request.time_limit_hours:g} h per attempt, at most {ATTEMPTS} attempts"
    )


def _size(submission: Submission) -> str:
    request = submission.request
    if request.hardware is not Hardware.CPU:
        return f"{request.num_nodes} x {submission.target.instance_type.name}"
    what = "one container" if request.num_nodes == 1 else f"an array of {request.num_nodes}"
    return f"{what} on CPU instances, {JOB_VCPUS} vCPUs each"


def _breakdown(submission: Submission) -> str:
    """Describe the hours in the upper bound of the cost, and the jobs submitted first."""
    earlier = " and ".join(f"run {item.run}" for item in submission.requests[:-1])
    hours = _hours(submission, submission.request).text()
    return f"{hours}; plus {earlier}" if earlier else hours


def _bound_line(submission: Submission) -> str:
    """Describe the upper bound of the cost, and why it is uncertain."""
    cap = cap_of(submission.target, submission.spec.options.max_usd)
    caveat = caveat_of(submission)
    request = submission.request
    excluded = not_included(
        request.orchestrator,
        settings_for(request, submission.target),
        num_nodes=_gang_size(request),
    )
    wait = "" if _endless_wait_of(submission) is None else ", and does not limit that wait"
    return (
        f"at most ${usd_at_most(submission):,.2f}: {_breakdown(submission)}; not included: "
        f"{excluded}"
        + ("" if caveat is None else f"; the actual cost can be higher, because {caveat}")
        + ("" if cap is None else f"; {cap.source} is ${cap.usd:,.2f}{wait}")
        + "; a later submission that resumes the run has its own maximum"
    )


def _price_line(request: JobRequest) -> str:
    each = f"${request.usd_per_node_hour:,.2f} per node-hour; {ESTIMATE_NOTE}"
    if request.hardware is Hardware.CPU:
        each = f"CPU instances, ${request.usd_per_node_hour:,.2f} per hour each, less on Spot; "
        each += ESTIMATE_NOTE
    return f"about ${request.usd_at_time_limit:,.2f} for {request.time_limit_hours:g} h ({each})"
