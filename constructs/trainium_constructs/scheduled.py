"""Scheduled Lambda functions from this repository's code that check a deployment's runs.

Scheduled, not triggered by Batch's events: a run that waits or makes no progress emits none, nor
does a job in the cluster, and polling does not depend on the delivery of events.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from trainium_catalogue.contract import ENV_DEPLOYMENT, ssm_root
from trainium_constructs.log_group import ExpiringLogGroup
from trainium_constructs.nag import acknowledge_wildcards
from trainium_constructs.storage import TrainingBucket

PACKAGES = ("notifier", "jobs", "trainium_catalogue")
"""Folders of the functions' code, which otherwise needs only the runtime's boto3."""
PERIOD_MINUTES = 5
_DESCRIBE = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "batch:DescribeComputeEnvironments",
    "batch:DescribeJobQueues",
    "batch:DescribeJobs",
    "batch:ListJobs",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeInstances",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
)
"""Actions without resource-level permissions (Service Authorization Reference)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDeployment:
    """The deployment whose runs a function checks, and the function's code."""

    name: str
    sources: Path
    """Folder that contains the packages in ``PACKAGES``."""
    bucket: TrainingBucket
    """Bucket of the runs."""
    job_logs: logs.ILogGroup
    log_retention_days: int
    """Retention of the function's own log."""


class ScheduledFunction(Construct):
    """A function with the read permissions of `jobs explain`; subclasses grant more."""

    def __init__(
        self, scope: Construct, construct_id: str, *, deployment: CheckedDeployment
    ) -> None:
        """Create the function's role and log group."""
        super().__init__(scope, construct_id)
        self._deployment = deployment
        self._log = ExpiringLogGroup(
            self, "Logs", retention_days=deployment.log_retention_days
        ).log_group
        self.role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        self._log.grant_write(self.role)
        self._allow_reading()

    def _schedule(
        self, handler: str, description: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Create the function for a handler in the sources, and its schedule."""
        function = lambda_.Function(
            self,
            "Function",
            description=description,
            runtime=lambda_.Runtime.PYTHON_3_14,
            handler=handler,
            code=lambda_.Code.from_asset(copy_packages(self._deployment.sources)),
            role=self.role,
            log_group=self._log,
            memory_size=512,
            timeout=cdk.Duration.minutes(PERIOD_MINUTES),
            # Each invocation checks everything, but by default Lambda retries a failed one twice:
            # docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html
            retry_attempts=0,
            environment={ENV_DEPLOYMENT: self._deployment.name, **(environment or {})},
        )
        events.Rule(
            self,
            "Schedule",
            schedule=events.Schedule.rate(cdk.Duration.minutes(PERIOD_MINUTES)),
            # Retries of the delivery to Lambda, not of a failed invocation.
            targets=[targets.LambdaFunction(function, retry_attempts=0)],
        )

    def _allow_reading(self) -> None:
        """Grant the read permissions of `jobs explain`."""
        role, name = self.role, self._deployment.name
        place = f"{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}"
        by_resource: dict[str, Sequence[str]] = {
            f"ssm:{place}:parameter{ssm_root(name)}/*": ["ssm:GetParameters"],
            # A cluster's name ends with part of its stack's id.
            f"eks:{place}:nodegroup/trainium-{name}-eks-*": ["eks:DescribeNodegroup"],
            f"servicequotas:{place}:ec2/*": ["servicequotas:GetServiceQuota"],
            f"ec2:{place}:instance/*": ["ec2:GetConsoleOutput"],
        }
        role.add_to_policy(iam.PolicyStatement(actions=list(_DESCRIBE), resources=["*"]))
        read_logs = ["logs:DescribeLogStreams", "logs:GetLogEvents"]
        job_logs = self._deployment.job_logs.log_group_arn
        role.add_to_policy(iam.PolicyStatement(actions=read_logs, resources=[job_logs]))
        for rest, actions in by_resource.items():
            resource = f"arn:{cdk.Aws.PARTITION}:{rest}"
            role.add_to_policy(iam.PolicyStatement(actions=list(actions), resources=[resource]))
        patterns = (
            f"arn:<AWS::Partition>:{rest.replace(place, '<AWS::Region>:<AWS::AccountId>')}"
            for rest in by_resource
        )
        acknowledge_wildcards(
            role, ["*", *patterns], "read-only access to resources that are created later"
        )


def copy_packages(sources: Path) -> str:
    """Copy the packages without bytecode, so that the asset's hash depends only on the sources.

    Make files readable by all: a strict umask makes them readable only by their owner, and Lambda
    runs as another user (github.com/aws/aws-cdk/issues/8233).
    """
    folder = Path(cdk.FileSystem.mkdtemp("function-"))
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(sources / name, folder / name, ignore=ignored)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return str(folder)
