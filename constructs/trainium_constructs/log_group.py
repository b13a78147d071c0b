"""A log group with a retention period, deleted with its stack."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct


class ExpiringLogGroup(Construct):
    """A log group whose events expire after a number of days."""

    def __init__(
        self, scope: Construct, construct_id: str, *, retention_days: int, name: str | None = None
    ) -> None:
        """Keep log events for ``retention_days``, one of the periods that CloudWatch Logs accepts.

        Set ``name`` if the writer refers to the group by name.
        """
        super().__init__(scope, construct_id)
        self.log_group = logs.LogGroup(
            self, "Group", log_group_name=name, removal_policy=cdk.RemovalPolicy.DESTROY
        )
        # The L2 construct accepts only ``RetentionDays``, an enumeration, instead of a number.
        resource = self.log_group.node.default_child
        assert isinstance(resource, logs.CfnLogGroup)
        resource.retention_in_days = retention_days
