"""For each row of the table, a template or submission that AWS refuses, and one that it accepts."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]
REMOVED: Final = object()
"""Removes a property."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Changes of ``BASE``: ``Id.Property.0.Name`` to its value, or ``Id`` to a resource."""

    bad: Mapping[str, Any]
    good: Mapping[str, Any] = field(default_factory=dict)
    """Changes that AWS accepts, if the base lacks the properties."""
    update: bool = False
    """True: only the update from good to bad is refused."""
    region: str = "us-west-2"

    def fails(self) -> Json:
        """Return a template that AWS refuses: the changed resources and their references."""
        return self._changed(self.bad)

    def passes(self) -> Json:
        """Return a template that AWS accepts."""
        return self._changed(self.good)

    def _changed(self, changes: Mapping[str, Any]) -> Json:
        resources = copy.deepcopy(BASE)
        for path, value in changes.items():
            _set(resources, path, value)
        wanted = {path.partition(".")[0] for path in (*self.bad, *self.good)} & {*resources}
        while True:
            text = json.dumps([resources[logical_id] for logical_id in wanted])
            more = {each for each in resources if f'"{each}"' in text} - wanted
            if not more:
                return {"Resources": {n: r for n, r in resources.items() if n in wanted}}
            wanted |= more


def _set(resources: Json, path: str, value: Any) -> None:
    logical_id, *names = path.split(".")
    if not names:
        resources[logical_id] = value
        return
    place: Any = resources[logical_id]["Properties"]
    for name in names[:-1]:
        place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    if value is REMOVED:
        del place[names[-1]]
    else:
        place[int(names[-1]) if isinstance(place, list) else names[-1]] = value


def resource(kind: str, /, **properties: Any) -> Json:
    """Return a resource of a template."""
    return {"Type": kind, "Properties": properties}


def ref(logical_id: str) -> Json:
    return {"Ref": logical_id}


def att(logical_id: str, attribute: str = "Arn") -> Json:
    return {"Fn::GetAtt": [logical_id, attribute]}


def policy(*actions: str, **statement: Any) -> Json:
    """Return a policy of one statement."""
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": list(actions), **statement}],
    }


def trust(service: str, *more: str, **statement: Any) -> Json:
    """Return a policy that allows a service to assume a role."""
    return policy("sts:AssumeRole", *more, Principal={"Service": [service]}, **statement)


_NIC: Json = {
    "DeviceIndex": 0,
    "NetworkCardIndex": 0,
    "InterfaceType": "efa",
    "Groups": [ref("Group")],
}
_SECOND = {**_NIC, "DeviceIndex": 1, "NetworkCardIndex": 1, "InterfaceType": "efa-only"}
_RULE = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "CidrIp": "10.0.0.0/16"}
_CONTAINER = {
    "Image": "x",
    "ResourceRequirements": [
        {"Type": "VCPU", "Value": "4"},
        {"Type": "MEMORY", "Value": "1024"},
    ],
}

