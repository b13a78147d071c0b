"""A deployment, a job and its parts as services describe them, to copy with changes."""

from __future__ import annotations

from jobs.deployment import Deployment
from jobs.job import Attempt, Job, JobKind, Node, RunSummary, Shape
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.workloads import Hardware

DEPLOYMENT = Deployment(
    name="default",
    region="us-west-2",
    instance_type=find_instance_type("trn1.32xlarge"),
    max_nodes=4,
    neuron_release="2.28.0",
    bucket="bucket",
    orchestrators=(Orchestrator.BATCH,),
    job_queue="queue",
    cpu_job_queue="cpu-queue",
    compute_environment="environment",
    log_group="log-group",
    job_time_limit_hours=24,
    job_definition=None,
)
ATTEMPT = Attempt(
    number=1,
    exit_code=None,
    reason=None,
    status_reason=None,
    log_stream=None,
    started_at_ms=None,
    stopped_at_ms=None,
)
NODE = Node(index=0, status="RUNNING", status_reason=None, attempts=())
JOB = Job(
    job_id="0b1c",
    run="nightly",
    workload="all-reduce",
    status="RUNNABLE",
    status_reason=None,
    created_at_ms=None,
    started_at_ms=None,
    stopped_at_ms=None,
    shape=Shape(kind=JobKind.NODES, size=4),
    job_queue=None,
    depends_on=(),
    max_attempts=3,
    attempts=(),
    nodes=(),
)
RUN = RunSummary(
    run="nightly",
    job_id="0b1c",
    status="RUNNING",
    status_reason=None,
    created_at_ms=0,
    started_at_ms=None,
    stopped_at_ms=None,
    num_nodes=2,
    hardware=Hardware.TRAINIUM,
)
