"""`jobs status`: the state of one run, node by node, and its training progress."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_status
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    open_deployment,
)
from jobs.deployment import Deployment, cli_command, where
from jobs.diagnosis.cause import Rank
from jobs.diagnosis.ranking import first_cause
from jobs.errors import EXIT_JOB_FAILED, EXIT_OK, Refusal
from jobs.job import Job, JobKind
from jobs.orchestrators import JobService, Services, find_job, services_of
from jobs.output import documents
from jobs.output.console import age, age_s, duration, note, print_document
from jobs.output.explain import describe_zone
from jobs.output.program_status import describe_program
from jobs.output.streams import read_verdict
from jobs.program.losses import read_losses, why_no_losses
from trainium_catalogue.contract import PROGRAM, TRAIN_METRICS, Orchestrator, run_key
from trainium_catalogue.typed_json import read_object
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import WORKLOADS

_PLOT_HEIGHT = 16
_MAX_TICKS = 6
_VALIDATION_MARKER = "o"
_OLD_S = 60.0
"""Age at which a status is marked as old: training updates it every few seconds."""


@command
def status(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Run name.", show_default="the newest run")
    ] = None,
    plot: Annotated[
        bool,
        typer.Option(
            "--plot",
            help="Draw the loss curve of a training run; for a program, from the lines it prints.",
        ),
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if the job failed.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show nodes, attempts and exit reasons of a run; for training also step, loss, speed and ETA.

    For your own program: the last line of output, the step rate if it prints one, and snapshots.

    Exit codes: 0 in any state (--json shows it), 1 the job failed (with --exit-code), 2 refused.

    \b
    Examples:
      python -m jobs status
      python -m jobs status my-run --plot
      python -m jobs status nightly --json
    """
    aws, target = open_deployment(context, deployment, region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    service, job, training = _find(services_of(aws, target, note), target, bucket, run)
    failed = job is not None and job.ended and not job.succeeded
    code = EXIT_JOB_FAILED if exit_code and failed else EXIT_OK
    if as_json:
        document = (
            documents.status_document(
                target, job, training, cause=first_cause(job).line, zone=service.zone(job)
            )
            if job is not None and service is not None
            else documents.ForgottenDocument(
                **where(target, str(run)),
                workload=(training or {}).get("workload"),
                training=training or {},
            )
        )
        print_document(document)
        return code
    from jobs.output.terminal import Terminal

    console = Terminal()
    if job is not None and service is not None:
        _show_job(console, service, target, job)
    else:
        note(f"run {run} no longer has a job; its status in the bucket:")
    if training is not None:
        now = datetime.now(UTC)
        console.print(_describe(training, job, now), soft_wrap=True)
    shown = job.run if job else str(run)
    if plot:
        kinds = ((training or {}).get("kind"), job.workload if job else None)
        _plot(console, bucket, shown, of_program=PROGRAM in kinds)
    return code


def _find(
    services: Services, target: Deployment, bucket: Bucket, run: str | None
) -> tuple[JobService | None, Job | None, dict[str, Any] | None]:
    """Find the newest job of the run, and its training progress."""
    try:
        service, job = find_job(services, target, run)
    except Refusal as refusal:
        # Jobs are kept for 7 days, and the run in the bucket outlives even the cluster.
        unknown = refusal.code == "unknown-run" or services.silent
        training = read_status(bucket, run) if run and unknown else None
        if training is None:
            raise
        return None, None, training
    workload = WORKLOADS.get(job.workload or "")
    is_training = workload is not None and (workload.trains or workload.runs_program)
    return service, job, read_status(bucket, job.run) if is_training else None


def _show_job(console: Any, service: JobService, target: Deployment, job: Job) -> None:
    from jobs.output.screen import describe_status, verdict
    from jobs.output.tables import node_table

    explanation = None
    if job.status == "PENDING" and job.depends_on:
        explanation = service.waits_for(job)
    elif job.waits_unexplained:
        explanation = service.why_waiting(job)
    console.print(describe_status(job, explanation), soft_wrap=True)
    if (zone_position := service.zone(job)) is not None:
        console.print(describe_zone(zone_position), soft_wrap=True)
    if job.nodes:
        console.print(node_table(job))
    if service.orchestrator is Orchestrator.EKS:
        _show_idle(console, service)
    if job.ended:
        text = verdict(job, bucket=target.bucket, cause=_cause(service, job))
        console.print(text, soft_wrap=True)
    likely = first_cause(job)
    if likely.rank is not Rank.NORMAL:
        more = f"{cli_command(target)} explain {job.run}"
        console.print(f"cause: {likely.line} (evidence: {more})", soft_wrap=True)


def _cause(service: JobService, job: Job) -> str | None:
    """Read the failure reason from the main node's log on Batch; on EKS the pod reports it."""
    ending = job.ending
    if job.succeeded or job.shape.kind is JobKind.ARRAY or ending is None or not ending.log_stream:
        return None
    if service.orchestrator is Orchestrator.EKS:
        return None
    return read_verdict(service.logs(), service.log_group, ending.log_stream)


def _show_idle(console: Any, service: JobService) -> None:
    """Print when idle nodes of the cluster will be removed."""
    from jobs.eks.node_users import try_idle_remark
    from jobs.eks.service import EksService

    assert isinstance(service, EksService)
    remark = try_idle_remark(service.cluster(), service.target)
    if remark is not None:
        console.print(remark, soft_wrap=True)


def _plot(console: Any, bucket: Bucket, run: str, *, of_program: bool) -> None:
    validation: Mapping[int, float] = {}
    if of_program:
        losses = read_losses(bucket, run)
    else:
        metrics = bucket.read(run_key(run, TRAIN_METRICS)) or b""
        losses = losses_of(metrics)
        validation = losses_of(metrics, event="evaluation", field="val_loss")
    picture = loss_plot(losses, validation, width=min(console.width, 100))
    if picture is not None:
        console.print(picture, soft_wrap=True)
    elif of_program:
        note(why_no_losses(bucket, run))
    else:
        note(f"run {run} has logged fewer than two steps, so there is no curve to draw")


def _describe(status: Mapping[str, Any], job: Job | None, now: datetime) -> str:
    if status.get("kind") == PROGRAM:
        at = job.created_at_ms if job else None
        return describe_program(status, submitted_at_ms=at, now=now)
    return describe_training(status, job_id=job.job_id if job else None, now=now)


def describe_training(status: Mapping[str, Any], *, job_id: str | None, now: datetime) -> str:
    """Describe step, loss, speed, ETA and last checkpoint."""
    step, max_steps = int(status.get("step") or 0), int(status.get("max_steps") or 0)
    part = f" ({step / max_steps:.1%})" if max_steps else ""
    first = [f"{status.get('state')}: step {step:,} of {max_steps:,}{part}"]
    first += _format_known(
        status,
        ("loss", lambda v: f"loss {v:.4f}"),
        ("lr", lambda v: f"lr {v:.3g}"),
        ("grad_norm", lambda v: f"gradient norm {v:.3g}"),
        ("val_loss", lambda v: f"validation loss {v:.4f} after step {status.get('val_step')}"),
    )
    speed = _format_known(
        status,
        ("tokens_per_second", lambda v: f"{v:,.0f} tokens/s"),
        ("mfu", lambda v: f"MFU {v:.1%}"),
        ("step_seconds", lambda v: f"{v:.3g} s per step"),
        ("eta_seconds", lambda v: f"ETA {duration(v)}"),
    )
    lines = [", ".join(first)]
    if speed:
        lines.append(", ".join(speed))
    lines.append(_checkpoint(status, now))
    if status.get("error"):
        lines.append(f"error: {status['error']}")
    lines.append(_origin(status, job_id=job_id, now=now))
    return "\n".join(lines)


def loss_plot(
    losses: Mapping[int, float], validation: Mapping[int, float], *, width: int
) -> str | None:
    """Plot losses by step as text, ``width`` characters wide; None for fewer than two."""
    if len(losses) < 2:
        return None
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, _PLOT_HEIGHT)
    figure.draw(figure.signal(list(losses), list(losses.values())))
    figure.ruler("x").ticks(_step_ticks(list(losses)))
    title = "loss"
    if validation:
        steps, values = list(validation), list(validation.values())
        figure.draw(figure.signal(steps, values, marker=_VALIDATION_MARKER))
        title = f"loss, and validation loss ({_VALIDATION_MARKER})"
    figure.title(title)
    figure.label("step")
    return str(plotext.uncolorize(str(figure.build())))


