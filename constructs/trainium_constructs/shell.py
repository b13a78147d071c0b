"""Session Manager (AWS Systems Manager) access to hosts: audited, no open ports or SSH keys."""

from __future__ import annotations

from aws_cdk import aws_iam as iam

from trainium_constructs.nag import acknowledge_managed_policy

_POLICY = "AmazonSSMManagedInstanceCore"


def allow_sessions(role: iam.Role) -> None:
    """Allow Session Manager sessions on hosts with this role, for users who may start them."""
    role.add_managed_policy(iam.ManagedPolicy.from_aws_managed_policy_name(_POLICY))
    acknowledge_managed_policy(role, _POLICY, "AWS maintains this policy for the SSM agent")
