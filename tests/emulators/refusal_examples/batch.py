"""Examples of AWS Batch: templates, and submissions."""

from __future__ import annotations

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

REQUIREMENTS = [{"Type": "VCPU", "Value": "4"}, {"Type": "MEMORY", "Value": "1024"}]
CONTAINER = {"Image": "x", "ResourceRequirements": REQUIREMENTS}
NIC = {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "efa", "Groups": [ref("Group")]}


def _environment(**changes: Any) -> Json:
    resources = {
        "Type": "EC2",
        "AllocationStrategy": "BEST_FIT_PROGRESSIVE",
        "InstanceRole": att("Profile", "Arn"),
        "InstanceTypes": ["trn1.32xlarge"],
        "MinvCpus": 0,
        "MaxvCpus": 256,
        "SecurityGroupIds": [ref("Group")],
        "Subnets": [ref("One")],
        "LaunchTemplate": {"LaunchTemplateId": ref("Template"), "Version": "1"},
        "Ec2Configuration": [{"ImageType": "ECS_AL2023"}],
    }
    return resource(
        "AWS::Batch::ComputeEnvironment",
        Type="MANAGED",
        ReplaceComputeEnvironment=False,
        ComputeResources={**resources, **changes},
    )


def _range(targets: str, **changes: Any) -> Json:
    return {"TargetNodes": targets, "Container": {**CONTAINER, **changes}}


BASE: Json = {
    **NETWORK,
    "Role": resource("AWS::IAM::Role", AssumeRolePolicyDocument=trust("ec2.amazonaws.com")),
    "Profile": resource("AWS::IAM::InstanceProfile", Roles=[ref("Role")]),
    "Template": resource(
        "AWS::EC2::LaunchTemplate", LaunchTemplateData={"InstanceType": "trn1.32xlarge"}
    ),
    "Environment": _environment(),
    "Other": _environment(),
    "Queue": resource(
        "AWS::Batch::JobQueue",
        Priority=1,
        ComputeEnvironmentOrder=[{"ComputeEnvironment": ref("Environment"), "Order": 1}],
        JobStateTimeLimitActions=[
            {
                "Action": "CANCEL",
                "MaxTimeSeconds": 3600,
                "Reason": "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
                "State": "RUNNABLE",
            }
        ],
    ),
    "Job": resource(
        "AWS::Batch::JobDefinition",
        Type="container",
        ContainerProperties=CONTAINER,
        RetryStrategy={
            "Attempts": 3,
            "EvaluateOnExit": [{"Action": "RETRY", "OnExitCode": "75"}],
        },
        Timeout={"AttemptDurationSeconds": 60},
    ),
    "Nodes": resource(
        "AWS::Batch::JobDefinition",
        Type="multinode",
        NodeProperties={"MainNode": 0, "NumNodes": 2, "NodeRangeProperties": [_range("0:")]},
    ),
}


def _of(bad: Json, good: Json | None = None, *, update: bool = False) -> Example:
    return Example(base=BASE, bad=bad, good=good or {}, update=update)


def _compute(bad: Json, good: Json | None = None, *, update: bool = False) -> Example:
    path = "Environment.ComputeResources."
    return _of(
        {path + key: value for key, value in bad.items()},
        {path + key: value for key, value in (good or {}).items()},
        update=update,
    )


def _container(bad: Json, good: Json | None = None) -> Example:
    path = "Job.ContainerProperties."
    return _of(
        {path + key: value for key, value in bad.items()},
        {path + key: value for key, value in (good or {}).items()},
    )


_LIMIT = BASE["Queue"]["Properties"]["JobStateTimeLimitActions"][0]
_ORDER = "Queue.ComputeEnvironmentOrder"
_RULES = "Job.RetryStrategy.EvaluateOnExit"
_NODES = "Nodes.NodeProperties."
_RANGES = "Nodes.NodeProperties.NodeRangeProperties"
_OVERRIDES = "LaunchTemplate.Overrides"
_OVERRIDE = {"LaunchTemplateId": ref("Template"), "TargetInstanceTypes": ["trn1.32xlarge"]}

