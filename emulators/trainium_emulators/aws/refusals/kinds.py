"""What rows are on: CloudFormation types, API operations, and a template as a whole."""

from typing import Final

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
