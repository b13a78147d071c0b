"""Examples of EC2 and FSx."""

from __future__ import annotations

import base64
from typing import Any

from tests.emulators.refusal_examples.example import (
    NETWORK,
    REMOVED,
    Example,
    Json,
    att,
    ref,
    resource,
    trust,
)

NIC: Json = {
    "DeviceIndex": 0,
    "NetworkCardIndex": 0,
    "InterfaceType": "efa",
    "Groups": [ref("Group")],
}
SECOND: Json = {**NIC, "DeviceIndex": 1, "NetworkCardIndex": 1, "InterfaceType": "efa-only"}
RULE: Json = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "CidrIp": "10.0.0.0/16"}


BASE: Json = {
    **NETWORK,
    "Template": resource(
        "AWS::EC2::LaunchTemplate",
        LaunchTemplateData={
            "InstanceType": "trn1.32xlarge",
            "NetworkInterfaces": [NIC, SECOND],
            "BlockDeviceMappings": [
                {"DeviceName": "/dev/xvda", "Ebs": {"VolumeType": "gp3", "Throughput": 500}}
            ],
        },
    ),
    "Placement": resource("AWS::EC2::PlacementGroup", Strategy="cluster"),
    "In": resource("AWS::EC2::SecurityGroupIngress", GroupId=att("Group", "GroupId"), **RULE),
    "Out": resource("AWS::EC2::SecurityGroupEgress", GroupId=att("Group", "GroupId"), **RULE),
    "Endpoint": resource(
        "AWS::EC2::VPCEndpoint",
        VpcEndpointType="Interface",
        ServiceName="com.amazonaws.us-west-2.ecr.api",
        VpcId=ref("Vpc"),
        SubnetIds=[ref("One")],
        SecurityGroupIds=[att("Group", "GroupId")],
        PrivateDnsEnabled=True,
    ),
    "Gateway": resource(
        "AWS::EC2::VPCEndpoint",
        VpcEndpointType="Gateway",
        ServiceName="com.amazonaws.us-west-2.s3",
        VpcId=ref("Vpc"),
        RouteTableIds=[ref("Table")],
    ),
    "Table": resource("AWS::EC2::RouteTable", VpcId=ref("Vpc")),
    "Internet": resource("AWS::EC2::InternetGateway"),
    "Attachment": resource(
        "AWS::EC2::VPCGatewayAttachment", VpcId=ref("Vpc"), InternetGatewayId=ref("Internet")
    ),
    "Route": resource(
        "AWS::EC2::Route",
        RouteTableId=ref("Table"),
        DestinationCidrBlock="0.0.0.0/0",
        GatewayId=ref("Internet"),
    ),
    "Writer": resource(
        "AWS::IAM::Role", AssumeRolePolicyDocument=trust("vpc-flow-logs.amazonaws.com")
    ),
    "Logs": resource("AWS::Logs::LogGroup"),
    "Flow": resource(
        "AWS::EC2::FlowLog",
        ResourceId=ref("Vpc"),
        ResourceType="VPC",
        TrafficType="ALL",
        LogDestinationType="cloud-watch-logs",
        LogGroupName=ref("Logs"),
        DeliverLogsPermissionArn=att("Writer", "Arn"),
    ),
    "Address": resource("AWS::EC2::EIP", Domain="vpc"),
    "Nat": resource(
        "AWS::EC2::NatGateway", SubnetId=ref("One"), AllocationId=att("Address", "AllocationId")
    ),
    "Lustre": resource(
        "AWS::EC2::SecurityGroup",
        GroupDescription="Lustre",
        VpcId=ref("Vpc"),
        SecurityGroupIngress=[{**RULE, "FromPort": 988, "ToPort": 988}],
    ),
    "FileSystem": resource(
        "AWS::FSx::FileSystem",
        FileSystemType="LUSTRE",
        FileSystemTypeVersion="2.15",
        StorageCapacity=2400,
        SubnetIds=[ref("One")],
        SecurityGroupIds=[att("Lustre", "GroupId")],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
    ),
    "Link": resource(
        "AWS::FSx::DataRepositoryAssociation",
        FileSystemId=ref("FileSystem"),
        FileSystemPath="/datasets",
        DataRepositoryPath="s3://bucket/datasets",
    ),
}


