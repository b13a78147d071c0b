"""A row of the table: the fault, the type it concerns, AWS's message, and the check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trainium_emulators.aws.refusals.request import AwsRequest

ENVIRONMENT: Final = "AWS::Batch::ComputeEnvironment"
QUEUE: Final = "AWS::Batch::JobQueue"
DEFINITION: Final = "AWS::Batch::JobDefinition"
SUBMIT: Final = "batch:SubmitJob"

LAUNCH_TEMPLATE: Final = "AWS::EC2::LaunchTemplate"
PLACEMENT_GROUP: Final = "AWS::EC2::PlacementGroup"
SECURITY_GROUP: Final = "AWS::EC2::SecurityGroup"
INGRESS: Final = "AWS::EC2::SecurityGroupIngress"
EGRESS: Final = "AWS::EC2::SecurityGroupEgress"
ENDPOINT: Final = "AWS::EC2::VPCEndpoint"
SUBNET: Final = "AWS::EC2::Subnet"
VPC: Final = "AWS::EC2::VPC"
GATEWAY_ATTACHMENT: Final = "AWS::EC2::VPCGatewayAttachment"
ROUTE: Final = "AWS::EC2::Route"
FLOW_LOG: Final = "AWS::EC2::FlowLog"
NAT_GATEWAY: Final = "AWS::EC2::NatGateway"

FILE_SYSTEM: Final = "AWS::FSx::FileSystem"
ASSOCIATION: Final = "AWS::FSx::DataRepositoryAssociation"

CLUSTER: Final = "AWS::EKS::Cluster"
NODE_GROUP: Final = "AWS::EKS::Nodegroup"
ACCESS_ENTRY: Final = "AWS::EKS::AccessEntry"
ADDON: Final = "AWS::EKS::Addon"
POD_IDENTITY: Final = "AWS::EKS::PodIdentityAssociation"

BUCKET: Final = "AWS::S3::Bucket"
BUCKET_POLICY: Final = "AWS::S3::BucketPolicy"
REPOSITORY: Final = "AWS::ECR::Repository"
KEY: Final = "AWS::KMS::Key"
PARAMETER: Final = "AWS::SSM::Parameter"
LOG_GROUP: Final = "AWS::Logs::LogGroup"

ROLE: Final = "AWS::IAM::Role"
POLICY: Final = "AWS::IAM::Policy"
INSTANCE_PROFILE: Final = "AWS::IAM::InstanceProfile"
FUNCTION: Final = "AWS::Lambda::Function"

TEMPLATE: Final = "template"
CHART: Final = "Custom::AWSCDK-EKS-HelmChart"


Fill = tuple[object, ...]
"""Values for the ``{}`` of a message, in order."""
Check = Callable[[AwsRequest], Iterable[Fill]]
"""Yields once per fault; nothing if AWS accepts the request."""


class AwsOutcome(StrEnum):
    """AWS's reaction to a faulty request."""

    REFUSED = "refused"
    """The call, or the creation of the resource, fails."""
    FAILS_LATER = "fails later"
    """AWS accepts it, but what it describes can never start."""
    IGNORED = "ignored"
    """AWS accepts it, but part of it has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsRefusal:
    """One row of the table: a condition, AWS's message and the check that finds it."""

    id: str
    on: str
    """CloudFormation type, ``<service>:<Operation>`` of an API, or ``template``."""
    condition: str
    """The fault, in one sentence."""
    words: str
    """AWS's message, with ``{}`` where it names a value of the request."""
    source: str
    """Public URL of the source."""
    check: Check
    verbatim: bool = True
    """True if ``words`` are AWS's own; false if they paraphrase its documentation."""
    judge: str = ""
    """Rule of github.com/badmintoncryer/cdk-preflight, confirmed by AWS refusing the same."""
    outcome: AwsOutcome = AwsOutcome.REFUSED
    known_to: frozenset[str] = frozenset()
    """Tools (``cfn-lint``, ``moto``) that also detect it."""

    def messages(self, request: AwsRequest) -> list[str]:
        """Return AWS's message to a request, once per fault."""
        return [self.words.format(*fill) for fill in self.check(request)]


def when(condition: bool, *fill: object) -> list[Fill]:
    """Return one fault if a condition holds, else none."""
    return [fill] if condition else []


CFN_LINT = frozenset({"cfn-lint"})
MOTO = frozenset({"moto"})
