"""Queues, and containers of job definitions, of the emulated Batch."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.emulators.conftest import Server


def create_queue(
    server: Server, name: str, instance_type: str, vcpus: int, *, subnet: str
) -> dict[str, str]:
    """Create a queue with its compute environment; return their ARNs."""
    iam, batch = server.client("iam"), server.client("batch")
    with contextlib.suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName="r", AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName="p")
    profile = iam.get_instance_profile(InstanceProfileName="p")["InstanceProfile"]["Arn"]
    group = server.client("ec2").describe_security_groups()["SecurityGroups"][0]["GroupId"]
    environment = batch.create_compute_environment(
        computeEnvironmentName=f"nodes-of-{name}",
        type="MANAGED",
        serviceRole=iam.get_role(RoleName="r")["Role"]["Arn"],
        computeResources={
            "type": "EC2",
            "minvCpus": 0,
            "maxvCpus": vcpus,
            "instanceTypes": [instance_type],
            "instanceRole": profile,
            "subnets": [subnet],
            "securityGroupIds": [group],
        },
    )["computeEnvironmentArn"]
    order = [{"order": 1, "computeEnvironment": environment}]
    queue = batch.create_job_queue(
        jobQueueName=name, state="ENABLED", priority=1, computeEnvironmentOrder=order
    )["jobQueueArn"]
    return {"job_queue": queue, "compute_environment": environment}


def container_of(server: Server, command: list[str], **environment: str) -> dict[str, Any]:
    """Return a container that runs a command and logs to a new log group."""
    server.client("logs").create_log_group(logGroupName="group")
    options = {"awslogs-group": "group", "awslogs-stream-prefix": "jobs"}
    return {
        "image": "x",
        "command": command,
        "environment": [{"name": name, "value": value} for name, value in environment.items()],
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "512"},
        ],
        "logConfiguration": {"logDriver": "awslogs", "options": options},
    }