EXAMPLES: dict[str, Example] = {
    "batch-groups-and-interfaces": _of(
        {"Template.LaunchTemplateData.NetworkInterfaces": [NIC], "Environment.State": "ENABLED"},
        {
            "Template.LaunchTemplateData.NetworkInterfaces": [NIC],
            "Environment.ComputeResources.SecurityGroupIds": REMOVED,
        },
    ),
    "batch-groups-missing": _compute({"SecurityGroupIds": REMOVED, "LaunchTemplate": REMOVED}),
    "batch-strategy-of-type": _compute({"AllocationStrategy": "SPOT_CAPACITY_OPTIMIZED"}),
    "batch-vcpus-order": _compute({"MinvCpus": 512}),
    "batch-min-vcpus-negative": _compute({"MinvCpus": -1}),
    "batch-desired-vcpus": _compute({"DesiredvCpus": 512}, {"DesiredvCpus": 128}),
    "batch-image-type": _compute({"Ec2Configuration": [{"ImageType": "ECS_NEURON"}]}),
    "batch-image-type-old": _compute({"Ec2Configuration": [{"ImageType": "ECS_AL2"}]}),
    "batch-mixed-architectures": _compute(
        {"InstanceTypes": ["m6i.large", "m6g.large"]}, {"InstanceTypes": ["m6i.large"]}
    ),
    "batch-type-not-offered": _compute({"InstanceTypes": ["trn2.48xlarge"]}),
    "batch-types-missing": _compute({"InstanceTypes": []}),
    "batch-instance-role-missing": _compute({"InstanceRole": REMOVED}),
    "batch-template-id-or-name": _compute({"LaunchTemplate.LaunchTemplateName": "name"}),
    "batch-template-version": _compute({"LaunchTemplate.Version": "latest"}),
    "batch-template-overrides": _compute({_OVERRIDES: [_OVERRIDE] * 11}, {_OVERRIDES: [_OVERRIDE]}),
    "batch-override-targets": _compute(
        {_OVERRIDES: [{**_OVERRIDE, "TargetInstanceTypes": ["m6i.large"]}]},
        {_OVERRIDES: [_OVERRIDE]},
    ),
    "batch-bid-percentage": _compute({"BidPercentage": 101}, {"BidPercentage": 100}),
    "batch-spot-fleet-role": _compute(
        {"Type": "SPOT", "AllocationStrategy": "BEST_FIT"},
        {"Type": "SPOT", "AllocationStrategy": "SPOT_CAPACITY_OPTIMIZED"},
    ),
    "batch-environment-state": _of({"Environment.State": "DISABLED"}),
    "batch-environment-unmanaged-vcpus": _of({"Environment.UnmanagedvCpus": 4}),
    "batch-environment-name": _of(
        {"Environment.ComputeEnvironmentName": "my environment"},
        {"Environment.ComputeEnvironmentName": "my-environment"},
    ),
    "batch-update-without-linked-role": _of(
        {
            "Environment.ServiceRole": att("Role", "Arn"),
            "Environment.ComputeResources.InstanceTypes": ["trn1.2xlarge"],
        },
        {"Environment.ServiceRole": att("Role", "Arn")},
        update=True,
    ),
    "batch-update-best-fit": _compute(
        {"AllocationStrategy": "BEST_FIT", "InstanceTypes": ["trn1.2xlarge"]},
        {"AllocationStrategy": "BEST_FIT"},
        update=True,
    ),
    "batch-ignores-spot-options": _of(
        {
            "Template.LaunchTemplateData.InstanceMarketOptions": {"MarketType": "spot"},
            "Environment.State": "ENABLED",
        }
    ),
    "batch-queue-environments": _of(
        {
            _ORDER: [
                {"ComputeEnvironment": f"arn:aws:batch:us-west-2:111111111111:{n}", "Order": n}
                for n in range(4)
            ]
        }
    ),
    "batch-queue-no-environment": _of({_ORDER: []}),
    "batch-queue-environment-twice": _of(
        {f"{_ORDER}.1": {"ComputeEnvironment": ref("Environment"), "Order": 2}},
        {f"{_ORDER}.1": {"ComputeEnvironment": ref("Other"), "Order": 2}},
    ),
    "batch-queue-order-twice": _of(
        {f"{_ORDER}.1": {"ComputeEnvironment": ref("Other"), "Order": 1}},
        {f"{_ORDER}.1": {"ComputeEnvironment": ref("Other"), "Order": 2}},
    ),
    "batch-queue-limit-action": _of({"Queue.JobStateTimeLimitActions.0.Action": "TERMINATE"}),
    "batch-queue-limit-twice": _of({"Queue.JobStateTimeLimitActions": [_LIMIT, _LIMIT]}),
    "batch-queue-limit-seconds": _of({"Queue.JobStateTimeLimitActions.0.MaxTimeSeconds": 60}),
    "batch-queue-name": _of({"Queue.JobQueueName": "my queue"}, {"Queue.JobQueueName": "my"}),
    "batch-job-name": _of({"Job.JobDefinitionName": "my job"}, {"Job.JobDefinitionName": "my-job"}),
    "batch-job-size": _container(
        {"Environment": [{"Name": "A", "Value": "x" * 25_000}]},
        {"Environment": [{"Name": "A", "Value": "x" * 20_000}]},
    ),
    "batch-job-attempts": _of({"Job.RetryStrategy.Attempts": 11}),
    "batch-job-rules-without-attempts": _of({"Job.RetryStrategy.Attempts": REMOVED}),
    "batch-job-rules": _of({_RULES: [{"Action": "RETRY", "OnExitCode": str(n)} for n in range(6)]}),
    "batch-job-rule-empty": _of({_RULES: [{"Action": "RETRY"}]}),
    "batch-job-rule-exit-code": _of({f"{_RULES}.0.OnExitCode": "> 75"}),
    "batch-job-rule-length": _of(
        {_RULES: [{"Action": "RETRY", "OnReason": "x" * 513}]},
        {_RULES: [{"Action": "RETRY", "OnReason": "x" * 512}]},
    ),
    "batch-job-timeout": _of({"Job.Timeout.AttemptDurationSeconds": 59}),
    "batch-job-priority": _of({"Job.SchedulingPriority": 10_000}, {"Job.SchedulingPriority": 1}),
    "batch-nodes-missing": _of({"Nodes.NodeProperties": REMOVED}),
    "batch-nodes-on-fargate": _of(
        {"Nodes.PlatformCapabilities": ["FARGATE"]}, {"Nodes.PlatformCapabilities": ["EC2"]}
    ),
    "batch-nodes-number": _of({_NODES + "NumNodes": 1001}),
    "batch-nodes-main": _of({_NODES + "MainNode": 2}),
    "batch-node-ranges": _of(
        {_NODES + "NumNodes": 6, _RANGES: [_range(str(n)) for n in range(6)]},
        {_NODES + "NumNodes": 5, _RANGES: [_range(str(n)) for n in range(5)]},
    ),
    "batch-node-range-form": _of({f"{_RANGES}.0.TargetNodes": "0-1"}),
    "batch-node-range-outside": _of({f"{_RANGES}.0.TargetNodes": "0:2"}),
    "batch-node-range-gap": _of({f"{_RANGES}.0.TargetNodes": "1:"}),
    "batch-node-range-empty": _of({f"{_RANGES}.0.Container": REMOVED}),
    "batch-node-instance-types": _of({f"{_RANGES}.0.InstanceTypes": ["trn1.32xlarge"]}),
    "batch-node-types-differ": _of(
        {
            _RANGES: [
                _range("0", InstanceType="trn1.32xlarge"),
                _range("1:", InstanceType="trn1.2xlarge"),
            ]
        },
        {
            _RANGES: [
                _range("0", InstanceType="trn1.32xlarge"),
                _range("1:", InstanceType="trn1.32xlarge"),
            ]
        },
    ),
    "batch-single-node-type": _container({"InstanceType": "m6i.large"}),
    "batch-vcpu-missing": _container({"ResourceRequirements": REQUIREMENTS[1:]}),
    "batch-vcpu-small": _container({"ResourceRequirements.0.Value": "0"}),
    "batch-requirement-number": _container({"ResourceRequirements.0.Value": "1.5"}),
    "batch-memory-small": _container({"ResourceRequirements.1.Value": "3"}),
    "batch-requirement-twice": _container(
        {"ResourceRequirements": [*REQUIREMENTS, REQUIREMENTS[0]]}
    ),
    "batch-requirement-old-and-new": _container({"Vcpus": 4}),
    "batch-device-permission": _container(
        {"LinuxParameters.Devices": [{"HostPath": "/dev/neuron0", "Permissions": ["EXECUTE"]}]},
        {"LinuxParameters.Devices": [{"HostPath": "/dev/neuron0", "Permissions": ["READ"]}]},
    ),
    "batch-tmpfs-size": _container(
        {"LinuxParameters.Tmpfs": [{"ContainerPath": "/tmp", "Size": 0}]},
        {"LinuxParameters.Tmpfs": [{"ContainerPath": "/tmp", "Size": 1}]},
    ),
    "batch-swappiness": _container(
        {"LinuxParameters.Swappiness": 101}, {"LinuxParameters.Swappiness": 100}
    ),
    "batch-swap-without-swappiness": _container(
        {"LinuxParameters": {"MaxSwap": 64}}, {"LinuxParameters": {"MaxSwap": 64, "Swappiness": 0}}
    ),
    "batch-log-option": _container(
        {"LogConfiguration": {"LogDriver": "awslogs", "Options": {"awslogs-colour": "red"}}},
        {"LogConfiguration": {"LogDriver": "awslogs", "Options": {"awslogs-group": "x"}}},
    ),
    "batch-secrets-without-role": _container(
        {"Secrets": [{"Name": "A", "ValueFrom": "arn:aws:ssm:us-west-2:111111111111:parameter/a"}]},
    ),
    "batch-variable-without-name": _container(
        {"Environment": [{"Value": "x"}]}, {"Environment": [{"Name": "A", "Value": "x"}]}
    ),
    "batch-volume-twice": _container(
        {
            "Volumes": [
                {
                    "Name": "data",
                    "Host": {"SourcePath": "/fsx"},
                    "EfsVolumeConfiguration": {"FileSystemId": "fs-12345678"},
                }
            ]
        },
        {"Volumes": [{"Name": "data", "Host": {"SourcePath": "/fsx"}}]},
    ),
    "batch-volume-unknown": _container(
        {"MountPoints": [{"SourceVolume": "data", "ContainerPath": "/fsx"}]},
        {
            "Volumes": [{"Name": "data", "Host": {"SourcePath": "/fsx"}}],
            "MountPoints": [{"SourceVolume": "data", "ContainerPath": "/fsx"}],
        },
    ),
    "batch-platforms": _of(
        {"Job.PlatformCapabilities": ["EC2", "FARGATE"]}, {"Job.PlatformCapabilities": ["EC2"]}
    ),
    "batch-too-many-tags": _of(
        {"Job.PropagateTags": True, "Job.Tags": {f"key{n}": "x" for n in range(51)}},
        {"Job.PropagateTags": True, "Job.Tags": {"key": "x"}},
    ),
    "batch-ignores-reserved-variables": _container(
        {"Environment": [{"Name": "AWS_BATCH_MINE", "Value": "x"}]},
        {"Environment": [{"Name": "MINE", "Value": "x"}]},
    ),
}

