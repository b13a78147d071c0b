"""From a command line to a submission: parameters, deployment, orchestrator, request."""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_run
from jobs.deployment import Deployment, read_deployment
from jobs.errors import Refusal
from jobs.job import JobRequest, RunSummary, valid_run_name
from jobs.orchestrators import JobService, Services, service_for, services_of
from jobs.output.console import note
from jobs.submit.program import ProgramOrder, node_request, remembered
from jobs.submit.wheels import Wheels, image_of, wheels_run
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Positive, Sha256
from trainium_catalogue.instances import USD_PER_JOB_HOUR_ESTIMATE
from trainium_catalogue.models.presets import MODELS, PRETRAIN
from trainium_catalogue.suggest import did_you_mean, nearest
from trainium_catalogue.workloads import (
    LAUNCH_PARAMETERS,
    WORKLOADS,
    Hardware,
    Parameter,
    Value,
    Workload,
)

OWN_OPTIONS = (
    *("nodes", "name", "follow", "time-limit", "set", "compile", "dry-run", "yes", "json"),
    *("on", "release", "scale", "check-only", "verbose"),
    *("module", "workdir", "include", "exclude", "env", "requirements", "from-snapshot"),
    *("deployment", "region", "help"),
)
"""Options of ``submit`` itself; no workload has a parameter of the same name."""
_WORD = re.compile(r"[a-z0-9-]+")
_NOT_BY_NAME = (contract.PROGRAM, contract.WHEELS)
"""Workloads that other words stand for: the path of a program, and its requirements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """A command line of ``submit``, read against the catalogue."""

    workload: Workload
    parameters: dict[str, Value]
    """Parameters given by the user, without defaults."""
    run: str
    is_named: bool
    """True if the user chose the name, so that such a run may already exist."""
    num_nodes: int
    nodes_are_given: bool
    """False if their number is the workload's; a program's run then keeps the one it had."""
    on: Orchestrator | None
    time_limit_hours: float | None
    compiles: bool
    follows: bool
    folds: bool
    """True if the launchers' first lines are followed as one."""
    releases: bool
    scales: bool
    dry_run: bool
    as_json: bool
    program: ProgramOrder | None = None
    """The user's own program to run, if it is one."""

    @property
    def job_workload(self) -> str:
        """Name of the workload whose job definition and role the job uses."""
        return self.workload.name if self.program is None else contract.PROGRAM


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """What follows from the parameters of a training workload."""

    num_parameters: Positive
    num_ranks: Positive
    tensor_parallel: Positive
    data_parallel: Positive
    global_batch: Positive
    micro_batch: Positive
    accumulation_steps: Positive
    seq_len: Positive
    tokens_per_step: Positive
    max_steps: Positive
    checkpoint_bytes: Positive
    dataset: str
    dataset_tokens: Positive
    run_exists: bool
    continues_from_step: int | None
    """Newest complete checkpoint; null without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSummary:
    """What a program of the user's own consists of."""

    script: str | None
    """File of the bundle that is run."""
    module: str | None
    """Module that is run instead."""
    argv: tuple[str, ...]
    code: Sha256
    """SHA-256 of the bundle."""
    bytes: Positive
    """Size of the bundle."""
    files: Positive
    left_out: tuple[str, ...]
    """Names that are not part of the bundle."""
    run_exists: bool
    changes: tuple[str, ...]
    """Differences from the last submission of the run."""
    continues_from_snapshot: int | None
    """Number of the newest complete snapshot; null without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """What is planned for a program of the user's own."""

    program: ProgramSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionPlan:
    """The plan of a submission, for people and programs."""

    lines: tuple[str, ...] = ()
    document: TrainingSummary | ProgramPlan | None = None
    """``plan`` in the output of ``submit --json``; None if there is nothing to derive."""
    compile_request: JobRequest | None = None
    """Request to submit first; the other one depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Submit options applied to a deployment; each step of `submit` adds what it finds."""

    order: SubmitOptions
    target: Deployment
    service: JobService
    """The service that will run the job."""
    places: Services
    """The services that may already have the run."""
    bucket: Bucket
    request: JobRequest
    processes_per_node: int | None
    """Processes per node of a rehearsal, instead of the instance type's."""
    earlier: tuple[RunSummary, ...] = ()
    """Earlier jobs of the run."""
    plan: SubmissionPlan = field(default_factory=SubmissionPlan)
    wheels: Wheels | None = None
    """Dependencies of a program; None without any."""

    @property
    def num_ranks(self) -> int:
        """Ranks of the job; a rehearsal has another number of processes per node."""
        on_node = self.processes_per_node or self.target.instance_type.processes_per_node
        return self.request.num_nodes * on_node

    @property
    def going_on(self) -> RunSummary | None:
        """The unfinished job of this run."""
        return next((summary for summary in self.earlier if not summary.ended), None)

    @property
    def requests(self) -> tuple[JobRequest, ...]:
        """The requests to send, in their order; the job itself is the last."""
        wheels, compiles = self.wheels, self.plan.compile_request
        first = None if wheels is None or wheels.are_collected else wheels.request
        return tuple(item for item in (first, compiles, self.request) if item is not None)

    def service_of(self, request: JobRequest) -> JobService:
        """Return the service for one of the requests."""
        wheels = self.wheels
        return self.service if wheels is None or request is not wheels.request else wheels.service


