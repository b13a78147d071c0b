"""A queue watch: it cancels a job whose hosts are up, and billed, but never take it.

A host that is not ready terminates itself, and Batch starts another for as long as the job waits.
None of the reasons for which Batch can cancel a job (``BLOCKED_REASONS``) covers that: hosts with
no way out, a broken driver or a missing chip would come and go forever.
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
"""Minutes between two looks, about as long as a host needs to start."""

FIRST_CHILD = ":0"
"""Suffix of the id of an array's first child."""

LOOKS = 4
"""Looks in vain before a job is cancelled: half an hour of hosts, plus one for a bad first host."""

# While another job runs there is nothing to see. An execution may have 25,000 events (Step
# Functions Developer Guide, quotas), more than two weeks at this pace. The wait is no longer than
# this because a state machine is only deleted once its executions have left their current state
# (API reference, DeleteStateMachine), and the destruction of the stack waits for that.
_TURN_MINUTES = 20

_MINUTE_S = 60
# EC2's smallest page: one instance is enough, and 16 interfaces each make for a long answer.
_HOSTS_PER_PAGE = 5


class QueueWatch(Construct):
    """Starts an execution for each job or array that begins to wait; it ends with the wait."""

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
            queue_arn: Queue to watch.
            host_name: ``Name`` tag of the hosts that serve the queue.
            deployment: Deployment tag of the hosts.
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
        # L1: the L2 spells states as classes; this table is what the console shows.
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
                    # A job's nodes, such as id#1, wait with it. An array itself is never RUNNABLE,
                    # but PENDING while its children are (AWS Batch User Guide, array jobs): its
                    # first child, id:0, is watched on behalf of all.
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
                    # Batch's own time limit on waiting for capacity applies.
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
            # Without hosts nothing is billed. The count is kept: hosts that terminate themselves
            # come and go.
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
                    # The id before the colon: a child's array, whose cancellation cancels all its
                    # children (API reference, CancelJob), or the job itself.
                    "JobId.$": "States.ArrayGetItem(States.StringSplit($.jobId, ':'), 0)",
                    "Reason": HOSTS_IN_VAIN_REASON,
                },
                "Next": "Done",
            },
            "Done": {"Type": "Succeed"},
        },
    }


def _task(resource: str) -> dict[str, Any]:
    """Call the API, with retries: a throttled look must not end the watch."""
    retry = {"ErrorEquals": ["States.ALL"], "IntervalSeconds": 30, "MaxAttempts": 5}
    return {"Type": "Task", "Resource": resource, "Retry": [{**retry, "BackoffRate": 2}]}


def _choice(path: str, *, then: str, otherwise: str) -> dict[str, Any]:
    """Go on at ``then`` if there is something at ``path``."""
    present = {"Variable": path, "IsPresent": True, "Next": then}
    return {"Type": "Choice", "Choices": [present], "Default": otherwise}


def _keep(changed: dict[str, Any]) -> dict[str, Any]:
    """Keep what the next look needs, and drop the rest of what this one saw."""
    kept = {"jobId.$": "$.jobId", "queue.$": "$.queue"}
    if not any(name.startswith("inVain") for name in changed):
        kept["inVain.$"] = "$.inVain"
    return {"Type": "Pass", "Parameters": {**kept, **changed}}
