"""Explanations of the reasons that Batch and ECS give for waiting and ended jobs."""

from __future__ import annotations

from jobs.job import NO_CAPACITY, Explanation

# Batch messages: user guide "Jobs stuck in a RUNNABLE status", "Job timeouts", "Automated job
# retries" and the JobDetail type of the API reference. Container messages: ECS developer guide,
# "Stopped tasks error codes". The first matching pattern wins.
REASONS: tuple[Explanation, ...] = (
    Explanation(
        pattern=f"{NO_CAPACITY} in *: moves to *",
        meaning="the zone had no capacity, so the run is resubmitted in the next zone",
        remedy="none needed: `python -m jobs status` shows the run in that zone within minutes",
    ),
    Explanation(
        pattern="*CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY*",
        meaning="EC2 has insufficient capacity of the type in this availability zone",
        remedy=(
            "with several zones, none needed: the run moves to the next one within minutes; with "
            "one zone, or in the last one, deploy with a longer wait, up to a day (-c "
            "trainium:runnable_time_limit_minutes=...), or in several zones (-c "
            "trainium:zone_ids=...), or with a reservation (-c "
            "trainium:capacity_reservation_id=... or trainium:capacity_block_id=...), then "
            "submit again"
        ),
    ),
    Explanation(
        pattern="*MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE*",
        meaning="the job needs more vCPUs than the compute environment's maximum",
        remedy="submit with fewer nodes, or deploy with a larger -c trainium:max_nodes",
    ),
    Explanation(
        pattern="*MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT*",
        meaning="no instance in the compute environment has enough vCPUs and memory for the job",
        remedy=(
            "deploy again, so that job definition and instance type match; ECS registers less "
            "memory than the instance has"
        ),
    ),
    Explanation(
        pattern="*MISCONFIGURATION:EC2_INSTANCE_CONFIGURATION_UNSUPPORTED*",
        meaning="EC2 cannot start an instance of this type with the launch template's settings",
        remedy=(
            "check that the type is offered in the zone of the subnet, with this number of network "
            "interfaces and this placement group, then deploy again (-c trainium:instance_type=... "
            "or -c trainium:availability_zone_id=...)"
        ),
    ),
    Explanation(
        pattern="*MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS*",
        meaning="Batch's service role lacks a permission",
        remedy="ask an administrator to restore the service-linked role AWSServiceRoleForBatch",
    ),
    Explanation(
        pattern="ACTION_REQUIRED*",
        meaning="a compute environment of the queue is invalid or disabled",
        remedy=(
            "read its status reason in the Batch console, then disable and enable it "
            "(`aws batch update-compute-environment`)"
        ),
    ),
    Explanation(
        pattern="UNDETERMINED*",
        meaning="Batch cannot place the job, for an unknown reason",
        remedy=(
            "check the vCPU quota of the account, the activity of the Auto Scaling group that "
            "Batch created, and that nodes can reach ECS and ECR (NAT or endpoints)"
        ),
    ),
    Explanation(
        pattern="Host EC2*",
        meaning="Batch lost the instance of the main node",
        remedy="none: Batch starts another attempt if any are left",
    ),
    Explanation(
        pattern="Job attempt duration exceeded timeout*",
        meaning="the time limit of the submission was reached; Batch does not retry the job",
        remedy="submit again with a larger --time-limit; a run with checkpoints resumes",
    ),
    Explanation(
        pattern="stopped by * with jobs *",
        meaning="a user stopped the run",
        remedy="submit the run again to resume it",
    ),
    Explanation(
        pattern="OutOfMemoryError*",
        meaning="the container used more memory than its limit and was killed",
        remedy="reduce the memory use of the workload, for example with fewer data loader workers",
    ),
    Explanation(
        pattern="*CannotPullContainerError*",
        meaning="the instance could not pull the image",
        remedy=(
            "check that the subnet can reach ECR (NAT or endpoints) and that the image still "
            "exists; `cdk deploy --all` pushes it again"
        ),
    ),
    Explanation(
        pattern="*no such file or directory*",
        meaning="the container could not be created: a device or the program is missing",
        remedy=(
            "if it names /dev/neuron* or /dev/infiniband/*, the host has fewer devices than the "
            "job definition maps: read the host's boot messages, then deploy again"
        ),
    ),
    Explanation(
        pattern="*CannotStartContainerError*",
        meaning="the container could not be started on the instance",
        remedy="read the rest of the reason; then check the AMI and the devices it provides",
    ),
    Explanation(
        pattern="*CannotCreateContainerError*",
        meaning="the container could not be created on the instance",
        remedy=(
            "read the rest of the reason; common causes are a full root volume and a missing device"
        ),
    ),
    Explanation(
        pattern="*DockerTimeoutError*",
        meaning="the instance's container engine did not respond in time",
        remedy="submit again; if the error recurs, check the instance's disk",
    ),
    Explanation(
        pattern="*ResourceInitializationError*",
        meaning="the instance could not prepare the task: secrets, logs or network",
        remedy="check that the subnet can reach CloudWatch Logs and ECR (NAT or endpoints)",
    ),
    Explanation(
        pattern="Task failed to start*",
        meaning="the container never ran",
        remedy="read the container's reason in the table of nodes",
    ),
    Explanation(
        pattern="Dependent Job failed*",
        meaning="a job that this one depends on failed",
        remedy=(
            "check that job first (with --compile: `python -m jobs status <run>-compile`; with "
            "--requirements: its run `wheels-...` in `python -m jobs list`), then submit again"
        ),
    ),
)