def resolve(
    order: SubmitOptions, aws: Aws, deployment: str, *, processes_per_node: int | None
) -> Submission:
    """Find what the options name: the deployment, the service for the job, and the request."""
    target = read_deployment(aws.ssm(), deployment, region=aws.region, workload=order.job_workload)
    orchestrator = chosen_orchestrator(target, order.workload, order.on)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    if order.workload.name == PRETRAIN and order.is_named and "model" not in order.parameters:
        order = _of_recorded_model(order, bucket)
    workload = order.workload
    if order.program is not None and order.is_named:
        program, values = remembered(order.program, order.parameters, bucket, order.run)
        order = replace(order, program=program, parameters=values)
        if not order.nodes_are_given and program.continued is not None:
            order = replace(order, num_nodes=program.continued.num_nodes)
    submission = Submission(
        order=order,
        target=target,
        service=service_for(aws, target, orchestrator, submits=True),
        places=services_of(aws, target, note, needed=orchestrator),
        bucket=bucket,
        request=request_for(
            target,
            workload,
            run=order.run,
            num_nodes=order.num_nodes,
            time_limit_hours=order.time_limit_hours,
            parameters=order.parameters,
            orchestrator=orchestrator,
            scales=order.scales,
        ),
        processes_per_node=processes_per_node,
    )
    if order.program is None:
        return submission
    request = node_request(submission.request, order.program, order.parameters)
    return _with_wheels(replace(submission, request=request), aws)


def _of_recorded_model(order: SubmitOptions, bucket: Bucket) -> SubmitOptions:
    """Take nodes and time limit of the model that a run which continues remembers."""
    stored = read_run(bucket, order.run)
    model = "" if stored is None else str(stored.values.get("model", ""))
    if model not in MODELS:
        return order  # a new run, or another workload's: refused with the rest
    workload = order.workload.of_model({"model": model})
    nodes = order.num_nodes if order.nodes_are_given else workload.default_nodes
    return replace(order, workload=workload, num_nodes=nodes)


def _with_wheels(submission: Submission, aws: Aws) -> Submission:
    """Name the wheels of a program's requirements, and the job that collects them."""
    program, request, deployment = submission.order.program, submission.request, submission.target
    if program is None or program.requirements is None or not program.requirements.text:
        return submission
    workload = WORKLOADS[contract.WHEELS]
    target = read_deployment(aws.ssm(), deployment.name, region=aws.region, workload=workload.name)
    key = program.requirements.key(image_of(aws.batch(), target))
    wheels = Wheels(
        key=key,
        requirements=program.requirements,
        request=request_for(
            target,
            workload,
            run=wheels_run(key),
            num_nodes=1,
            time_limit_hours=None,
            parameters={"for-run": request.run, "key": key},
            orchestrator=Orchestrator.BATCH,
        ),
        service=service_for(aws, target, Orchestrator.BATCH, submits=True),
    )
    request = replace(request, parameters={**request.parameters, "wheels": key})
    return replace(submission, request=request, wheels=wheels)


