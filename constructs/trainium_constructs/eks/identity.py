"""Pod Identity: a role for one service account of one cluster."""

from __future__ import annotations

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct


def pod_role(
    scope: Construct, construct_id: str, *, cluster: eks.ICluster, namespace: str, account: str
) -> iam.Role:
    """The role of a service account; its pods get credentials from EKS, not from their node."""
    service = iam.ServicePrincipal("pods.eks.amazonaws.com").with_conditions(
        # EKS sets these tags on each session (EKS User Guide, Pod Identity, role trust policy).
        {
            "StringEquals": {
                "aws:RequestTag/kubernetes-namespace": namespace,
                "aws:RequestTag/kubernetes-service-account": account,
            }
        }
    )
    role = iam.Role(scope, f"{construct_id}Role", assumed_by=iam.SessionTagsPrincipal(service))
    eks.CfnPodIdentityAssociation(
        scope,
        f"{construct_id}Identity",
        cluster_name=cluster.cluster_name,
        namespace=namespace,
        service_account=account,
        role_arn=role.role_arn,
    )
    return role
