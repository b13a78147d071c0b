"""Who reaches the API of a cluster from inside its VPC: kubectl and helm, and whom the user names.

The nodes do anyway: they and the control plane share the group that EKS makes.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_ec2 as ec2
from constructs import Construct


class ApiCallers(Construct):
    """Two groups: one of the control plane, and one of the functions that call it."""

    def __init__(
        self, scope: Construct, construct_id: str, *, vpc: ec2.IVpc, ranges: Sequence[str]
    ) -> None:
        """Create the groups; ``ranges`` are addresses that may call the API too."""
        super().__init__(scope, construct_id)
        # Not the group that EKS makes, which is the CDK's choice: while the interfaces of the
        # functions wait for their end, EKS deletes its cluster and leaves a group in use behind,
        # and with it the VPC (aws/aws-k8s-tester pull request 416).
        self.functions = ec2.SecurityGroup(
            self,
            "Functions",
            vpc=vpc,
            description="kubectl and helm of the stack: HTTPS out",
            allow_all_outbound=False,
        )
        self.functions.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.HTTPS, "HTTPS")
        self.control_plane = ec2.SecurityGroup(
            self, "ControlPlane", vpc=vpc, description="the control plane: HTTPS from its callers"
        )
        self.control_plane.add_ingress_rule(self.functions, ec2.Port.HTTPS, "kubectl and helm")
        for cidr in ranges:
            self.control_plane.add_ingress_rule(ec2.Peer.ipv4(cidr), ec2.Port.HTTPS, "users")
