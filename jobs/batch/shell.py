"""AWS Systems Manager sessions on Batch hosts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from jobs.aws import BatchClient, EcsClient, ManagedInstancesClient
from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.job import Job

PROGRAMS = ("aws", "session-manager-plugin")


def find_instance(batch: BatchClient, ecs: EcsClient, job: Job, node: int) -> str:
    """Return the id of the instance that runs a node of a job."""
    part = (job.shape.part_ids(job.job_id) or [job.job_id])[node]
    described = batch.describe_jobs(jobs=[part])["jobs"]
    arn = ((described[0].get("container") or {}) if described else {}).get("containerInstanceArn")
    if not arn or job.ended:
        raise Refusal(
            "no-host",
            f"node {node} of run {job.run} has no host: the job is {job.status}, not RUNNING; "
            f"see `python -m jobs status {job.run}`",
        )
    # arn:aws:ecs:region:account:container-instance/CLUSTER/ID
    cluster = arn.split("/")[1]
    response = ecs.describe_container_instances(cluster=cluster, containerInstances=[arn])
    return str(response["containerInstances"][0]["ec2InstanceId"])


def check_session(
    instances: ManagedInstancesClient, deployment: Deployment, instance_id: str
) -> None:
    """Refuse a host that does not accept sessions."""
    filters = [{"Key": "InstanceIds", "Values": [instance_id]}]
    known = instances.describe_instance_information(Filters=filters)["InstanceInformationList"]
    if any(item.get("PingStatus") == "Online" for item in known):
        return
    raise Refusal(
        "no-sessions",
        f"host {instance_id} accepts no sessions: deployment {deployment.name!r} does not allow "
        "them, or the SSM agent is not connected yet; deploy again with "
        f"{deployment.redeploy(node_shell='true')}",
    )


def session_command(instance_id: str, region: str, command: Sequence[str]) -> list[str]:
    """Build the AWS CLI command that opens a session."""
    argv = ["aws", "ssm", "start-session", "--region", region, "--target", instance_id]
    if not command:
        return argv
    parameters = json.dumps({"command": [shlex.join(command)]})
    document = "AWS-StartInteractiveCommand"
    return [*argv, "--document-name", document, "--parameters", parameters]


def missing_programs(argv: Sequence[str], missing: Sequence[str]) -> Refusal:
    """Build the refusal for missing programs."""
    return Refusal(
        "no-session-manager",
        f"not installed here: {' and '.join(missing)}; install the AWS CLI with its Session "
        f"Manager plugin, or run elsewhere: {shlex.join(argv)}",
    )