def request_for(
    deployment: Deployment,
    workload: Workload,
    *,
    run: str,
    num_nodes: int,
    time_limit_hours: float | None,
    parameters: dict[str, Value],
    orchestrator: Orchestrator,
    scales: bool = False,
) -> JobRequest:
    """Build the request with the deployment's queue, price and limit; checks nothing yet."""
    on_cpu = workload.hardware is Hardware.CPU
    queue = deployment.cpu_job_queue if on_cpu else deployment.job_queue
    definition = deployment.job_definition
    if orchestrator is Orchestrator.EKS:
        assert deployment.eks is not None
        queue, definition = deployment.eks.queue, None
    assert queue is not None
    if time_limit_hours is None:
        # A default must not be refused, so the deployment's cap simply shortens it.
        time_limit_hours = min(workload.time_limit_hours, deployment.cap_hours(orchestrator))
    return JobRequest(
        run=run,
        workload=workload.name,
        num_nodes=num_nodes,
        time_limit_hours=time_limit_hours,
        deployment=deployment.name,
        job_queue=queue,
        job_definition=definition,
        usd_per_node_hour=(
            USD_PER_JOB_HOUR_ESTIMATE if on_cpu else deployment.instance_type.usd_per_hour_estimate
        ),
        hardware=workload.hardware,
        orchestrator=orchestrator,
        parameters=parameters,
        scales=scales,
    )


def chosen_orchestrator(
    deployment: Deployment, workload: Workload, asked: Orchestrator | None
) -> Orchestrator:
    """Choose the orchestrator: --on, or the only one there is, or Batch."""
    if workload.hardware is Hardware.CPU:
        if asked is Orchestrator.EKS:
            raise Refusal(
                "not-on-eks",
                f"--on eks: {workload.name} runs on ordinary CPU instances, which Batch starts on "
                "every deployment; leave --on out",
            )
        return Orchestrator.BATCH
    there = deployment.orchestrators
    if asked is None:
        # Batch is preferred. A destroyed stack is refused only if no other orchestrator is left.
        candidates = deployment.usable or there
        asked = Orchestrator.BATCH if Orchestrator.BATCH in candidates else candidates[0]
    if asked not in there:
        both = ",".join(sorted({*there, asked}))
        raise Refusal(
            "not-deployed",
            f"--on {asked}: deployment {deployment.name!r} has {' and '.join(there)} only; submit "
            f"with --on {there[0]}, or deploy again with "
            f"{deployment.redeploy(orchestrators=both)}",
        )
    if asked in deployment.unusable:
        raise deployment.unusable[asked]
    return asked


def known_workload(name: str | None) -> Workload:
    """Look up the workload; refuse an unknown one."""
    if not name:
        raise Refusal(
            "no-workload",
            "nothing to submit is named; name a workload (`python -m jobs catalogue` lists them), "
            "a program of yours (./train.py), or a module (-m mypkg.train)",
        )
    if name.startswith("-"):
        raise Refusal(
            "no-workload",
            f"{name} stands before what it belongs to; name the workload or program first, as in "
            f"`submit llama2-7b {name}`",
        )
    if name in _NOT_BY_NAME:
        raise Refusal(
            "unknown-workload",
            f"{name} is not submitted by its name; name the file of your program: submit "
            "./train.py",
        )
    if name in WORKLOADS:
        return WORKLOADS[name]
    names = [known for known in WORKLOADS if known not in _NOT_BY_NAME]
    submitted = {known: known for known in names}
    submitted |= {model: f"{PRETRAIN} --model {model}" for model in MODELS}
    near = nearest(name, submitted)
    hint = f"did you mean {submitted[near]!r}?" if near else did_you_mean(name, names)
    raise Refusal("unknown-workload", f"unknown workload {name!r}; {hint}; {_own_program(name)}")


