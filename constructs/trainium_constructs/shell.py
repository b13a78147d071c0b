"""AWS Systems Manager sessions on a host: without open ports or keys, and audited."""

from __future__ import annotations

from aws_cdk import aws_iam as iam

from trainium_constructs.nag import acknowledge_managed_policy

_POLICY = "AmazonSSMManagedInstanceCore"


def allow_sessions(role: iam.Role) -> None:
    """Let hosts with this role accept sessions from users who may start them."""
    role.add_managed_policy(iam.ManagedPolicy.from_aws_managed_policy_name(_POLICY))
    acknowledge_managed_policy(role, _POLICY, "AWS maintains this policy for the SSM agent")
