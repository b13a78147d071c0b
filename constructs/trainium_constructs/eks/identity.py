"""EKS Pod Identity: a role for one service account of one cluster."""

from __future__ import annotations

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct


class PodRole(Construct):
    """A role whose credentials pods get from EKS, not from their node.

    Pods get them at creation, so anything that creates pods must depend on this construct.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: eks.ICluster,
        namespace: str,
        account: str,
    ) -> None:
        """Create a role without permissions for service account ``account`` in ``namespace``."""
        super().__init__(scope, construct_id)
        service = iam.ServicePrincipal("pods.eks.amazonaws.com").with_conditions(
            # EKS sets these tags on each session (EKS User Guide, Pod Identity, role trust policy
            # and session tags). The cluster's ARN includes account and region.
            {
                "StringEquals": {
                    "aws:RequestTag/eks-cluster-arn": cluster.cluster_arn,
                    "aws:RequestTag/kubernetes-namespace": namespace,
                    "aws:RequestTag/kubernetes-service-account": account,
                }
            }
        )
        self.role = iam.Role(self, "Role", assumed_by=iam.SessionTagsPrincipal(service))
        eks.CfnPodIdentityAssociation(
            self,
            "Identity",
            cluster_name=cluster.cluster_name,
            namespace=namespace,
            service_account=account,
            role_arn=self.role.role_arn,
        )