# --- submissions ---------------------------------------------------------------------------------

_CLOSED = {
    "type": "multinode",
    "nodeProperties": {"numNodes": 2, "nodeRangeProperties": [{"targetNodes": "0:1"}]},
}
_OPEN = {
    "type": "multinode",
    "nodeProperties": {"numNodes": 2, "nodeRangeProperties": [{"targetNodes": "0:"}]},
}
_PLAIN = {"type": "container"}
_LARGE = {"command": ["x" * 8_200]}


def _submission(definition: Json | None = None, **given: Any) -> Json:
    """Build a SubmitJob request as the table reads it."""
    common = {"jobName": "job", "jobQueue": "queue", "jobDefinition": "definition"}
    known = {"definition": definition or _PLAIN, "queue": given.pop("queue", {"state": "ENABLED"})}
    return {**common, **given, **known}


def _pairs(size: int) -> Json:
    return {"environment": [{"name": "A", "value": "x" * size}]}


SUBMISSIONS: dict[str, tuple[Json, Json]] = {
    "submit-name": (_submission(jobName="my job"), _submission(jobName="my-job")),
    "submit-size": (
        _submission(parameters={"a": "x" * 31_000}),
        _submission(parameters={"a": "x" * 30_000}),
    ),
    "submit-override-length": (
        _submission(containerOverrides=_LARGE),
        _submission(containerOverrides=_pairs(8_000)),
    ),
    "submit-nodes-of-closed-ranges": (
        _submission(_CLOSED, nodeOverrides={"numNodes": 2}),
        _submission(_OPEN, nodeOverrides={"numNodes": 4}),
    ),
    "submit-override-of-other-range": (
        _submission(_OPEN, nodeOverrides={"nodePropertyOverrides": [{"targetNodes": "0:0"}]}),
        _submission(_OPEN, nodeOverrides={"nodePropertyOverrides": [{"targetNodes": "0:"}]}),
    ),
    "submit-nodes-uncovered": (
        _submission(
            {
                "type": "multinode",
                "nodeProperties": {"numNodes": 4, "nodeRangeProperties": [{"targetNodes": "2:"}]},
            }
        ),
        _submission(_OPEN),
    ),
    "submit-other-overrides": (
        _submission(nodeOverrides={"numNodes": 2}),
        _submission(containerOverrides={"command": ["x"]}),
    ),
    "submit-array-of-nodes": (
        _submission(_OPEN, arrayProperties={"size": 2}),
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
    "submit-attempts": (
        _submission(retryStrategy={"attempts": 11}),
        _submission(retryStrategy={"attempts": 10}),
    ),
    "submit-dependencies": (
        _submission(dependsOn=[{"jobId": str(n)} for n in range(21)]),
        _submission(dependsOn=[{"jobId": str(n)} for n in range(20)]),
    ),
    "submit-tags": (
        _submission(tags={str(n): "x" for n in range(51)}),
        _submission(tags={str(n): "x" for n in range(50)}),
    ),
    "submit-share-missing": (
        _submission(queue={"schedulingPolicyArn": "arn"}),
        _submission(queue={"schedulingPolicyArn": "arn"}, shareIdentifier="me",
                    schedulingPriorityOverride=1),
    ),
    "submit-priority-missing": (
        _submission(shareIdentifier="me"),
        _submission(shareIdentifier="me", schedulingPriorityOverride=1),
    ),
    "submit-queue-disabled": (
        _submission(queue={"state": "DISABLED"}),
        _submission(queue={"state": "ENABLED"}),
    ),
    "submit-ignores-reserved-variables": (
        _submission(containerOverrides={"environment": [{"name": "AWS_BATCH_X", "value": "x"}]}),
        _submission(containerOverrides={"environment": [{"name": "X", "value": "x"}]}),
    ),
}  # fmt: skip
