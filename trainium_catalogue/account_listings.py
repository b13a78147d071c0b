"""Calls that list the resources of each kind that a deployment can leave behind in an account.

`jobs down` and the rehearsal use them to look for leftovers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Listing:
    """A call that lists all resources of one kind."""

    service: str
    """Name in boto3 and in ARNs."""
    kind: str
    operation: str
    items: str
    """JMESPath of the existing resources in the response: objects or ids."""
    id: str | None = None
    """Field of an object that identifies it; None if the items are ids."""
    arns: tuple[str, ...] = ()
    """Prefixes of the last ARN component; empty if the tagging API does not list the kind."""
    arguments: tuple[tuple[str, Any], ...] = ()
    account: str = ""
    """Name of the argument for the account id, if any."""

    def arguments_of(self, sts: Any) -> dict[str, Any]:
        """Build the call's arguments, looking up the account id with an STS client."""
        found = dict(self.arguments)
        if self.account:
            found[self.account] = sts.get_caller_identity()["Account"]
        return found


_LIVE_STACKS = "Stacks[?StackStatus!='DELETE_COMPLETE']"
_LIVE_INSTANCES = "Reservations[].Instances[?State.Name!='terminated'][]"
_LIVE_NAT_GATEWAYS = "NatGateways[?State!='deleted']"
_LIVE_ENDPOINTS = "VpcEndpoints[?State!='deleted']"
_OWN_ROLES = "Roles[?!starts_with(Path, '/aws-service-role/')]"
# Resources deleted with the cluster.
_CLUSTER_ARNS = ("cluster/", "nodegroup/", "addon/", "podidentityassociation/", "access-entry/")
# The emulator lists thousands of parameters published by AWS as if the account owned them.
_OWN_PARAMETERS = {
    "Key": "Name",
    "Option": "BeginsWith",
    "Values": ["/trainium/", "/rehearsal/", "/cdk-bootstrap/", "CFN-"],
}


def _ec2(kind: str, plural: str, items: str, id: str, arn: str) -> Listing:
    return Listing("ec2", kind, f"describe_{plural}", items, id, (f"{arn}/",))


LISTINGS: Final = (
    Listing(
        *("cloudformation", "stack", "describe_stacks", _LIVE_STACKS, "StackName"), arns=("stack/",)
    ),
    _ec2("VPC", "vpcs", "Vpcs", "VpcId", "vpc"),
    _ec2("subnet", "subnets", "Subnets", "SubnetId", "subnet"),
    _ec2("security group", "security_groups", "SecurityGroups", "GroupId", "security-group"),
    _ec2(
        *("network interface", "network_interfaces", "NetworkInterfaces"),
        *("NetworkInterfaceId", "network-interface"),
    ),
    _ec2("address", "addresses", "Addresses", "AllocationId", "elastic-ip"),
    _ec2("NAT gateway", "nat_gateways", _LIVE_NAT_GATEWAYS, "NatGatewayId", "natgateway"),
    _ec2("route table", "route_tables", "RouteTables", "RouteTableId", "route-table"),
    _ec2(
        *("internet gateway", "internet_gateways", "InternetGateways"),
        *("InternetGatewayId", "internet-gateway"),
    ),
    _ec2("endpoint", "vpc_endpoints", _LIVE_ENDPOINTS, "VpcEndpointId", "vpc-endpoint"),
    _ec2("network ACL", "network_acls", "NetworkAcls", "NetworkAclId", "network-acl"),
    _ec2(
        *("launch template", "launch_templates", "LaunchTemplates"),
        *("LaunchTemplateId", "launch-template"),
    ),
    _ec2("flow log", "flow_logs", "FlowLogs", "FlowLogId", "vpc-flow-log"),
    _ec2("placement group", "placement_groups", "PlacementGroups", "GroupName", "placement-group"),
    _ec2("instance", "instances", _LIVE_INSTANCES, "InstanceId", "instance"),
    _ec2("volume", "volumes", "Volumes", "VolumeId", "volume"),
    Listing(
        *("autoscaling", "Auto Scaling group", "describe_auto_scaling_groups"),
        *("AutoScalingGroups", "AutoScalingGroupName"),
    ),
    Listing("s3", "bucket", "list_buckets", "Buckets", "Name", arns=("",)),
    Listing(
        *("ecr", "repository", "describe_repositories", "repositories", "repositoryName"),
        arns=("repository/",),
    ),
    Listing(
        *("batch", "compute environment", "describe_compute_environments"),
        *("computeEnvironments[?status!='DELETED']", "computeEnvironmentName"),
        arns=("compute-environment/",),
    ),
    Listing(
        *("batch", "job queue", "describe_job_queues"),
        *("jobQueues[?status!='DELETED']", "jobQueueName"),
        arns=("job-queue/",),
    ),
    Listing(
        *("batch", "job definition", "describe_job_definitions"),
        *("jobDefinitions", "jobDefinitionArn"),
        arns=("job-definition/",),
        arguments=(("status", "ACTIVE"),),
    ),
    Listing(
        *("fsx", "file system", "describe_file_systems", "FileSystems", "FileSystemId"),
        arns=("file-system/",),
    ),
    Listing("iam", "role", "list_roles", _OWN_ROLES, "RoleName"),
    Listing(
        *("iam", "policy", "list_policies", "Policies", "Arn"),
        arns=("policy/",),
        arguments=(("Scope", "Local"),),
    ),
    Listing(
        *("iam", "instance profile", "list_instance_profiles"),
        *("InstanceProfiles", "InstanceProfileName"),
        arns=("instance-profile/",),
    ),
    Listing(
        *("iam", "identity provider", "list_open_id_connect_providers"),
        *("OpenIDConnectProviderList", "Arn"),
        arns=("oidc-provider/",),
    ),
    Listing(
        "lambda", "function", "list_functions", "Functions", "FunctionName", arns=("function:",)
    ),
    Listing("lambda", "layer", "list_layers", "Layers", "LayerName"),
    Listing("eks", "cluster", "list_clusters", "clusters", arns=_CLUSTER_ARNS),
    Listing("kms", "key", "list_keys", "Keys", "KeyId", arns=("key/",)),
    Listing("kms", "alias", "list_aliases", "Aliases[?TargetKeyId]", "AliasName"),
    Listing(
        *("logs", "log group", "describe_log_groups", "logGroups", "logGroupName"),
        arns=("log-group:",),
    ),
    Listing(
        *("ssm", "parameter", "describe_parameters", "Parameters", "Name"),
        arns=("parameter",),
        arguments=(("ParameterFilters", [_OWN_PARAMETERS]),),
    ),
    Listing(
        *("secretsmanager", "secret", "list_secrets", "SecretList[?!DeletedDate]", "ARN"),
        arns=("secret:",),
    ),
    Listing("sns", "topic", "list_topics", "Topics", "TopicArn", arns=("",)),
    Listing("events", "rule", "list_rules", "Rules", "Name", arns=("rule/",)),
    Listing(
        *("budgets", "budget", "describe_budgets", "Budgets", "BudgetName"),
        arns=("budget/",),
        account="AccountId",
    ),
)
