"""The function that moves jobs from a zone without capacity to the next zone's queue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from trainium_catalogue.contract import TAG_DEPLOYMENT
from trainium_constructs.nag import acknowledge_wildcards
from trainium_constructs.scheduled import ScheduledFunction
from trainium_constructs.storage import TrainingBucket


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
        deployment: str,
        queue_arns: Sequence[str],
        definition_arns: Sequence[str],
        sources: Path,
        bucket: TrainingBucket,
        job_logs: logs.ILogGroup,
        log_retention_days: int,
    ) -> None:
        """Create the function.

        Args:
            deployment: Name of the deployment whose jobs are moved.
            queue_arns: Queues to which jobs are moved.
            definition_arns: Job definitions of the jobs.
            sources: Folder that contains the packages in ``scheduled.PACKAGES``.
            bucket: Bucket of the runs, in which submissions reserve run names.
            job_logs: Log group of the jobs.
            log_retention_days: Retention of the function's own log.
        """
        super().__init__(
            scope,
            construct_id,
            deployment=deployment,
            job_logs=job_logs,
            log_retention_days=log_retention_days,
        )
        self._allow_moving(deployment, [*queue_arns, *definition_arns])
        bucket.grant_submitting(self.role)
        self._schedule(
            "notifier.function.move_handler",
            f"Moves jobs of the Trainium deployment {deployment} to the next zone",
            sources=sources,
            environment={},
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
