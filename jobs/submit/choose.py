"""Resolve a specification against a deployment: services, stored settings of the run, the request.

On Batch, a program's job depends on the job that collects its wheels. A job on the cluster cannot
depend on a Batch job, and must not wait on its nodes, which cost money. So for the cluster,
`submit` itself waits, and submits the program's job once the wheels are collected.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jobs.aws import Aws, BatchClient
from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_run
from jobs.capacity import find_window
from jobs.deployment import Deployment, read_deployment
from jobs.errors import Refusal
from jobs.job import CapacityWindow, JobRequest, RunSummary
from jobs.orchestrators import JobService, Services, service_for, services_of
from jobs.output.console import note
from jobs.submit.read import SubmitSpec
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
"""Number of characters of a key in the name of the run that collects its wheels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """The wheels of a program's requirements for the deployment's image."""

    key: str
    requirements: Requirements
    request: JobRequest
    """The job that collects them."""
    service: JobService
    """Batch, regardless of the program's orchestrator."""
    are_collected: bool

    @property
    def line(self) -> str:
        """Line of the plan about the dependencies."""
        what = f"dependencies: {self.requirements.count} required"
        if self.are_collected:
            return f"{what}, already collected"
        return (
            f"{what}; first, as run {self.request.run}: collect them on one CPU instance, at most "
            f"{self.request.time_limit_hours:g} h; the program starts after that"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionPlan:
    """The plan of a submission, as lines and as a document."""

    lines: tuple[str, ...] = ()
    document: TrainingSummary | ProgramPlan | None = None
    """``plan`` in the output of ``submit --json``; None for workloads without one."""
    compile_request: JobRequest | None = None
    """Compile job to submit first, which the main request depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A specification resolved against a deployment; `check` and `planned` extend it."""

    spec: SubmitSpec
    target: Deployment
    service: JobService
    """The service that will run the job."""
    services: Services
    """The services to search for earlier jobs of the run."""
    bucket: Bucket
    request: JobRequest
    processes_per_node: int | None
    """Processes per node of a rehearsal, instead of the instance type's."""
    wheels: Wheels | None = None
    """Dependencies of a program; None if it has none."""
    record: Submitted | None = None
    """Record of a program's submission; None for a catalogue workload."""
    changes: tuple[str, ...] = ()
    """Changes since the program's last submission of the run."""
    earlier: tuple[RunSummary, ...] = ()
    """Earlier jobs of the run."""
    listed_at: float = 0.0
    """Time of listing the earlier jobs, in seconds since the epoch."""
    plan: SubmissionPlan = field(default_factory=SubmissionPlan)

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the job; a rehearsal may set the number of processes per node."""
        on_node = self.processes_per_node or self.target.instance_type.processes_per_node
        return self.request.num_nodes * on_node

    @property
    def running(self) -> RunSummary | None:
        """The unfinished job of this run, if any."""
        return next((summary for summary in self.earlier if not summary.ended), None)

    @property
    def requests(self) -> tuple[JobRequest, ...]:
        """The requests to send, in order; the job itself comes last."""
        wheels, compiles = self.wheels, self.plan.compile_request
        first = None if wheels is None or wheels.are_collected else wheels.request
        return tuple(item for item in (first, compiles, self.request) if item is not None)

    def service_of(self, request: JobRequest) -> JobService:
        """Return the service for one of the requests."""
        wheels = self.wheels
        return self.service if wheels is None or request is not wheels.request else wheels.service


def choose(
    spec: SubmitSpec, aws: Aws, deployment: str, *, processes_per_node: int | None
) -> Submission:
    """Resolve the deployment, service and stored settings, and build the request."""
    target = read_deployment(aws.ssm(), deployment, region=aws.region, workload=spec.job_workload)
    orchestrator = choose_orchestrator(target, spec.workload, spec.options.on)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    window = find_window(aws, target, spec.workload.hardware, note)
    if spec.options.name is not None:
        spec = _with_stored_settings(spec, bucket)
    submission = Submission(
        spec=spec,
        target=target,
        service=service_for(aws, target, orchestrator, submits=True),
        services=services_of(aws, target, note, needed=orchestrator),
        bucket=bucket,
        request=request_for(
            target,
            spec.workload,
            run=spec.run,
            num_nodes=spec.num_nodes,
            time_limit_hours=spec.options.time_limit_hours,
            parameters=dict(spec.values.given),
            orchestrator=orchestrator,
            scales=spec.options.scales,
            window=window,
            zone_patience_minutes=spec.options.zone_patience_minutes,
        ),
        processes_per_node=processes_per_node,
    )
    return submission if spec.program is None else _with_program(submission, aws)


def _with_stored_settings(spec: SubmitSpec, bucket: Bucket) -> SubmitSpec:
    """Fill in settings that this submission omits, from earlier submissions of the run."""
    if spec.program is not None:
        from jobs.submit.program import with_stored_settings

        program, values = with_stored_settings(spec.program, spec.values, bucket, spec.run)
        spec = replace(spec, program=program, values=values)
        if spec.options.nodes is None and program.continued is not None:
            spec = replace(spec, num_nodes=program.continued.num_nodes)
        return spec
    if spec.workload.name != PRETRAIN or "model" in spec.values.given:
        return spec
    stored = read_run(bucket, spec.run)
    model = "" if stored is None else str(stored.values.get("model", ""))
    if model not in MODELS:
        return spec  # a new run, or one of another workload, which is refused later
    workload = spec.workload.of_model({"model": model})
    nodes = workload.default_nodes if spec.options.nodes is None else spec.options.nodes
    return replace(spec, values=replace(spec.values, workload=workload), num_nodes=nodes)


def _with_program(submission: Submission, aws: Aws) -> Submission:
    """Turn the request into one that runs the program, with its wheels and its changes."""
    from jobs.submit.program import program_request

    spec, bucket = submission.spec, submission.bucket
    assert spec.program is not None
    wheels: Wheels | None = None
    if (requirements := spec.program.requirements) is not None and requirements.text:
        wheels = _wheels(requirements, submission, aws)
    key = None if wheels is None else wheels.key
    request, record, changes = program_request(
        submission.request, spec.program, spec.values, bucket, wheels_key=key
    )
    return replace(submission, request=request, wheels=wheels, record=record, changes=changes)


def _wheels(requirements: Requirements, submission: Submission, aws: Aws) -> Wheels:
    """Return the wheels of a program's requirements, with the job that collects them."""
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
    """Return the name of the run that collects the wheels for a key."""
    return f"wheels-{key[:_RUN_LENGTH]}"


def _image_of(batch: BatchClient, target: Deployment) -> str:
    """Read the image in which the deployment collects wheels and runs programs."""
    definition = target.job_definition
    definitions = batch.describe_job_definitions(jobDefinitions=[definition])["jobDefinitions"]
    if not definitions:
        raise Refusal(
            "no-job-definition",
            f"job definition {definition} no longer exists; deploy again with {target.redeploy()}",
        )
    image = str(definitions[0]["containerProperties"]["image"])
    if target.eks is not None and target.eks.image != image:
        raise Refusal(
            "two-images",
            f"the cluster's jobs run {target.eks.image}, but wheels are collected in {image}: an "
            f"update of the deployment is incomplete; deploy again with {target.redeploy()}",
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
    window: CapacityWindow | None = None,
    zone_patience_minutes: int | None = None,
) -> JobRequest:
    """Build the request with the deployment's queue, hourly price, limit and zones."""
    on_cpu = workload.hardware is Hardware.CPU
    queue = deployment.cpu_job_queue if on_cpu else deployment.job_queue
    definition = deployment.job_definition
    if orchestrator is Orchestrator.EKS:
        assert deployment.eks is not None
        queue, definition = deployment.eks.queue, None
    assert queue is not None
    if time_limit_hours is None:
        # A default must not be refused, so the deployment's cap limits it instead.
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
        window=window,
        zone_patience_minutes=_zone_patience(
            deployment, workload, orchestrator, zone_patience_minutes, scales=scales
        ),
    )


