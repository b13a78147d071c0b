"""A log group with a retention that is deleted with its stack."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct


class RetainedLogs(Construct):
    """A log group with a retention in days."""

    def __init__(
        self, scope: Construct, construct_id: str, *, retention_days: int, name: str | None = None
    ) -> None:
        """Keep records for ``retention_days``, one of the periods that CloudWatch Logs knows.

        Give ``name`` if the writer finds the group by name.
        """
        super().__init__(scope, construct_id)
        self.log_group = logs.LogGroup(
            self, "Group", log_group_name=name, removal_policy=cdk.RemovalPolicy.DESTROY
        )
        # The L2 takes an enumeration that gives the same numbers names.
        resource = self.log_group.node.default_child
        assert isinstance(resource, logs.CfnLogGroup)
        resource.retention_in_days = retention_days