BASE: Json = {
    "Vpc": resource(
        "AWS::EC2::VPC",
        CidrBlock="10.0.0.0/16",
        EnableDnsSupport=True,
        EnableDnsHostnames=True,
    ),
    "One": resource(
        "AWS::EC2::Subnet",
        VpcId=ref("Vpc"),
        CidrBlock="10.0.0.0/24",
        AvailabilityZoneId="usw2-az1",
    ),
    "Two": resource(
        "AWS::EC2::Subnet",
        VpcId=ref("Vpc"),
        CidrBlock="10.0.1.0/24",
        AvailabilityZoneId="usw2-az2",
    ),
    "Group": resource("AWS::EC2::SecurityGroup", GroupDescription="plain", VpcId=ref("Vpc")),
    "Role": resource("AWS::IAM::Role", AssumeRolePolicyDocument=trust("ec2.amazonaws.com")),
    "Profile": resource("AWS::IAM::InstanceProfile", Roles=[ref("Role")]),
    "Template": resource(
        "AWS::EC2::LaunchTemplate", LaunchTemplateData={"InstanceType": "trn1.32xlarge"}
    ),
    "Interfaces": resource(
        "AWS::EC2::LaunchTemplate",
        LaunchTemplateData={
            "InstanceType": "trn1.32xlarge",
            "NetworkInterfaces": [_NIC, _SECOND],
            "BlockDeviceMappings": [
                {"DeviceName": "/dev/xvda", "Ebs": {"VolumeType": "gp3", "Throughput": 500}}
            ],
        },
    ),
    "Endpoint": resource(
        "AWS::EC2::VPCEndpoint",
        VpcEndpointType="Interface",
        ServiceName="com.amazonaws.us-west-2.ecr.api",
        VpcId=ref("Vpc"),
        SubnetIds=[ref("One")],
        SecurityGroupIds=[att("Group", "GroupId")],
        PrivateDnsEnabled=True,
    ),
    "Environment": resource(
        "AWS::Batch::ComputeEnvironment",
        Type="MANAGED",
        ReplaceComputeEnvironment=False,
        ComputeResources={
            "Type": "EC2",
            "AllocationStrategy": "BEST_FIT_PROGRESSIVE",
            "InstanceRole": att("Profile"),
            "InstanceTypes": ["trn1.32xlarge"],
            "MinvCpus": 0,
            "MaxvCpus": 256,
            "SecurityGroupIds": [ref("Group")],
            "Subnets": [ref("One")],
            "LaunchTemplate": {"LaunchTemplateId": ref("Template"), "Version": "1"},
            "Ec2Configuration": [{"ImageType": "ECS_AL2023"}],
        },
    ),
    "Job": resource(
        "AWS::Batch::JobDefinition",
        Type="container",
        ContainerProperties=_CONTAINER,
        RetryStrategy={"Attempts": 3, "EvaluateOnExit": [{"Action": "EXIT", "OnExitCode": "2"}]},
    ),
    "Nodes": resource(
        "AWS::Batch::JobDefinition",
        Type="multinode",
        NodeProperties={
            "MainNode": 0,
            "NumNodes": 2,
            "NodeRangeProperties": [{"TargetNodes": "0:", "Container": _CONTAINER}],
        },
    ),
    "Lustre": resource(
        "AWS::EC2::SecurityGroup",
        GroupDescription="Lustre",
        VpcId=ref("Vpc"),
        SecurityGroupIngress=[{**_RULE, "FromPort": 988, "ToPort": 988}],
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
    "ClusterRole": resource("AWS::IAM::Role", AssumeRolePolicyDocument=trust("eks.amazonaws.com")),
    "PodRole": resource(
        "AWS::IAM::Role",
        AssumeRolePolicyDocument=trust("pods.eks.amazonaws.com", "sts:TagSession"),
    ),
    "Cluster": resource(
        "AWS::EKS::Cluster",
        Name="training",
        Version="1.35",
        RoleArn=att("ClusterRole"),
        AccessConfig={"AuthenticationMode": "API"},
        ResourcesVpcConfig={"SubnetIds": [ref("One"), ref("Two")], "EndpointPrivateAccess": True},
    ),
    "Workers": resource(
        "AWS::EKS::Nodegroup",
        ClusterName=ref("Cluster"),
        NodeRole=att("Role"),
        Subnets=[ref("One")],
        AmiType="AL2023_x86_64_NEURON",
        Version="1.35",
        ReleaseVersion="1.35.6-20260625",
        LaunchTemplate={"Id": ref("Template"), "Version": "1"},
        ScalingConfig={"MinSize": 0, "DesiredSize": 0, "MaxSize": 2},
    ),
    "Identity": resource(
        "AWS::EKS::PodIdentityAssociation",
        ClusterName=ref("Cluster"),
        Namespace="trainium",
        ServiceAccount="job",
        RoleArn=att("PodRole"),
    ),
    "FunctionRole": resource(
        "AWS::IAM::Role",
        AssumeRolePolicyDocument=trust("lambda.amazonaws.com"),
        ManagedPolicyArns=["arn:aws:iam::aws:policy/service-role/AWSLambdaVPCAccessExecutionRole"],
    ),
    "Function": resource(
        "AWS::Lambda::Function",
        Code={"ZipFile": "def handler(event, context): pass"},
        Handler="index.handler",
        Runtime="python3.13",
        Role=att("FunctionRole"),
        VpcConfig={"SubnetIds": [ref("One")], "SecurityGroupIds": [att("Group", "GroupId")]},
    ),
}


def _below(
    path: str,
    bad: Json,
    good: Json | None = None,
    *,
    update: bool = False,
    both: Json | None = None,
) -> Example:
    """Return an example whose changes, but ``both``, are below a path."""

    def changes(given: Json) -> Json:
        return {f"{path}.{name}": value for name, value in given.items()} | (both or {})

    return Example(bad=changes(bad), good=changes(good or {}), update=update)


def _compute(bad: Json, good: Json | None = None, *, update: bool = False) -> Example:
    return _below("Environment.ComputeResources", bad, good, update=update)


def _host(bad: Json, good: Json | None = None) -> Example:
    return _below("Interfaces.LaunchTemplateData", bad, good)


def _behind_workers(bad: Json, good: Json | None = None, *, both: Json | None = None) -> Example:
    """Return an example of the launch template behind a node group."""
    template = "Template.LaunchTemplateData"
    return _below(template, bad, good, both=both or {"Workers.ForceUpdateEnabled": True})


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _tags(number: int) -> Json:
    return {str(index): "x" for index in range(number)}


_RETRY = {"Action": "RETRY", "OnExitCode": "75"}
_MARKET = "InstanceMarketOptions.MarketType"
_TARGET = "CapacityReservationSpecification.CapacityReservationTarget"
_RESERVATION = {"CapacityReservationId": "cr-0123456789abcdef0"}
_BLOCK = {_MARKET: "capacity-block", _TARGET: _RESERVATION}
_MOUNTS = {"MountPoints": [{"SourceVolume": "data", "ContainerPath": "/fsx"}]}

TEMPLATES: dict[str, Example] = {
    "batch-groups-and-interfaces": Example(
        bad={"Environment.ComputeResources.LaunchTemplate.LaunchTemplateId": ref("Interfaces")},
        good={
            "Environment.ComputeResources.LaunchTemplate.LaunchTemplateId": ref("Interfaces"),
            "Environment.ComputeResources.SecurityGroupIds": REMOVED,
        },
    ),
    "batch-type-not-offered": _compute({"InstanceTypes": ["trn2.48xlarge"]}),
    "batch-update-best-fit": _compute(
        {"AllocationStrategy": "BEST_FIT", "InstanceTypes": ["trn1.2xlarge"]},
        {"AllocationStrategy": "BEST_FIT"},
        update=True,
    ),
    "batch-job-size": _below(
        "Job.ContainerProperties",
        {"Environment": [{"Name": "A", "Value": "x" * 25_000}]},
        {"Environment": [{"Name": "A", "Value": "x" * 20_000}]},
    ),
    "batch-job-rules": _below(
        "Job.RetryStrategy", {"EvaluateOnExit": [_RETRY] * 6}, {"EvaluateOnExit": [_RETRY] * 5}
    ),
    "batch-requirement-number": _below(
        "Job.ContainerProperties", {"ResourceRequirements.0.Value": "1.5"}
    ),
    "batch-volume-unknown": _below(
        "Job.ContainerProperties",
        _MOUNTS,
        {**_MOUNTS, "Volumes": [{"Name": "data", "Host": {"SourcePath": "/fsx"}}]},
    ),
    "batch-too-many-tags": _below(
        "Job",
        {"PropagateTags": True, "Tags": _tags(51)},
        {"PropagateTags": True, "Tags": _tags(50)},
    ),
    "template-throughput": _host({"BlockDeviceMappings.0.Ebs.Throughput": 800}),
    "template-groups-beside-interfaces": _host({"SecurityGroupIds": [ref("Group")]}),
    "template-efa-unsupported": _host(
        {"InstanceType": "trn1.2xlarge", "NetworkInterfaces": [_NIC]},
        {
            "InstanceType": "trn1.2xlarge",
            "NetworkInterfaces": [{**_NIC, "InterfaceType": "interface"}],
        },
    ),
    "template-network-card": _host({"NetworkInterfaces.1.NetworkCardIndex": 8}),
    "template-same-slot": _host({"NetworkInterfaces": [_NIC, _NIC]}),
    "template-primary-efa-only": _host({"NetworkInterfaces.0.InterfaceType": "efa-only"}),
    "template-no-primary": _host({"NetworkInterfaces": [_SECOND]}),
    "template-block-without-reservation": _host({_MARKET: "capacity-block"}, _BLOCK),
    "template-block-unsold": _host({**_BLOCK, "InstanceType": "trn1n.32xlarge"}, _BLOCK),
    "endpoint-zones": Example(
        bad={"Endpoint.SubnetIds": [ref("One"), ref("Two")], "Two.AvailabilityZoneId": "usw2-az1"},
        good={"Endpoint.SubnetIds": [ref("One"), ref("Two")]},
    ),
    "endpoint-region": _below("Endpoint", {"ServiceName": "com.amazonaws.us-east-1.ecr.api"}),
    "endpoint-without-dns": Example(
        bad={"Vpc.EnableDnsHostnames": False, "Endpoint.PrivateDnsEnabled": True}
    ),
    "fsx-capacity": _below("FileSystem", {"StorageCapacity": 3600}),
    "fsx-throughput": _below(
        "FileSystem.LustreConfiguration", {"PerUnitStorageThroughput": 200}
    ),
    "fsx-port-closed": Example(
        bad={"Lustre.SecurityGroupIngress": [_RULE], "FileSystem.StorageCapacity": 2400}
    ),
    "cluster-zones": Example(
        bad={"Two.AvailabilityZoneId": "usw2-az1", "Cluster.Version": "1.35"}
    ),
    "cluster-zone": Example(
        region="us-east-1",
        bad={"One.AvailabilityZoneId": "use1-az1", "Two.AvailabilityZoneId": "use1-az3",
             "Cluster.Version": "1.35"},
        good={"One.AvailabilityZoneId": "use1-az1", "Two.AvailabilityZoneId": "use1-az2"},
    ),
    "cluster-version-step": _below("Cluster", {"Version": "1.33"}, update=True),
    "nodes-block": _behind_workers({}, _BLOCK, both={"Workers.CapacityType": "CAPACITY_BLOCK"}),
    "nodes-block-type": _behind_workers(_BLOCK, {}, both={"Workers.CapacityType": "ON_DEMAND"}),
    "nodes-user-data": _behind_workers(
        {"UserData": _base64("#!/bin/bash\ntrue\n")},
        {"UserData": _base64('Content-Type: multipart/mixed; boundary="=="\n\n--==\n')},
    ),
    "nodes-release": _below("Workers", {"ReleaseVersion": "1.34.9-20260625"}),
    "nodes-mixed-update": _below(
        "Workers",
        {"ReleaseVersion": "1.35.6-20260714", "ScalingConfig.MaxSize": 4},
        update=True,
    ),
    "identity-trust": Example(
        bad={
            "PodRole.AssumeRolePolicyDocument": trust("pods.eks.amazonaws.com"),
            "Identity.ServiceAccount": "job",
        }
    ),
    "function-interfaces": Example(
        bad={"FunctionRole.ManagedPolicyArns": REMOVED, "Function.Timeout": 60}
    ),
}  # fmt: skip

# --- submissions ---------------------------------------------------------------------------------


def _submission(*targets: str, num_nodes: int = 2, state: str = "ENABLED", **given: Any) -> Json:
    """Return a request as the table reads it; of a multi-node job, if it has ranges of nodes."""
    nodes = {"numNodes": num_nodes, "nodeRangeProperties": [{"targetNodes": t} for t in targets]}
    definition = (
        {"type": "multinode", "nodeProperties": nodes} if targets else {"type": "container"}
    )
    names = {"jobName": "job", "jobQueue": "queue", "jobDefinition": "definition"}
    return {**names, **given, "definition": definition, "queue": {"state": state}}


def _override(targets: str) -> Json:
    return {"nodePropertyOverrides": [{"targetNodes": targets}]}


SUBMISSIONS: dict[str, tuple[Json, Json]] = {
    "submit-name": (_submission(jobName="my job"), _submission(jobName="my-job")),
    "submit-size": (
        _submission(parameters={"a": "x" * 31_000}),
        _submission(parameters={"a": "x" * 30_000}),
    ),
    "submit-override-length": (
        _submission(containerOverrides={"command": ["x" * 8_200]}),
        _submission(containerOverrides={"command": ["x" * 8_000]}),
    ),
    "submit-nodes-of-closed-ranges": (
        _submission("0:1", nodeOverrides={"numNodes": 2}),
        _submission("0:", nodeOverrides={"numNodes": 4}),
    ),
    "submit-override-of-other-range": (
        _submission("0:", nodeOverrides=_override("0:0")),
        _submission("0:", nodeOverrides=_override("0:")),
    ),
    "submit-nodes-uncovered": (
        _submission("2:", num_nodes=4),
        _submission("0:1", "2:3", num_nodes=4),
    ),
    "submit-overrides-of-nodes": (
        _submission(nodeOverrides={"numNodes": 2}),
        _submission(containerOverrides={"command": ["x"]}),
    ),
    "submit-overrides-of-container": (
        _submission("0:", containerOverrides={"command": ["x"]}),
        _submission("0:", nodeOverrides={"numNodes": 2}),
    ),
    "submit-array-of-nodes": (
        _submission("0:", arrayProperties={"size": 2}),
        _submission(arrayProperties={"size": 2}),
    ),
    "submit-array-size": (
        _submission(arrayProperties={"size": 10_001}),
        _submission(arrayProperties={"size": 10_000}),
    ),
    "submit-timeout": (
        _submission(timeout={"attemptDurationSeconds": 59}),
        _submission(timeout={"attemptDurationSeconds": 60}),
    ),
    "submit-queue-disabled": (_submission(state="DISABLED"), _submission()),
}