def _of(bad: Json, good: Json | None = None, *, update: bool = False) -> Example:
    return Example(base=BASE, bad=bad, good=good or {}, update=update)


def _template(bad: Json, good: Json | None = None) -> Example:
    path = "Template.LaunchTemplateData."
    return _of(
        {path + key: value for key, value in bad.items()},
        {path + key: value for key, value in (good or {}).items()},
    )


def _lustre(bad: Json, good: Json | None = None, *, update: bool = False) -> Example:
    return _of(
        {f"FileSystem.{key}": value for key, value in bad.items()},
        {f"FileSystem.{key}": value for key, value in (good or {}).items()},
        update=update,
    )


def _user_data(size: int) -> str:
    return base64.b64encode(b"x" * size).decode()


def _association(**changes: Any) -> Json:
    return resource(
        "AWS::FSx::DataRepositoryAssociation", **{**BASE["Link"]["Properties"], **changes}
    )


_ARROW = "HTTPS \N{RIGHTWARDS ARROW} endpoints"
_BLOCK = "InstanceMarketOptions.MarketType"
_TARGET = "CapacityReservationSpecification.CapacityReservationTarget"
_RESERVATION = {"CapacityReservationId": "cr-0123456789abcdef0"}
_NINE = {
    f"Link{n}": _association(FileSystemPath=f"/{n}", DataRepositoryPath=f"s3://bucket/{n}")
    for n in range(8)
}

