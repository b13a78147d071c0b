"""AWS Systems Manager sessions on a host: no open port, no key, and a record of each."""

from __future__ import annotations

from aws_cdk import aws_iam as iam

from trainium_constructs.nag import acknowledge_managed_policy

_POLICY = "AmazonSSMManagedInstanceCore"


def allow_sessions(role: iam.Role) -> None:
    """Let hosts with this role accept sessions from users allowed to start them."""
    role.add_managed_policy(iam.ManagedPolicy.from_aws_managed_policy_name(_POLICY))
    acknowledge_managed_policy(
        role, _POLICY, "AWS keeps this policy in step with what the SSM agent needs"
    )
