"""The function that moves jobs from a zone without capacity to the next zone's queue."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from trainium_catalogue.contract import TAG_DEPLOYMENT
from trainium_constructs.nag import acknowledge_wildcards
from trainium_constructs.scheduled import CheckedDeployment, ScheduledFunction


class ZoneMoves(ScheduledFunction):
    """A function that cancels jobs without capacity and resubmits them in the next zone.

    A second compute environment on the same queue does not help: for a multi-node job the first
    one blocks the queue (AWS Batch User Guide, jobs stuck in RUNNABLE due to capacity).
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        deployment: CheckedDeployment,
        queue_arns: Sequence[str],
        definition_arns: Sequence[str],
    ) -> None:
        """Create the function.

        Args:
            deployment: The deployment, in whose bucket submissions reserve run names.
            queue_arns: Queues to which jobs are moved.
            definition_arns: Job definitions of the jobs.
        """
        super().__init__(scope, construct_id, deployment=deployment)
        self._allow_moving(deployment.name, [*queue_arns, *definition_arns])
        deployment.bucket.grant_submitting(self.role)
        self._schedule(
            "notifier.function.move_handler",
            f"Moves jobs of the Trainium deployment {deployment.name} to the next zone",
        )

    def _allow_moving(self, deployment: str, submit_arns: Sequence[str]) -> None:
        place = f"{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}"
        jobs = f"arn:{cdk.Aws.PARTITION}:batch:{place}:job/*"
        ours = {"StringEquals": {f"aws:ResourceTag/{TAG_DEPLOYMENT}": deployment}}
        # For a new job, SubmitJob checks the tags in the request (AWS Batch User Guide).
        tagged = {"StringEquals": {f"aws:RequestTag/{TAG_DEPLOYMENT}": deployment}}
        for actions, resources, conditions in (
            (["batch:CancelJob"], [jobs], ours),
            (["batch:SubmitJob"], list(submit_arns), None),
            (["batch:TagResource"], [jobs], tagged),
        ):
            self.role.add_to_policy(
                iam.PolicyStatement(actions=actions, resources=resources, conditions=conditions)
            )
        acknowledge_wildcards(
            self.role,
            ["arn:<AWS::Partition>:batch:<AWS::Region>:<AWS::AccountId>:job/*"],
            "jobs are created later; a condition restricts this to the deployment's",
        )