def _step_ticks(steps: Sequence[int]) -> list[int]:
    """Choose evenly spaced integer steps for the axis."""
    first, last = steps[0], steps[-1]
    spacing = max(1, -(-(last - first) // _MAX_TICKS))
    return list(range(first, last + 1, spacing))


def losses_of(metrics: bytes, *, event: str = "step", field: str = "loss") -> dict[int, float]:
    """Read the loss by step; later attempts replace earlier values."""
    losses: dict[int, float] = {}
    for line in metrics.decode(errors="replace").splitlines():
        try:
            document = read_object(line)
            if document["event"] == event:
                losses[int(document["step"])] = float(document[field])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue  # a partial line, or a loss that is not finite
    return dict(sorted(losses.items()))


def _format_known(status: Mapping[str, Any], *shown: tuple[str, Any]) -> list[str]:
    return [show(status[name]) for name, show in shown if status.get(name) is not None]


def _checkpoint(status: Mapping[str, Any], now: datetime) -> str:
    step = status.get("last_checkpoint_step")
    text = "no checkpoint yet"
    if step is not None:
        since = age(status.get("last_checkpoint_time"), now)
        when = "by an earlier attempt" if since is None else f"{since} ago"
        text = f"last checkpoint: step {step:,}, {when}"
    failed = int(status.get("failed_saves") or 0)
    return text + (f"; {counted(failed, 'save')} failed, see the log" if failed else "")


def _origin(status: Mapping[str, Any], *, job_id: str | None, now: datetime) -> str:
    seconds = age_s(status.get("time"), now)
    nodes = counted(int(status.get("num_nodes") or 0), "node")
    text = f"attempt {status.get('attempt')} on {nodes}"
    if seconds is not None and seconds > _OLD_S:
        text += f", as of {duration(seconds)} ago"
    if job_id is not None and status.get("job_id") not in (None, job_id):
        text += ", from an earlier job of the run"
    return text
