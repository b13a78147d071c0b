"""The reasons that Batch and ECS give for a job that waits or has ended."""

from __future__ import annotations

from jobs.job import Explanation

# Batch messages: user guide "Jobs stuck in a RUNNABLE status", "Job timeouts", "Automated job
# retries" and the JobDetail type of the API reference. Container messages: ECS developer guide,
# "Stopped tasks error codes". The first matching pattern wins.
REASONS: tuple[Explanation, ...] = (
    Explanation(
        pattern="*CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY*",
        meaning="EC2 has not enough instances of the type free in this availability zone",
        remedy=(
            "wait, a day at most (-c trainium:runnable_time_limit_minutes=...), and submit again; "
            "or deploy in another zone (-c trainium:availability_zone_id=...) or with a "
            "reservation (-c trainium:capacity_reservation_id=... or trainium:capacity_block_id)"
        ),
    ),
    Explanation(
        pattern="*MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE*",
        meaning="the job needs more vCPUs than the compute environment may ever have",
        remedy="submit fewer nodes, or deploy with a larger -c trainium:max_nodes",
    ),
    Explanation(
        pattern="*MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT*",
        meaning="no instance of the compute environment can hold the job's vCPUs and memory",
        remedy=(
            "deploy again, so that job definition and instance type agree; the memory that ECS "
            "registers is less than the instance has"
        ),
    ),
    Explanation(
        pattern="*MISCONFIGURATION:EC2_INSTANCE_CONFIGURATION_UNSUPPORTED*",
        meaning="EC2 cannot start an instance of this type with what the launch template asks for",
        remedy=(
            "check that the type is offered in the zone of the subnet, with this number of network "
            "interfaces and this placement group, then deploy again (-c trainium:instance_type=... "
            "or -c trainium:availability_zone_id=...)"
        ),
    ),
    Explanation(
        pattern="*MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS*",
        meaning="Batch's service role lacks a permission",
        remedy="let an administrator restore the service-linked role AWSServiceRoleForBatch",
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
        meaning="Batch cannot place the job and does not know why",
        remedy=(
            "check the vCPU quota of the account, the activity of the Auto Scaling group that "
            "Batch made, and that nodes reach ECS and ECR (NAT or endpoints)"
        ),
    ),
    Explanation(
        pattern="Host EC2*",
        meaning="Batch lost the instance of the main node",
        remedy="nothing to do: Batch starts another attempt while there is one left",
    ),
    Explanation(
        pattern="Job attempt duration exceeded timeout*",
        meaning="the time limit of the submission was reached; Batch does not retry that",
        remedy="submit again with a larger --time-limit; a run with checkpoints continues",
    ),
    Explanation(
        pattern="stopped by * with jobs *",
        meaning="somebody stopped the run",
        remedy="submit the run again to resume it",
    ),
    Explanation(
        pattern="OutOfMemoryError*",
        meaning="the container used more memory than its limit and was killed",
        remedy="lower what the workload keeps in memory, for example fewer data loader workers",
    ),
    Explanation(
        pattern="*CannotPullContainerError*",
        meaning="the instance could not fetch the image",
        remedy=(
            "check that the subnet reaches ECR (NAT or endpoints) and that the image still exists; "
            "`cdk deploy --all` pushes it again"
        ),
    ),
    Explanation(
        pattern="*no such file or directory*",
        meaning="the container could not be created: a device or the program is missing",
        remedy=(
            "when it names /dev/neuron* or /dev/infiniband/*, the host has fewer devices than the "
            "job definition maps: read the boot messages of the host, then deploy again"
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
        remedy="read the rest of the reason; a full root volume and missing devices are usual",
    ),
    Explanation(
        pattern="*DockerTimeoutError*",
        meaning="the container engine of the instance did not answer in time",
        remedy="submit again; when it repeats, look at the disk of the instance",
    ),
    Explanation(
        pattern="*ResourceInitializationError*",
        meaning="the instance could not prepare the task: secrets, logs or network",
        remedy="check that the subnet reaches CloudWatch Logs and ECR (NAT or endpoints)",
    ),
    Explanation(
        pattern="Task failed to start*",
        meaning="the container never ran",
        remedy="read the container's reason in the table of nodes",
    ),
    Explanation(
        pattern="Dependent Job failed*",
        meaning="a job that this one waited for failed",
        remedy=(
            "look at that job first (with --compile: `python -m jobs status <run>-compile`; with "
            "--requirements: its run `wheels-...` in `python -m jobs list`), then submit again"
        ),
    ),
)
