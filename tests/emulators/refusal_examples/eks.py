"""Examples of EKS."""

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

PODS = trust("pods.eks.amazonaws.com", actions=("sts:AssumeRole", "sts:TagSession"))
TOKEN = "arn:aws:lambda:us-west-2:111111111111:function:x"


def _of_cluster(kind: str, **properties: Any) -> Json:
    return resource(kind, ClusterName=ref("Cluster"), **properties)


BASE: Json = {
    **NETWORK,
    "OtherVpc": resource("AWS::EC2::VPC", CidrBlock="10.1.0.0/16"),
    "OtherGroup": resource(
        "AWS::EC2::SecurityGroup", GroupDescription="plain", VpcId=ref("OtherVpc")
    ),
    "Role": resource("AWS::IAM::Role", AssumeRolePolicyDocument=trust("eks.amazonaws.com")),
    "NodeRole": resource("AWS::IAM::Role", AssumeRolePolicyDocument=trust("ec2.amazonaws.com")),
    "PodRole": resource("AWS::IAM::Role", AssumeRolePolicyDocument=PODS),
    "Key": resource("AWS::KMS::Key", KeyPolicy={
        "Version": "2012-10-17",
        "Statement": [{
            "Effect": "Allow",
            "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
            "Action": "kms:*",
            "Resource": "*",
        }],
    }),
    "Cluster": resource(
        "AWS::EKS::Cluster",
        Name="training",
        Version="1.35",
        RoleArn=att("Role", "Arn"),
        AccessConfig={"AuthenticationMode": "API"},
        ComputeConfig={"Enabled": False},
        KubernetesNetworkConfig={"ElasticLoadBalancing": {"Enabled": False}},
        StorageConfig={"BlockStorage": {"Enabled": False}},
        ResourcesVpcConfig={"SubnetIds": [ref("One"), ref("Two")], "EndpointPrivateAccess": True},
    ),
    "Template": resource(
        "AWS::EC2::LaunchTemplate", LaunchTemplateData={"InstanceType": "trn1.32xlarge"}
    ),
    "Nodes": _of_cluster(
        "AWS::EKS::Nodegroup",
        NodeRole=att("NodeRole", "Arn"),
        Subnets=[ref("One")],
        AmiType="AL2023_x86_64_NEURON",
        Version="1.35",
        ReleaseVersion="1.35.6-20260625",
        LaunchTemplate={"Id": ref("Template"), "Version": "1"},
        ScalingConfig={"MinSize": 0, "DesiredSize": 0, "MaxSize": 2},
        Labels={"trainium/nodes": "trainium"},
        Taints=[{"Key": "aws.amazon.com/neuron", "Value": "present", "Effect": "NO_SCHEDULE"}],
    ),
    "Plain": _of_cluster(
        "AWS::EKS::Nodegroup",
        NodeRole=att("NodeRole", "Arn"),
        Subnets=[ref("One")],
        InstanceTypes=["m5.xlarge"],
        ScalingConfig={"MinSize": 0, "DesiredSize": 0, "MaxSize": 2},
    ),
    "Entry": _of_cluster(
        "AWS::EKS::AccessEntry",
        PrincipalArn="arn:aws:iam::111111111111:role/me",
        AccessPolicies=[{
            "PolicyArn": "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy",
            "AccessScope": {"Type": "cluster"},
        }],
    ),
    "Addon": _of_cluster("AWS::EKS::Addon", AddonName="coredns"),
    "Chart": _of_cluster(
        "Custom::AWSCDK-EKS-HelmChart",
        ServiceToken=TOKEN,
        Release="neuron",
        Chart="oci://public.ecr.aws/neuron/neuron-helm-chart",
        Version="1.9.0",
        Namespace="kube-system",
    ),
    "Identity": _of_cluster(
        "AWS::EKS::PodIdentityAssociation",
        Namespace="trainium", ServiceAccount="job", RoleArn=att("PodRole", "Arn"),
    ),
}  # fmt: skip


