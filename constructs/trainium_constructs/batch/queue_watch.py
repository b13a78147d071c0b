"""A watch over a queue: it cancels a job that hosts are up for, and billed, without taking it.

A host that is not ready ends itself, and Batch starts another one, for as long as the job waits.
No reason that Batch can cancel a job for (``BLOCKED_REASONS``) is about that: hosts without a way
out, with a broken driver or with a missing chip would come and go without end.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from trainium_catalogue.contract import HOSTS_IN_VAIN_REASON, TAG_DEPLOYMENT
from trainium_constructs.nag import acknowledge, acknowledge_wildcards, spelling_of

LOOK_MINUTES = 10
"""Minutes between two looks: a host needs about as long to start."""

FIRST_CHILD = ":0"
"""End of the id of an array's first child."""

LOOKS = 4
"""Looks in vain before a job is cancelled: half an hour of hosts, and one for a first bad host."""

# While another job runs there is nothing to see. An execution may have 25,000 events (Step
# Functions Developer Guide, quotas), which at this pace is more than two weeks. No longer: a state
# machine is deleted when its executions have left the state they are in (API reference,
# DeleteStateMachine), so the destruction of the stack waits as long as this wait still lasts.
_TURN_MINUTES = 20

_MINUTE_S = 60
# The smallest page of EC2; one instance is enough, and 16 interfaces each make a long answer.
_HOSTS_PER_PAGE = 5


