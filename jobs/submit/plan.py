"""The plan of a submission: its arithmetic, its price, and the question whether to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from jobs.errors import Refusal
from jobs.job import COMPILE_TIME_LIMIT_HOURS, ESTIMATE_NOTE, JobRequest, compile_run, counted
from jobs.output.console import confirm, is_asked_about, note
from jobs.submit.choose import Submission, SubmissionPlan
from jobs.submit.inputs import Inputs, export_inputs, tokenize_inputs, training_inputs
from jobs.submit.read import SubmitOrder
from trainium_catalogue.contract import ATTEMPTS
from trainium_catalogue.instances import JOB_VCPUS
from trainium_catalogue.parameters.allreduce import check_sweep
from trainium_catalogue.parameters.plan import TrainingPlan
from trainium_catalogue.parameters.training import GRAPH_PARAMETERS
from trainium_catalogue.parameters.verify import check_verify
from trainium_catalogue.releases import DEFAULT_RELEASE
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, Hardware, Value


def check_program(order: SubmitOrder) -> None:
    """Check what a program needs no deployment for, in the grammar of the newest release."""
    if order.program is not None:
        from jobs.submit.program_plan import check_syntax, remarks

        program, given = order.program, order.values.given
        check_syntax(program, DEFAULT_RELEASE)
        for remark in remarks(program, program.argv(given), program.job_parameters(given)):
            note(remark)


def planned(submission: Submission) -> Submission:
    """Read the bucket and do the arithmetic; refuse what would fail on the nodes."""
    order, bucket, run = submission.order, submission.bucket, submission.request.run
    if order.program is not None:
        from jobs.submit.program_plan import program_plan

        return replace(submission, plan=program_plan(submission))
    if order.workload.trains:
        inputs = training_inputs(bucket, run, order.values)
        if order.workload.preset is not None:
            return replace(submission, plan=_training_plan(submission, inputs))
        return submission
    values = order.values.own
    remarks: tuple[str, ...] = ()
    match order.workload.name:
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
    """Print what will run, what follows from its parameters and what it may cost."""
    request, target, plan = submission.request, submission.target, submission.plan
    first = plan.compile_request
    lines = [_job_line(submission), *plan.lines]
    if submission.processes_per_node is not None and plan.document is not None:
        lines.append(
            f"processes per node: {submission.processes_per_node}, from TRAINIUM_PROCESSES_PER_NODE"
        )
    if first is not None:
        lines.append(
            f"first, as run {first.run}: compile its graphs on as many nodes, at most "
            f"{first.time_limit_hours:g} h; training starts when that has succeeded"
        )
    if request.scales and target.eks is not None:
        from jobs.eks.nodes import scale_command

        lines.append(
            f"the cluster gets the nodes that are missing, within {target.max_nodes}, and removes "
            + (
                f"them after {counted(target.eks.idle_minutes, 'idle minute')}"
                if target.eks.idle_minutes
                else f"none of them itself: {scale_command(target, 0)}"
            )
        )
    if submission.wheels is not None:
        lines.append(submission.wheels.line)
    lines.append(_price_line(request))
    if first is not None:
        lines.append(f"and {_price_line(first)} of compiling")
    note("\n".join(lines))


def check_places(submission: Submission) -> None:
    """Refuse jobs that could not start, or whose nodes could not meet."""
    submission.service.check_place(submission.request, note)
    if (wheels := submission.wheels) is not None and not wheels.are_collected:
        wheels.service.check_place(wheels.request, note)


def ask(submission: Submission) -> None:
    """Ask before jobs that cost money; refuse without an answer, or on a no."""
    if is_asked_about(submission.requests):
        confirm(
            f"a job of {_size(submission)}",
            question="submit it, with what changed?" if submission.changes else "submit it?",
            declined="nothing was submitted",
        )


def _check_values(
    rule: Callable[[Mapping[str, Value], int], object], values: Mapping[str, Value], num_ranks: int
) -> None:
    """Refuse parameters that contradict each other, or a degree that does not fit the ranks."""
    try:
        rule(values, num_ranks)
    except ValueError as error:
        raise Refusal("plan", f"--{error}") from None


def _training_plan(submission: Submission, inputs: Inputs) -> SubmissionPlan:
    """Derive every number from model, batch and ranks; refuse what leaves a remainder."""
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
        adapters = f", beside them {plan.num_trained_parameters:,} of adapters are trained"
    lines = (
        f"model: {model}{plan.shape.num_parameters:,} parameters{adapters}; a checkpoint takes "
        f"{plan.checkpoint_bytes / 1e9:.3g} GB",
        f"ranks: {num_ranks} = tensor parallel {plan.tensor_parallel} x data parallel "
        f"{plan.data_parallel}",
        f"batch: {plan.global_batch:,} sequences of {plan.seq_len:,} = {plan.data_parallel} ranks "
        f"x {plan.micro_batch} x {plan.accumulation_steps} accumulation steps; "
        f"{plan.tokens_per_step:,} tokens a step",
        f"data: {values['dataset']}, {tokens:,} tokens; {max_steps:,} steps read "
        f"{total:,} tokens, {total / tokens:.3g} times the dataset",
        *_switched_on(values),
        f"run {run}: {_standing(inputs, max_steps)}",
    )
    first = _compile_request(submission, inputs) if submission.order.options.compiles else None
    return SubmissionPlan(lines=lines, document=document, compile_request=first)


def _switched_on(values: Mapping[str, Value]) -> Iterator[str]:
    """Name what a run does besides training on whole sequences."""
    if values.get("document-masks"):
        yield "document masks: a token attends to its own document only"
    if every := values.get("eval-every"):
        sequences = f"{values['eval-sequences']} sequences" if "eval-sequences" in values else "it"
        yield f"evaluation: every {every} steps, on {sequences} of the validation split"


def _standing(inputs: Inputs, max_steps: int) -> str:
    checkpoints = inputs.checkpoints
    if checkpoints is None:
        return "new"
    if not checkpoints.are_seen:
        return f"continues from the newest checkpoint in {checkpoints.uri}"
    step = checkpoints.newest
    if step is None:
        return "no complete checkpoint yet, begins at step 0"
    if step >= max_steps:
        return (
            f"has made {counted(step, 'step')} already: the job would take its nodes and train "
            f"nothing; it has all its {max_steps:,} steps; give a larger --max-steps to train on"
        )
    return f"continues from step {step:,} of {max_steps:,}"


def _compile_request(submission: Submission, inputs: Inputs) -> JobRequest:
    request = submission.request
    run = compile_run(request.run)
    launch = {item.name for item in LAUNCH_PARAMETERS}
    parameters: dict[str, Value] = {
        # Pass all of them: values stored by an earlier compile job of this name must not matter.
        **{
            name: inputs.values[name]
            for name in ("dataset", *GRAPH_PARAMETERS, *_beside_adapters(inputs.values))
            if name in inputs.values
        },
        **{name: value for name, value in request.parameters.items() if name in launch},
        "compile-only": True,
    }
    values = replace(submission.order.values, given=parameters)
    training_inputs(submission.bucket, run, values)
    return replace(
        request,
        run=run,
        parameters=parameters,
        time_limit_hours=min(request.time_limit_hours, COMPILE_TIME_LIMIT_HOURS),
    )


def _beside_adapters(values: Mapping[str, Value]) -> tuple[str, ...]:
    """Name the weights to begin with for a run of adapters alone, which is refused without."""
    return ("init-from",) if values.get("lora-rank") else ()


def _job_line(submission: Submission) -> str:
    request = submission.request
    return (
        f"{request.workload} as run {request.run}: {_size(submission)}, at most "
        f"{request.time_limit_hours:g} h an attempt, at most {ATTEMPTS} attempts"
    )


def _size(submission: Submission) -> str:
    request = submission.request
    if request.hardware is not Hardware.CPU:
        return f"{request.num_nodes} x {submission.target.instance_type.name}"
    what = "one container" if request.num_nodes == 1 else f"an array of {request.num_nodes}"
    return f"{what} on ordinary CPU instances, {JOB_VCPUS} vCPUs each"


def _price_line(request: JobRequest) -> str:
    each = f"${request.usd_per_node_hour:,.2f} a node and hour; {ESTIMATE_NOTE}"
    if request.hardware is Hardware.CPU:
        each = f"CPU instances, ${request.usd_per_node_hour:,.2f} an hour each, Spot less; "
        each += ESTIMATE_NOTE
    return f"about ${request.usd_at_time_limit:,.2f} for {request.time_limit_hours:g} h ({each})"
