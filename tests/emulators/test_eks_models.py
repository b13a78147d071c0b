"""Models of EKS: a real stack against the real server and its Kubernetes cluster."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import botocore.exceptions
import pytest

from tests.emulators.conftest import Server, serving_aws

Json = dict[str, Any]
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "pods.eks.amazonaws.com"},
            "Action": ["sts:AssumeRole", "sts:TagSession"],
        }
    ],
}
TOKEN = {"ServiceToken": "arn:aws:lambda:us-west-2:123456789012:function:x"}
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trainium"}}
ACCOUNT = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "job-mnist", "namespace": "trainium"},
}


def deploy(server: Server, name: str, resources: Json) -> None:
    template = json.dumps({"Resources": resources})
    server.client("cloudformation").create_stack(StackName=name, TemplateBody=template)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving_aws() as started:
        deploy(started, "cluster", cluster())
        yield started


@pytest.fixture(scope="module")
def kubernetes(server: Server) -> str:
    """Address of the API server as described by EKS."""
    described = server.client("eks").describe_cluster(name="training")["cluster"]
    return str(described["endpoint"])


def listed(kubernetes: str, path: str) -> list[Json]:
    with urllib.request.urlopen(f"{kubernetes}{path}") as answer:
        return list(json.load(answer)["items"])


def resource(kind: str, /, **properties: Any) -> Json:
    return {"Type": kind, "Properties": properties}


def of(kind: str, /, **properties: Any) -> Json:
    """Return a document of the API server."""
    return resource(kind, ClusterName={"Ref": "Cluster"}, **properties)


def manifest(*objects: Json, cluster: Any = None) -> Json:
    return resource(
        "Custom::AWSCDK-EKS-KubernetesResource",
        ClusterName=cluster or {"Ref": "Cluster"}, Manifest=json.dumps(objects), **TOKEN,
    )  # fmt: skip


def chart(**changes: Any) -> Json:
    properties = {
        "ClusterName": "training", "Release": "volcano", "Chart": "volcano", "Version": "1.15.1",
        "Repository": "https://volcano-sh.github.io/helm-charts", "Namespace": "volcano-system",
        **TOKEN,
    }  # fmt: skip
    return resource("Custom::AWSCDK-EKS-HelmChart", **{**properties, **changes})


def group(**changes: Any) -> Json:
    properties = {
        "NodeRole": {"Fn::GetAtt": ["Role", "Arn"]},
        "Subnets": [{"Ref": "Subnet"}],
        "AmiType": "AL2023_x86_64_NEURON",
        "LaunchTemplate": {"Id": {"Ref": "Template"}, "Version": "1"},
        "ScalingConfig": {"MinSize": 0, "DesiredSize": 1, "MaxSize": 2},
        "Taints": [{"Key": "aws.amazon.com/neuron", "Value": "true", "Effect": "NO_SCHEDULE"}],
        "Labels": {"trainium/group": "training"},
    }
    return of("AWS::EKS::Nodegroup", **{**properties, **changes})


def cluster(**changes: Any) -> Json:
    """Resources of a small deployment."""
    resources = {
        "Vpc": resource("AWS::EC2::VPC", CidrBlock="10.0.0.0/16"),
        "Subnet": resource(
            "AWS::EC2::Subnet",
            VpcId={"Ref": "Vpc"}, CidrBlock="10.0.0.0/24", AvailabilityZoneId="usw2-az1",
        ),
        "Second": resource(
            "AWS::EC2::Subnet",
            VpcId={"Ref": "Vpc"}, CidrBlock="10.0.1.0/24", AvailabilityZoneId="usw2-az2",
        ),
        "Role": resource("AWS::IAM::Role", AssumeRolePolicyDocument=TRUST),
        "Template": resource(
            "AWS::EC2::LaunchTemplate", LaunchTemplateData={"InstanceType": "trn1.32xlarge"}
        ),
        "Cluster": resource(
            "AWS::EKS::Cluster",
            Name="training", Version="1.35", RoleArn={"Fn::GetAtt": ["Role", "Arn"]},
            ResourcesVpcConfig={"SubnetIds": [{"Ref": "Subnet"}, {"Ref": "Second"}]},
            AccessConfig={"AuthenticationMode": "API"},
        ),
        "Provider": resource(
            "AWS::IAM::OIDCProvider",
            Url={"Fn::GetAtt": ["Cluster", "OpenIdConnectIssuerUrl"]},
        ),
        "Group": group(),
        "Agent": of("AWS::EKS::Addon", AddonName="eks-pod-identity-agent"),
        "Admin": of("AWS::EKS::AccessEntry", PrincipalArn="arn:aws:iam::123456789012:role/me"),
        "Identity": of(
            "AWS::EKS::PodIdentityAssociation",
            Namespace="trainium", ServiceAccount="job-mnist",
            RoleArn={"Fn::GetAtt": ["Role", "Arn"]},
        ),
        "Ready": resource("AWS::SSM::Parameter", Type="String", Value="ready"),
        "Namespace": manifest(NAMESPACE),
        "Account": {**manifest(ACCOUNT), "DependsOn": ["Namespace"]},
        "Volcano": {**chart(), "DependsOn": ["Account"]},
    }  # fmt: skip
    return {**resources, **changes}


def refusal(server: Server, wrong: Json) -> str:
    """Return the reason why a stack with one invalid resource is not created."""
    with pytest.raises(botocore.exceptions.ClientError) as error:
        deploy(server, f"wrong-{uuid.uuid4()}", {"Wrong": wrong})
    return str(error.value)


def test_cluster_members_are_listed(server: Server) -> None:
    eks = server.client("eks")

    assert eks.list_addons(clusterName="training")["addons"] == ["eks-pod-identity-agent"]
    (identity,) = eks.list_pod_identity_associations(clusterName="training")["associations"]
    assert (identity["namespace"], identity["serviceAccount"]) == ("trainium", "job-mnist")


def test_node_group_has_its_launch_templates_instance_type_on_ready_nodes(
    kubernetes: str,
) -> None:
    (node,) = listed(kubernetes, "/api/v1/nodes")

    labels = node["metadata"]["labels"]
    assert labels["node.kubernetes.io/instance-type"] == "trn1.32xlarge"
    assert labels["trainium/group"] == "training"
    assert node["spec"]["taints"][0]["effect"] == "NoSchedule"
    assert node["status"]["allocatable"]["aws.amazon.com/neuron"] == "16"
    assert {"type": "Ready", "status": "True"} in node["status"]["conditions"]


def test_scaling_changes_number_of_nodes(server: Server, kubernetes: str) -> None:
    eks = server.client("eks")
    (name,) = eks.list_nodegroups(clusterName="training")["nodegroups"]

    def scaled(size: int) -> int:
        eks.update_nodegroup_config(
            clusterName="training", nodegroupName=name, scalingConfig={"desiredSize": size}
        )
        return len(listed(kubernetes, "/api/v1/nodes"))

    assert [scaled(2), scaled(0), scaled(1)] == [2, 0, 1]
    with pytest.raises(botocore.exceptions.ClientError, match="the maximum 2"):
        scaled(3)


def auto_scaling_group(server: Server) -> Json:
    """Return the group behind the node group, found as on AWS."""
    eks = server.client("eks")
    (name,) = eks.list_nodegroups(clusterName="training")["nodegroups"]
    group = eks.describe_nodegroup(clusterName="training", nodegroupName=name)["nodegroup"]
    (behind,) = group["resources"]["autoScalingGroups"]
    (found,) = server.client("autoscaling").describe_auto_scaling_groups(
        AutoScalingGroupNames=[behind["name"]]
    )["AutoScalingGroups"]
    return dict(found)


@pytest.mark.parametrize(
    ("operation", "arguments", "words"),
    [
        ("set_desired_capacity", {"DesiredCapacity": 3}, "above max value 2"),
        (
            "terminate_instance_in_auto_scaling_group",
            {"InstanceId": "i-0", "ShouldDecrementDesiredCapacity": True},
            "No managed instance found for instance ID: i-0",
        ),
    ],
)
def test_auto_scaling_group_refuses_like_aws(
    server: Server, operation: str, arguments: Json, words: str
) -> None:
    if "DesiredCapacity" in arguments:
        name = auto_scaling_group(server)["AutoScalingGroupName"]
        arguments = {"AutoScalingGroupName": name, **arguments}
    with pytest.raises(botocore.exceptions.ClientError, match=words):
        getattr(server.client("autoscaling"), operation)(**arguments)


def test_group_without_capacity_fills_partially_with_reason(
    server: Server, kubernetes: str
) -> None:
    eks, autoscaling = server.client("eks"), server.client("autoscaling")
    (name,) = eks.list_nodegroups(clusterName="training")["nodegroups"]
    behind = auto_scaling_group(server)["AutoScalingGroupName"]
    before = listed(kubernetes, "/api/v1/nodes")

    def plant(**faults: Any) -> None:
        server.client("ssm").put_parameter(
            Name=f"/rehearsal/capacity/{name}", Value=json.dumps(faults), Type="String",
            Overwrite=True,
        )  # fmt: skip

    def described() -> Json:
        found = eks.describe_nodegroup(clusterName="training", nodegroupName=name)
        return dict(found["nodegroup"])

    plant(available=len(before))
    autoscaling.set_desired_capacity(AutoScalingGroupName=behind, DesiredCapacity=2)
    group, activities = (
        auto_scaling_group(server),
        autoscaling.describe_scaling_activities(AutoScalingGroupName=behind)["Activities"],
    )
    failing = described()
    plant()
    autoscaling.set_desired_capacity(AutoScalingGroupName=behind, DesiredCapacity=1)

    assert (group["DesiredCapacity"], len(group["Instances"])) == (2, 1)
    assert listed(kubernetes, "/api/v1/nodes") == before
    assert activities[0]["StatusCode"] == "Failed"
    assert "InsufficientInstanceCapacity" in activities[0]["StatusMessage"]
    (issue,) = failing["health"]["issues"]
    assert (failing["status"], issue["code"]) == ("DEGRADED", "AsgInstanceLaunchFailures")
    assert (described()["status"], described()["health"]["issues"]) == ("ACTIVE", [])


def test_changed_manifest_prunes_removed_objects(server: Server, kubernetes: str) -> None:
    other = {**ACCOUNT, "metadata": {"name": "job-bert", "namespace": "trainium"}}
    changed = {**manifest(other), "DependsOn": ["Namespace"]}

    server.client("cloudformation").update_stack(
        StackName="cluster", TemplateBody=json.dumps({"Resources": cluster(Account=changed)})
    )

    accounts = listed(kubernetes, "/api/v1/namespaces/trainium/serviceaccounts")
    assert [account["metadata"]["name"] for account in accounts] == ["job-bert"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (chart(Version=""), "specifies no chart version"),
        (chart(Repository=""), "no https:// or oci:// repository or chart"),
        (chart(Colour="red"), "Colour"),
        (manifest({**NAMESPACE, "spec": {"colour": "red"}}, cluster="training"), "colour"),
    ],
)  # fmt: skip
def test_object_refused_by_cluster_fails_deployment(
    server: Server, wrong: Json, named: str
) -> None:
    assert named in refusal(server, wrong)


def test_deleting_the_stack_leaves_nothing(server: Server, kubernetes: str) -> None:
    server.client("cloudformation").delete_stack(StackName="cluster")

    names = [item["metadata"]["name"] for item in listed(kubernetes, "/api/v1/namespaces")]
    assert listed(kubernetes, "/api/v1/nodes") == []
    assert "trainium" not in names
    assert server.client("eks").list_clusters()["clusters"] == []
    assert server.client("iam").list_open_id_connect_providers()["OpenIDConnectProviderList"] == []
    server.process.terminate()
    with pytest.raises(AssertionError):
        server.wait("nothing")
    actions = [event["action"] for event in server.events if event["event"] == "helm-release"]
    assert actions == ["installed", "uninstalled"]
