"""The Kubernetes version of a node group, which the L2 does not say."""

from __future__ import annotations

from aws_cdk import aws_eks_v2 as eks


def follow_cluster(group: eks.Nodegroup, kubernetes_version: str) -> None:
    """Let ``group`` take the cluster's new version, say ``1.36``, together with its new image.

    With the image's release alone, CloudFormation keeps the version and refuses the release
    (eksctl-io/eksctl issue 7976).
    """
    resource_of(group).version = kubernetes_version


def resource_of(group: eks.Nodegroup) -> eks.CfnNodegroup:
    """What CloudFormation sees of ``group``."""
    resource = group.node.default_child
    assert isinstance(resource, eks.CfnNodegroup)
    return resource