class QueueWatch(Construct):
    """One execution for each job or array that begins to wait, which ends when it waits no more."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        queue_arn: str,
        host_name: str,
        deployment: str,
    ) -> None:
        """Watch the queue.

        Args:
            queue_arn: Queue whose jobs are watched.
            host_name: ``Name`` tag of the hosts that serve the queue.
            deployment: Deployment that the hosts are tagged with.
        """
        super().__init__(scope, construct_id)
        stack = cdk.Stack.of(self)
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("states.amazonaws.com"))
        jobs = stack.format_arn(service="batch", resource="job", resource_name="*")
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["batch:DescribeJobs", "batch:ListJobs", "ec2:DescribeInstances"],
                resources=["*"],
            )
        )
        role.add_to_policy(iam.PolicyStatement(actions=["batch:CancelJob"], resources=[jobs]))
        acknowledge_wildcards(
            role,
            ["*", spelling_of(jobs, owner=self, reader=role)],
            "AWS knows no resource for these reading actions, and a job's id is made when it is "
            "submitted",
        )
        # L1: the L2 spells states as classes; what a reader of the console sees is this table.
        self.machine = sfn.CfnStateMachine(
            self,
            "Machine",
            role_arn=role.role_arn,
            definition_string=stack.to_json_string(
                definition(host_name=host_name, deployment=deployment, partition=stack.partition)
            ),
        )
        for rule in ("AwsSolutions-SF1", "AwsSolutions-SF2"):
            acknowledge(
                self.machine,
                rule,
                "an execution's own history says what it saw, and is kept for 90 days",
            )
        starter = iam.Role(
            self, "StarterRole", assumed_by=iam.ServicePrincipal("events.amazonaws.com")
        )
        starter.add_to_policy(
            iam.PolicyStatement(actions=["states:StartExecution"], resources=[self.machine.ref])
        )
        events.CfnRule(
            self,
            "Waiting",
            event_pattern={
                "source": ["aws.batch"],
                "detail-type": ["Batch Job State Change"],
                "detail": {
                    "status": ["RUNNABLE"],
                    "jobQueue": [queue_arn],
                    # Nodes of a job, say id#1, wait with it. An array itself is never RUNNABLE, but
                    # PENDING, while its children are (AWS Batch User Guide, array jobs): the first
                    # child, id:0, is watched for all.
                    "jobId": [
                        {"anything-but": {"wildcard": ["*#*", "*:*"]}},
                        {"suffix": FIRST_CHILD},
                    ],
                },
            },
            targets=[
                events.CfnRule.TargetProperty(
                    id="Machine", arn=self.machine.ref, role_arn=starter.role_arn
                )
            ],
        )


def definition(*, host_name: str, deployment: str, partition: str) -> dict[str, Any]:
    """The state machine in the Amazon States Language."""
    call = f"arn:{partition}:states:::aws-sdk"
    hosts = [
        {"Name": "tag:Name", "Values": [host_name]},
        {"Name": f"tag:{TAG_DEPLOYMENT}", "Values": [deployment]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    waits = {"Variable": "$.job.Status", "StringEquals": "RUNNABLE"}
    for_capacity = [
        {"Variable": "$.job.StatusReason", "IsPresent": True},
        {"Variable": "$.job.StatusReason", "StringMatches": "*CAPACITY:*"},
    ]
    return {
        "Comment": "Cancels a job that hosts are up for without taking it.",
        "StartAt": "Begin",
        "States": {
            "Begin": {
                "Type": "Pass",
                "Parameters": {
                    "jobId.$": "$.detail.jobId",
                    "queue.$": "$.detail.jobQueue",
                    "inVain": 0,
                },
                "Next": "Wait",
            },
            "Wait": {
                "Type": "Wait",
                "Seconds": LOOK_MINUTES * _MINUTE_S,
                "Next": "Look at the job",
            },
            "Look at the job": {
                **_task(f"{call}:batch:describeJobs"),
                "Parameters": {"Jobs.$": "States.Array($.jobId)"},
                "ResultPath": "$.found",
                "Next": "It is known?",
            },
            "It is known?": _choice("$.found.Jobs[0]", then="Take it", otherwise="Done"),
            "Take it": {**_keep({"job.$": "$.found.Jobs[0]"}), "Next": "It waits?"},
            "It waits?": {
                "Type": "Choice",
                "Choices": [
                    # Batch's own limit on the wait for capacity is in force.
                    {"And": [waits, *for_capacity], "Next": "Start over"},
                    {**waits, "Next": "Look at the queue"},
                ],
                "Default": "Done",
            },
            "Start over": {**_keep({"inVain": 0}), "Next": "Wait"},
            "Look at the queue": {
                **_task(f"{call}:batch:listJobs"),
                "Parameters": {"JobQueue.$": "$.queue", "JobStatus": "RUNNING", "MaxResults": 1},
                "ResultPath": "$.running",
                "Next": "Another one runs?",
            },
            "Another one runs?": _choice(
                "$.running.JobSummaryList[0]", then="Wait for the turn", otherwise="Look for hosts"
            ),
            "Wait for the turn": {**_keep({"inVain": 0}), "Next": "Wait long"},
            "Wait long": {
                "Type": "Wait",
                "Seconds": _TURN_MINUTES * _MINUTE_S,
                "Next": "Look at the job",
            },
            "Look for hosts": {
                **_task(f"{call}:ec2:describeInstances"),
                "Parameters": {"Filters": hosts, "MaxResults": _HOSTS_PER_PAGE},
                "ResultPath": "$.hosts",
                "Next": "Hosts are up?",
            },
            # Without one nothing is billed. What was counted stays: hosts that end themselves come
            # and go.
            "Hosts are up?": _choice("$.hosts.Reservations[0]", then="Count", otherwise="Wait"),
            "Count": {
                **_keep({"inVain.$": "States.MathAdd($.inVain, 1)"}),
                "Next": "Often enough?",
            },
            "Often enough?": {
                "Type": "Choice",
                "Choices": [
                    {
                        "Variable": "$.inVain",
                        "NumericGreaterThanEquals": LOOKS,
                        "Next": "Cancel the job",
                    }
                ],
                "Default": "Wait",
            },
            "Cancel the job": {
                **_task(f"{call}:batch:cancelJob"),
                "Parameters": {
                    # Of a child the array's: cancelling that cancels all children (API reference,
                    # CancelJob).
                    "JobId.$": "States.ArrayGetItem(States.StringSplit($.jobId, ':'), 0)",
                    "Reason": HOSTS_IN_VAIN_REASON,
                },
                "Next": "Done",
            },
            "Done": {"Type": "Succeed"},
        },
    }


def _task(resource: str) -> dict[str, Any]:
    """A call of the API, repeated for a while: a throttled look must not end the watch."""
    retry = {"ErrorEquals": ["States.ALL"], "IntervalSeconds": 30, "MaxAttempts": 5}
    return {"Type": "Task", "Resource": resource, "Retry": [{**retry, "BackoffRate": 2}]}


def _choice(path: str, *, then: str, otherwise: str) -> dict[str, Any]:
    """Go on at ``then`` if there is something at ``path``."""
    present = {"Variable": path, "IsPresent": True, "Next": then}
    return {"Type": "Choice", "Choices": [present], "Default": otherwise}


def _keep(changed: dict[str, Any]) -> dict[str, Any]:
    """Keep what the next look needs, and nothing else of what this one saw."""
    kept = {"jobId.$": "$.jobId", "queue.$": "$.queue"}
    if not any(name.startswith("inVain") for name in changed):
        kept["inVain.$"] = "$.inVain"
    return {"Type": "Pass", "Parameters": {**kept, **changed}}