EXAMPLES: dict[str, Example] = {
    "template-user-data": _template(
        {"UserData": _user_data(16_385)}, {"UserData": _user_data(16_384)}
    ),
    "template-throughput": _template({"BlockDeviceMappings.0.Ebs.Throughput": 800}),
    "template-type-and-requirements": _template(
        {"InstanceRequirements": {"VCpuCount": {"Min": 1}, "MemoryMiB": {"Min": 1024}}}
    ),
    "template-name": _of(
        {"Template.LaunchTemplateName": "my template"}, {"Template.LaunchTemplateName": "mine"}
    ),
    "template-groups-beside-interfaces": _template({"SecurityGroupIds": [ref("Group")]}),
    "template-public-address": _template(
        {"NetworkInterfaces.0.AssociatePublicIpAddress": True},
        {"NetworkInterfaces": [{**NIC, "AssociatePublicIpAddress": True}]},
    ),
    "template-efa-unsupported": _template(
        {"InstanceType": "trn1.2xlarge", "NetworkInterfaces": [NIC]},
        {
            "InstanceType": "trn1.2xlarge",
            "NetworkInterfaces": [{**NIC, "InterfaceType": "interface"}],
        },
    ),
    "template-network-card": _template({"NetworkInterfaces.1.NetworkCardIndex": 8}),
    "template-same-slot": _template({"NetworkInterfaces": [NIC, NIC]}),
    "template-primary-efa-only": _template(
        {"NetworkInterfaces": [{**NIC, "InterfaceType": "efa-only"}]}
    ),
    "template-efa-only-address": _template(
        {"NetworkInterfaces.1.SecondaryPrivateIpAddressCount": 1}
    ),
    "template-no-primary": _template({"NetworkInterfaces": [SECOND]}),
    "template-burstable-in-cluster": _template(
        {
            "InstanceType": "t3.large",
            "Placement": {"GroupName": ref("Placement")},
            "NetworkInterfaces": REMOVED,
        },
        {"Placement": {"GroupName": ref("Placement")}},
    ),
    "template-block-without-reservation": _template(
        {_BLOCK: "capacity-block"}, {_BLOCK: "capacity-block", _TARGET: _RESERVATION}
    ),
    "template-block-unsold": _template(
        {_BLOCK: "capacity-block", _TARGET: _RESERVATION, "InstanceType": "trn1n.32xlarge"},
        {_BLOCK: "capacity-block", _TARGET: _RESERVATION},
    ),
    "placement-partitions": _of(
        {"Placement.PartitionCount": 2},
        {"Placement.PartitionCount": 2, "Placement.Strategy": "partition"},
    ),
    "placement-spread": _of(
        {"Placement.SpreadLevel": "rack"},
        {"Placement.SpreadLevel": "rack", "Placement.Strategy": "spread"},
    ),
    "group-description": _of({"Group.GroupDescription": "the cluster's own"}),
    "group-description-not-ascii": _of({"Group.GroupDescription": _ARROW}),
    "rule-description-own": _of(
        {"Group.SecurityGroupIngress": [{**RULE, "Description": "nodes' HTTPS"}]},
        {"Group.SecurityGroupIngress": [{**RULE, "Description": "HTTPS of nodes"}]},
    ),
    "rule-description-ingress": _of({"In.Description": "nodes' HTTPS"}, {"In.Description": "x"}),
    "rule-description-egress": _of({"Out.Description": "nodes' HTTPS"}, {"Out.Description": "x"}),
    "group-name": _of({"Group.GroupName": "sg-mine"}, {"Group.GroupName": "mine"}),
    "group-name-default": _of({"Group.GroupName": "default"}, {"Group.GroupName": "mine"}),
    "group-rules": _of(
        {"Group.SecurityGroupIngress": [{**RULE, "FromPort": n, "ToPort": n} for n in range(61)]},
        {"Group.SecurityGroupIngress": [{**RULE, "FromPort": n, "ToPort": n} for n in range(60)]},
    ),
    "rule-ports-own": _of(
        {"Group.SecurityGroupEgress": [{**RULE, "FromPort": 444}]},
        {"Group.SecurityGroupEgress": [RULE]},
    ),
    "rule-ports-ingress": _of({"In.ToPort": 65_536}),
    "rule-ports-egress": _of({"Out.ToPort": 65_536}),
    "group-cidr": _of(
        {"Group.SecurityGroupIngress": [{**RULE, "CidrIp": "10.0.0.0/33"}]},
        {"Group.SecurityGroupIngress": [RULE]},
    ),
    "endpoint-gateway-service": _of({"Gateway.ServiceName": "com.amazonaws.us-west-2.ecs"}),
    "endpoint-gateway-subnets": _of({"Gateway.SubnetIds": [ref("One")]}),
    "endpoint-region": _of({"Endpoint.ServiceName": "com.amazonaws.us-east-1.ecs"}),
    "endpoint-zones": _of(
        {"Endpoint.SubnetIds": [ref("One"), ref("Two")], "Two.AvailabilityZoneId": "usw2-az1"},
        {"Endpoint.SubnetIds": [ref("One"), ref("Two")]},
    ),
    "endpoint-private-name-taken": _of(
        {"Again": BASE["Endpoint"], "Endpoint.VpcEndpointType": "Interface"},
        {"Again": resource("AWS::EC2::VPCEndpoint", **{
            **BASE["Endpoint"]["Properties"], "PrivateDnsEnabled": False,
        })},
    ),
    "endpoint-without-dns": _of(
        {"Vpc.EnableDnsHostnames": False, "Endpoint.VpcEndpointType": "Interface"}
    ),
    "vpc-reserved-range": _of({"Vpc.CidrBlock": "169.254.0.0/16"}),
    "vpc-second-gateway": _of(
        {
            "Again": resource(
                "AWS::EC2::VPCGatewayAttachment",
                VpcId=ref("Vpc"),
                InternetGatewayId=ref("Internet"),
            ),
            "Attachment.VpcId": ref("Vpc"),
        },
        {"Attachment.VpcId": ref("Vpc")},
    ),
    "route-targets": _of({"Route.GatewayId": REMOVED}),
    "flow-log-interval": _of(
        {"Flow.MaxAggregationInterval": 300}, {"Flow.MaxAggregationInterval": 60}
    ),
    "flow-log-role": _of({"Flow.DeliverLogsPermissionArn": REMOVED}),
    "nat-without-address": _of({"Nat.AllocationId": REMOVED}),
    "nat-private-address": _of(
        {"Nat.ConnectivityType": "private"}, {"Nat.ConnectivityType": "public"}
    ),
    "fsx-capacity": _lustre({"StorageCapacity": 3600}),
    "fsx-throughput": _lustre({"LustreConfiguration.PerUnitStorageThroughput": 200}),
    "fsx-old-version": _lustre({"FileSystemTypeVersion": "2.10"}),
    "fsx-subnets": _lustre({"SubnetIds": [ref("One"), ref("Two")]}),
    "fsx-disks": _lustre({"StorageType": "HDD"}),
    "fsx-drive-cache": _lustre(
        {
            "StorageType": "HDD",
            "StorageCapacity": 6000,
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_1", "PerUnitStorageThroughput": 12,
            },
        },
        {
            "StorageType": "HDD",
            "StorageCapacity": 6000,
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_1", "PerUnitStorageThroughput": 12,
                "DriveCacheType": "NONE",
            },
        },
    ),
    "fsx-import-path": _lustre({"LustreConfiguration.ImportPath": "s3://bucket"}),
    "fsx-backups": _lustre(
        {
            "LustreConfiguration": {
                "DeploymentType": "SCRATCH_2", "AutomaticBackupRetentionDays": 7,
            }
        },
        {"LustreConfiguration": {"DeploymentType": "SCRATCH_2"}},
    ),
    "fsx-efa": _lustre(
        {"LustreConfiguration": {"DeploymentType": "SCRATCH_2", "EfaEnabled": True}},
        {"LustreConfiguration": {"DeploymentType": "SCRATCH_2", "EfaEnabled": False}},
    ),
    "fsx-metadata": _lustre(
        {
            "LustreConfiguration": {
                "DeploymentType": "SCRATCH_2", "MetadataConfiguration": {"Mode": "AUTOMATIC"},
            }
        },
        {"LustreConfiguration.MetadataConfiguration": {"Mode": "AUTOMATIC"}},
    ),
    "fsx-port-closed": _of(
        {"Lustre.SecurityGroupIngress": [RULE], "FileSystem.StorageCapacity": 2400},
        {"FileSystem.StorageCapacity": 2400},
    ),
    "fsx-shrink": _lustre({"StorageCapacity": 1200}, update=True),
    "association-overlap": _of(
        {"Again": _association(FileSystemPath="/datasets/a"), "Link.FileSystemPath": "/datasets"},
        {"Again": _association(FileSystemPath="/runs", DataRepositoryPath="s3://bucket/runs"),
         "Link.FileSystemPath": "/datasets"},
    ),
    "association-bucket-path": _of(
        {"Again": _association(FileSystemPath="/runs"), "Link.FileSystemPath": "/datasets"},
        {"Again": _association(FileSystemPath="/runs", DataRepositoryPath="s3://bucket/runs"),
         "Link.FileSystemPath": "/datasets"},
    ),
    "association-path": _of({"Link.FileSystemPath": "datasets"}),
    "association-number": _of({**_NINE, "Link.FileSystemPath": "/datasets"}),
    "association-of-scratch": _of(
        {
            "FileSystem.LustreConfiguration": {"DeploymentType": "SCRATCH_1"},
            "FileSystem.StorageCapacity": 1200,
            "Link.FileSystemPath": "/datasets",
        },
        {
            "FileSystem.LustreConfiguration": {"DeploymentType": "SCRATCH_2"},
            "Link.FileSystemPath": "/datasets",
        },
    ),
    "association-of-import-path": _of(
        {
            "FileSystem.LustreConfiguration": {
                "DeploymentType": "SCRATCH_2", "ImportPath": "s3://bucket",
            },
            "Link.FileSystemPath": "/datasets",
        },
        {
            "FileSystem.LustreConfiguration": {"DeploymentType": "SCRATCH_2"},
            "Link.FileSystemPath": "/datasets",
        },
    ),
}  # fmt: skip