def _zone_patience(
    deployment: Deployment,
    workload: Workload,
    orchestrator: Orchestrator,
    requested: int | None,
    *,
    scales: bool,
) -> int | None:
    """Return the minutes that a job may wait in a zone; None if it does not move."""
    on_nodes = workload.hardware is not Hardware.CPU
    on_eks = orchestrator is Orchestrator.EKS and deployment.eks is not None
    has_zones = deployment.eks.has_zones if on_eks and deployment.eks else bool(deployment.zones)
    if on_nodes and has_zones and (scales or not on_eks):
        return contract.ZONE_PATIENCE_MINUTES if requested is None else requested
    if requested is None:
        return None
    if on_nodes and has_zones:
        raise Refusal(
            "patience-without-scale",
            f"--zone-patience {requested}: the node scaler adds no nodes for this job; submit with "
            "--scale, or omit --zone-patience",
        )
    why, instead = f"{workload.name} runs in any zone", ""
    if on_nodes:
        why = f"the nodes of deployment {deployment.name!r} are in one zone"
        instead = f", or deploy again with {deployment.redeploy(zone_ids='ZONE,ZONE')}"
    raise Refusal("one-zone", f"--zone-patience {requested}: {why}; omit it{instead}")


def choose_orchestrator(
    deployment: Deployment, workload: Workload, requested: Orchestrator | None
) -> Orchestrator:
    """Choose the orchestrator: --on, the only one deployed, or Batch."""
    if workload.hardware is Hardware.CPU:
        if requested is Orchestrator.EKS:
            raise Refusal(
                "not-on-eks",
                f"--on eks: {workload.name} runs on CPU instances, which Batch launches in every "
                "deployment; omit --on",
            )
        return Orchestrator.BATCH
    deployed = deployment.orchestrators
    chosen = requested
    if chosen is None:
        # Batch is preferred. A destroyed stack is refused only if no other orchestrator is left.
        candidates = deployment.usable or deployed
        chosen = Orchestrator.BATCH if Orchestrator.BATCH in candidates else candidates[0]
    if chosen not in deployed:
        both = ",".join(sorted({*deployed, chosen}))
        raise Refusal(
            "not-deployed",
            f"--on {chosen}: deployment {deployment.name!r} has only {' and '.join(deployed)}; "
            f"submit with --on {deployed[0]}, or deploy again with "
            f"{deployment.redeploy(orchestrators=both)}",
        )
    if chosen in deployment.unusable:
        raise deployment.unusable[chosen]
    return chosen