def _of(bad: Json, good: Json | None = None, *, update: bool = False) -> Example:
    return Example(base=BASE, bad=bad, good=good or {}, update=update)


def _template(bad: Json, good: Json | None = None, *, nodes: Json | None = None) -> Example:
    """Changes of the launch template behind the node group."""
    path = "Template.LaunchTemplateData."
    both = nodes or {"Nodes.ForceUpdateEnabled": True}
    return _of(
        {**{path + key: value for key, value in bad.items()}, **both},
        {**{path + key: value for key, value in (good or {}).items()}, **both} if good else {},
    )


def _again(logical_id: str, **changes: Any) -> Json:
    """A second resource like one of the base."""
    return {
        "Again": resource(BASE[logical_id]["Type"], **{**BASE[logical_id]["Properties"], **changes})
    }


def _data(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


_AUTO: Json = {
    "Cluster.ComputeConfig.Enabled": True,
    "Cluster.KubernetesNetworkConfig.ElasticLoadBalancing.Enabled": True,
    "Cluster.StorageConfig.BlockStorage.Enabled": True,
}
_SCOPE = "Entry.AccessPolicies.0.AccessScope"
_NIC = {"DeviceIndex": 0, "NetworkCardIndex": 0, "Groups": [ref("Group")]}
_MULTIPART = 'Content-Type: multipart/mixed; boundary="=="\n\n--==\n'
_BLOCK = {
    "InstanceMarketOptions": {"MarketType": "capacity-block"},
    "CapacityReservationSpecification": {
        "CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}
    },
}

EXAMPLES: dict[str, Example] = {
    "cluster-zones": _of(
        {"Two.AvailabilityZoneId": "usw2-az1", "Cluster.Version": "1.35"},
    ),
    "cluster-zone": Example(
        base=BASE,
        region="us-east-1",
        bad={
            "One.AvailabilityZoneId": "use1-az1",
            "Two.AvailabilityZoneId": "use1-az3",
            "Cluster.Version": "1.35",
        },
        good={
            "One.AvailabilityZoneId": "use1-az1",
            "Two.AvailabilityZoneId": "use1-az2",
            "Cluster.Version": "1.35",
        },
    ),
    "cluster-vpc": _of(
        {"Cluster.ResourcesVpcConfig.SecurityGroupIds": [ref("OtherGroup")]},
        {"Cluster.ResourcesVpcConfig.SecurityGroupIds": [ref("Group")]},
    ),
    "cluster-auto-mode": _of({"Cluster.ComputeConfig.Enabled": True}),
    "cluster-self-managed-addons": _of(
        _AUTO, {**_AUTO, "Cluster.BootstrapSelfManagedAddons": False}
    ),
    "cluster-auto-mode-access": _of(
        {
            **_AUTO,
            "Cluster.BootstrapSelfManagedAddons": False,
            "Cluster.AccessConfig.AuthenticationMode": "CONFIG_MAP",
        }
    ),
    "cluster-endpoints": _of(
        {
            "Cluster.ResourcesVpcConfig.EndpointPrivateAccess": False,
            "Cluster.ResourcesVpcConfig.EndpointPublicAccess": False,
        }
    ),
    "cluster-ignores-cidrs": _of(
        {
            "Cluster.ResourcesVpcConfig.EndpointPublicAccess": False,
            "Cluster.ResourcesVpcConfig.PublicAccessCidrs": ["203.0.113.7/32"],
        }
    ),
    "cluster-version": _of({"Cluster.Version": "1.35.6"}),
    "cluster-version-step": _of(
        {"Cluster.Version": "1.33"}, {"Cluster.Version": "1.36"}, update=True
    ),
    "nodes-mixed-update": _of(
        {
            "Nodes.ReleaseVersion": "1.35.6-20260714",
            "Nodes.ScalingConfig": {"MinSize": 0, "DesiredSize": 0, "MaxSize": 4},
        },
        update=True,
    ),
    "cluster-authentication-step": _of(
        {"Cluster.AccessConfig.AuthenticationMode": "CONFIG_MAP"}, update=True
    ),
    "cluster-service-range-size": _of(
        {"Cluster.KubernetesNetworkConfig.ServiceIpv4Cidr": "172.20.0.0/28"},
        {"Cluster.KubernetesNetworkConfig.ServiceIpv4Cidr": "172.20.0.0/16"},
    ),
    "cluster-service-range-public": _of(
        {"Cluster.KubernetesNetworkConfig.ServiceIpv4Cidr": "203.0.0.0/16"},
        {"Cluster.KubernetesNetworkConfig.ServiceIpv4Cidr": "172.20.0.0/16"},
    ),
    "cluster-encrypted-resources": _of(
        {
            "Cluster.EncryptionConfig": [
                {"Resources": ["pods"], "Provider": {"KeyArn": att("Key", "Arn")}}
            ]
        },
        {
            "Cluster.EncryptionConfig": [
                {"Resources": ["secrets"], "Provider": {"KeyArn": att("Key", "Arn")}}
            ]
        },
    ),
    "cluster-key": _of(
        {
            "Cluster.EncryptionConfig": [
                {"Resources": ["secrets"], "Provider": {"KeyArn": att("Key", "Arn")}}
            ],
            "Key.KeySpec": "RSA_2048",
            "Key.KeyUsage": "ENCRYPT_DECRYPT",
        },
        {
            "Cluster.EncryptionConfig": [
                {"Resources": ["secrets"], "Provider": {"KeyArn": att("Key", "Arn")}}
            ]
        },
    ),
    "nodes-types-twice": _of({"Nodes.InstanceTypes": ["trn1.32xlarge"]}),
    "nodes-subnets-of-template": _template(
        {"NetworkInterfaces": [{**_NIC, "SubnetId": ref("One")}]}, {"NetworkInterfaces": [_NIC]}
    ),
    "nodes-profile-of-template": _template({"IamInstanceProfile": {"Name": "mine"}}),
    "nodes-shutdown-of-template": _template({"InstanceInitiatedShutdownBehavior": "stop"}),
    "nodes-spot-of-template": _template({"InstanceMarketOptions.MarketType": "spot"}),
    "nodes-block": _of(
        {"Nodes.CapacityType": "CAPACITY_BLOCK"},
        {
            "Nodes.CapacityType": "CAPACITY_BLOCK",
            "Template.LaunchTemplateData": {"InstanceType": "trn1.32xlarge", **_BLOCK},
        },
    ),
    "nodes-block-type": _of(
        {
            "Template.LaunchTemplateData": {"InstanceType": "trn1.32xlarge", **_BLOCK},
            "Nodes.CapacityType": "ON_DEMAND",
        },
        {
            "Template.LaunchTemplateData": {"InstanceType": "trn1.32xlarge", **_BLOCK},
            "Nodes.CapacityType": "CAPACITY_BLOCK",
        },
    ),
    "nodes-disk": _of({"Nodes.DiskSize": 200}),
    "nodes-remote-access": _of({"Nodes.RemoteAccess": {"Ec2SshKey": "mine"}}),
    "nodes-template-id-and-name": _of({"Nodes.LaunchTemplate.Name": "mine"}),
    "nodes-image-without-template": _of({"Plain.AmiType": "CUSTOM"}),
    "nodes-image-twice": _template(
        {"ImageId": "ami-12345678"},
        nodes={"Nodes.Version": REMOVED, "Nodes.ReleaseVersion": REMOVED},
    ),
    "nodes-image-and-version": _template(
        {"ImageId": "ami-12345678"},
        nodes={"Nodes.AmiType": "CUSTOM", "Nodes.ReleaseVersion": REMOVED},
    ),
    "nodes-user-data": _template(
        {"UserData": _data("#!/bin/bash\ntrue\n")}, {"UserData": _data(_MULTIPART)}
    ),
    "nodes-desired": _of({"Nodes.ScalingConfig.DesiredSize": 3}),
    "nodes-minimum": _of({"Nodes.ScalingConfig.MinSize": 1}),
    "nodes-release": _of({"Nodes.ReleaseVersion": "1.34.9-20260625"}),
    "nodes-version": _of(
        {"Nodes.Version": "1.36", "Nodes.ReleaseVersion": REMOVED},
        {"Nodes.Version": "1.34", "Nodes.ReleaseVersion": REMOVED},
    ),
    "nodes-label": _of({"Nodes.Labels": {"kubernetes.io/role": "node"}}),
    "nodes-label-key": _of({"Nodes.Labels": {"-role": "node"}}),
    "nodes-label-value": _of({"Nodes.Labels": {"role": "a node"}}),
    "nodes-taint-key": _of({"Nodes.Taints.0.Key": "neuron devices"}),
    "nodes-update-config": _of(
        {"Nodes.UpdateConfig": {"MaxUnavailable": 1, "MaxUnavailablePercentage": 50}},
        {"Nodes.UpdateConfig": {"MaxUnavailable": 1}},
    ),
    "nodes-name": _of({"Nodes.NodegroupName": "x" * 64}, {"Nodes.NodegroupName": "x" * 63}),
    "entry-group": _of(
        {"Entry.KubernetesGroups": ["system:masters"]}, {"Entry.KubernetesGroups": ["mine"]}
    ),
    "entry-groups-of-nodes": _of(
        {
            "Entry.Type": "EC2_LINUX",
            "Entry.KubernetesGroups": ["mine"],
            "Entry.AccessPolicies": REMOVED,
        },
        {"Entry.Type": "EC2_LINUX", "Entry.AccessPolicies": REMOVED},
    ),
    "entry-policies-of-nodes": _of({"Entry.Type": "EC2_LINUX"}),
    "entry-name": _of({"Entry.Username": "system:me"}, {"Entry.Username": "me"}),
    "entry-policy": _of(
        {"Entry.AccessPolicies.0.PolicyArn": "arn:aws:iam::aws:policy/AdministratorAccess"}
    ),
    "entry-service-role": _of(
        {
            "Entry.PrincipalArn": "arn:aws:iam::111111111111:role/aws-service-role/"
            "batch.amazonaws.com/AWSServiceRoleForBatch"
        }
    ),
    "entry-scope-of-cluster": _of({_SCOPE: {"Type": "cluster", "Namespaces": ["trainium"]}}),
    "entry-scope-of-namespace": _of(
        {_SCOPE: {"Type": "namespace"}}, {_SCOPE: {"Type": "namespace", "Namespaces": ["mine"]}}
    ),
    "entry-mode": _of(
        {"Cluster.AccessConfig": {"AuthenticationMode": "CONFIG_MAP"}, "Entry.Type": "STANDARD"}
    ),
    "entry-twice": _of(
        {**_again("Entry"), "Entry.Type": "STANDARD"},
        {
            **_again("Entry", PrincipalArn="arn:aws:iam::111111111111:role/you"),
            "Entry.Type": "STANDARD",
        },
    ),
    "addon-configuration": _of(
        {"Addon.ConfigurationValues": '{"replicaCount": 2'},
        {"Addon.ConfigurationValues": '{"replicaCount": 2}'},
    ),
    "addon-version": _of(
        {"Addon.AddonVersion": "1.11.4"}, {"Addon.AddonVersion": "v1.11.4-eksbuild.2"}
    ),
    "addon-twice": _of(
        {**_again("Addon"), "Addon.ResolveConflicts": "OVERWRITE"},
        {**_again("Addon", AddonName="kube-proxy"), "Addon.ResolveConflicts": "OVERWRITE"},
    ),
    "identity-trust": _of({"Identity.RoleArn": att("NodeRole", "Arn")}),
    "identity-twice": _of(
        {**_again("Identity"), "Identity.Tags": []},
        {**_again("Identity", ServiceAccount="other"), "Identity.Tags": []},
    ),
    "identity-namespace": _of({"Identity.Namespace": "Trainium"}),
    "identity-account": _of({"Identity.ServiceAccount": "job_1"}),
    "chart-release-name": _of({"Chart.Release": "x" * 54}, {"Chart.Release": "x" * 53}),
}