def _own_program(name: str) -> str:
    """Say how a program of the user's own is named."""
    if Path(name).is_dir():
        return f"for the folder of that name write ./{name}"
    if Path(f"{name}.py").is_file():
        return f"for the file of that name write ./{name}.py"
    return "for a program of your own give its path: ./train.py"


def run_name(name: str | None, what: str) -> str:
    """Return the run's checked name, or a new one made of what runs and the time."""
    if name is not None:
        return valid_run_name(name)
    return f"{what}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def parsed_parameters(
    workload: Workload, argv: Sequence[str], assignments: Sequence[str]
) -> dict[str, Value]:
    """Read ``--name value`` and ``--set name=value`` against the catalogue.

    Refuses unknown names, wrong values, a parameter given twice and a required one that is
    missing.
    """
    known = {item.name: item for item in (*workload.parameters, *workload.launch_parameters)}
    values: dict[str, Value] = {}
    for shown, name, text in (*_flags(workload, known, argv), *_settings(workload, assignments)):
        if name not in known:
            raise Refusal("unknown-parameter", _unknown(workload, known, name))
        if name in values:
            raise Refusal("parameter-twice", f"{shown}{name} is given twice; keep one of them")
        try:
            values[name] = known[name].parse(text)
        except ValueError as error:
            meant = _meant(known[name], text)
            raise Refusal("parameter-value", f"{shown}{error}{meant}") from None
    missing = [item for item in workload.parameters if item.required and item.name not in values]
    if missing:
        needed = " and ".join(f"--{item.name} ({item.help})" for item in missing)
        raise Refusal(
            "parameter-missing",
            f"{workload.name} needs {needed}; `python -m jobs submit {workload.name} --help` "
            "shows all parameters",
        )
    return values


def _flags(
    workload: Workload, known: Mapping[str, Parameter], argv: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Split ``--name value`` and ``--name=value``; a boolean flag without a value is true."""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise Refusal(
                "parameter-syntax",
                f"{word!r} is not a parameter; "
                + (
                    f"arguments of the program come after --: -- {shlex.join([word, *rest])}"
                    if workload.runs_program
                    else f"parameters look like --{_example(workload)}"
                ),
            )
        name, equals, text = word[2:].partition("=")
        name = _kebab(name)
        if name not in known:
            raise Refusal("unknown-parameter", _unknown(workload, known, name))
        if not equals:
            alone = not rest or rest[0].startswith("--")
            if alone and not isinstance(known[name].default, bool):
                raise Refusal(
                    "parameter-syntax", f"--{name} has no value; it takes {known[name].help}"
                )
            text = "true" if alone else rest.pop(0)
        yield "--", name, text


def _settings(workload: Workload, assignments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise Refusal(
                "parameter-syntax",
                f"--set {assignment} is not key=value; for example: --set "
                f"{_example(workload).replace(' ', '=')}",
            )
        yield "--set ", _kebab(name.strip().removeprefix("--")), text


def _meant(parameter: Parameter, text: str) -> str:
    """Suggest the closest of a parameter's choices, if it has a fixed set."""
    choices = (parameter.pattern or "").split("|")
    if not all(_WORD.fullmatch(choice) for choice in choices):
        return ""
    hint = did_you_mean(text, choices)
    return f"; {hint}" if hint.startswith("did you mean") else ""


def _kebab(name: str) -> str:
    # `max_bytes` is accepted too: it is what one would type after reading Python.
    return name.replace("_", "-")


def _example(workload: Workload) -> str:
    first = (*workload.parameters, *LAUNCH_PARAMETERS)[0]
    return f"{first.name} {first.default or 'VALUE'}"


def _unknown(workload: Workload, known: Mapping[str, Parameter], name: str) -> str:
    hint = did_you_mean(name, (*known, *OWN_OPTIONS))
    is_near = hint.startswith("did you mean")
    if not is_near:
        hint = f"known are {', '.join(sorted(known))}"
    if not workload.runs_program:
        return f"{workload.name} has no parameter {name!r}; {hint}"
    own = f"what is for the program itself comes after --, as in: submit ./train.py -- --{name}"
    said = (hint, own) if is_near else (own, hint)
    return f"--{name} is no option of submit; {'; '.join(said)}"
