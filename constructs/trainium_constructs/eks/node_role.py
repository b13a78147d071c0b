"""The role of a node: what a kubelet may do, and nothing that a pod needs."""

from __future__ import annotations

from aws_cdk import aws_iam as iam
from constructs import Construct

from trainium_constructs.nag import acknowledge_managed_policy
from trainium_constructs.shell import allow_sessions

# Of a node itself. Its pods have roles of their own, the network plug-in too.
_NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")


def node_role(scope: Construct, *, shell: bool) -> iam.Role:
    """The role ``NodeRole`` of a group; ``shell`` lets its nodes accept sessions."""
    role = iam.Role(
        scope,
        "NodeRole",
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[
            iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in _NODE_POLICIES
        ],
    )
    for name in _NODE_POLICIES:
        acknowledge_managed_policy(
            role, name, "AWS keeps this policy in step with what the kubelet needs"
        )
    if shell:
        allow_sessions(role)
    return role
