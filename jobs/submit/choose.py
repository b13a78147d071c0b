"""What an order means on a deployment: its services, what its run remembers, the request.

On Batch a program's job depends on the one that collects its wheels. A job of the cluster cannot
wait for one of Batch, and on its nodes it must not: they cost while they wait. So for the cluster
`submit` itself waits, and submits the program's job when the wheels are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jobs.aws import Aws, BatchClient
from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_run
from jobs.deployment import Deployment, read_deployment
from jobs.errors import Refusal
from jobs.job import JobRequest, RunSummary
from jobs.orchestrators import JobService, Services, service_for, services_of
from jobs.output.console import note
from jobs.submit.read import SubmitOrder
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.instances import USD_PER_JOB_HOUR_ESTIMATE
from trainium_catalogue.models.presets import MODELS, PRETRAIN
from trainium_catalogue.workloads import WORKLOADS, Hardware, Value, Workload

if TYPE_CHECKING:
    from jobs.output.documents import ProgramPlan, TrainingSummary
    from jobs.program.record import Submitted
    from jobs.program.requirements import Requirements

_RUN_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """The wheels that a program's requirements mean in the deployment's image."""

    key: str
    requirements: Requirements
    request: JobRequest
    """The job that collects them."""
    service: JobService
    """Batch, whatever runs the program."""
    are_collected: bool

    @property
    def line(self) -> str:
        """Say for the plan what there is to do."""
        packages = self.requirements.count
        what = f"dependencies: {packages} required" if packages != 1 else "dependencies: 1 required"
        if self.are_collected:
            return f"{what}, collected already"
        return (
            f"{what}; first, as run {self.request.run}: collect them on one ordinary CPU instance, "
            f"at most {self.request.time_limit_hours:g} h; the program starts when that has "
            "succeeded"
        )


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
    """An order on a deployment; `check` and `plan` add what they find."""

    order: SubmitOrder
    target: Deployment
    service: JobService
    """The service that will run the job."""
    places: Services
    """The services that may already have the run."""
    bucket: Bucket
    request: JobRequest
    processes_per_node: int | None
    """Processes per node of a rehearsal, instead of the instance type's."""
    wheels: Wheels | None = None
    """Dependencies of a program; None without any."""
    record: Submitted | None = None
    """What is kept of a program's submission; None for a workload of the catalogue."""
    changes: tuple[str, ...] = ()
    """What differs from the program's last submission of the run."""
    earlier: tuple[RunSummary, ...] = ()
    """Earlier jobs of the run."""
    listed_at: float = 0.0
    """When they were listed, in seconds since the epoch."""
    plan: SubmissionPlan = field(default_factory=SubmissionPlan)

    @property
    def num_ranks(self) -> int:
        """Ranks of the job; a rehearsal has another number of processes per node."""
        on_node = self.processes_per_node or self.target.instance_type.processes_per_node
        return self.request.num_nodes * on_node

    @property
    def running(self) -> RunSummary | None:
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


def choose(
    order: SubmitOrder, aws: Aws, deployment: str, *, processes_per_node: int | None
) -> Submission:
    """Find the deployment, the service for the job and what the run remembers; make the request."""
    target = read_deployment(aws.ssm(), deployment, region=aws.region, workload=order.job_workload)
    orchestrator = chosen_orchestrator(target, order.workload, order.options.on)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    if order.options.name is not None:
        order = _with_memory(order, bucket)
    submission = Submission(
        order=order,
        target=target,
        service=service_for(aws, target, orchestrator, submits=True),
        places=services_of(aws, target, note, needed=orchestrator),
        bucket=bucket,
        request=request_for(
            target,
            order.workload,
            run=order.run,
            num_nodes=order.num_nodes,
            time_limit_hours=order.options.time_limit_hours,
            parameters=dict(order.values.given),
            orchestrator=orchestrator,
            scales=order.options.scales,
        ),
        processes_per_node=processes_per_node,
    )
    return submission if order.program is None else _with_program(submission, aws)


def _with_memory(order: SubmitOrder, bucket: Bucket) -> SubmitOrder:
    """Add what the run has from earlier submissions, where this one says nothing."""
    if order.program is not None:
        from jobs.submit.program import remembered

        program, values = remembered(order.program, order.values, bucket, order.run)
        order = replace(order, program=program, values=values)
        if order.options.nodes is None and program.continued is not None:
            order = replace(order, num_nodes=program.continued.num_nodes)
        return order
    if order.workload.name != PRETRAIN or "model" in order.values.given:
        return order
    stored = read_run(bucket, order.run)
    model = "" if stored is None else str(stored.values.get("model", ""))
    if model not in MODELS:
        return order  # a new run, or another workload's: refused with the rest
    workload = order.workload.of_model({"model": model})
    nodes = workload.default_nodes if order.options.nodes is None else order.options.nodes
    return replace(order, values=replace(order.values, workload=workload), num_nodes=nodes)


def _with_program(submission: Submission, aws: Aws) -> Submission:
    """Turn the request into one that runs the program; name its wheels, and what has changed."""
    from jobs.submit.program import program_request

    order, bucket = submission.order, submission.bucket
    assert order.program is not None
    wheels: Wheels | None = None
    if (requirements := order.program.requirements) is not None and requirements.text:
        wheels = _wheels(requirements, submission, aws)
    key = None if wheels is None else wheels.key
    request, record, changes = program_request(
        submission.request, order.program, order.values, bucket, wheels_key=key
    )
    return replace(submission, request=request, wheels=wheels, record=record, changes=changes)


def _wheels(requirements: Requirements, submission: Submission, aws: Aws) -> Wheels:
    """Name the wheels of a program's requirements, and the job that collects them."""
    workload, bucket = WORKLOADS[contract.WHEELS], submission.bucket
    target = read_deployment(
        aws.ssm(), submission.target.name, region=aws.region, workload=workload.name
    )
    key = requirements.key(_image_of(aws.batch(), target))
    return Wheels(
        key=key,
        requirements=requirements,
        request=request_for(
            target,
            workload,
            run=wheels_run(key),
            num_nodes=1,
            time_limit_hours=None,
            parameters={"for-run": submission.request.run, "key": key},
            orchestrator=Orchestrator.BATCH,
        ),
        service=service_for(aws, target, Orchestrator.BATCH, submits=True),
        are_collected=bucket.head(f"{contract.wheels_prefix(key)}{contract.WHEELS_MARKER}")
        is not None,
    )


def wheels_run(key: str) -> str:
    """Name the run that collects the wheels of a key."""
    return f"wheels-{key[:_RUN_LENGTH]}"


def _image_of(batch: BatchClient, target: Deployment) -> str:
    """Read the image in which the deployment collects wheels, and runs its programs."""
    definition = target.job_definition
    found = batch.describe_job_definitions(jobDefinitions=[definition])["jobDefinitions"]
    if not found:
        raise Refusal(
            "no-job-definition",
            f"Batch does not know {definition} (any more); deploy again with {target.redeploy()}",
        )
    image = str(found[0]["containerProperties"]["image"])
    if target.eks is not None and target.eks.image != image:
        raise Refusal(
            "two-images",
            f"the cluster's jobs run {target.eks.image}, and wheels are collected in {image}: the "
            f"deployment is between two versions; deploy again with {target.redeploy()}",
        )
    return image


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
