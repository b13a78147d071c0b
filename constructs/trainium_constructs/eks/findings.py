"""What cdk-nag finds in the CDK's own cluster, and why it stays."""

from __future__ import annotations

import json

import aws_cdk as cdk
from aws_cdk import aws_eks_v2 as eks
from constructs import IConstruct

from trainium_constructs.nag import (
    acknowledge,
    acknowledge_managed_policy,
    acknowledge_wildcard,
    spelling_of,
)

_KEPT_BY_AWS = "AWS keeps this policy in step with what its service needs"


def acknowledge_cluster(cluster: eks.Cluster) -> None:
    """Record what is known about the cluster and about the functions that run kubectl and helm."""
    acknowledge_managed_policy(cluster.role, "AmazonEKSClusterPolicy", _KEPT_BY_AWS)
    _acknowledge_functions(cluster.node.find_child("KubectlProvider"))


def _acknowledge_functions(provider: IConstruct) -> None:
    """The CDK makes them with roles of its own; they live in the VPC and read public charts."""
    handler = provider.node.find_child("Handler")
    framework = provider.node.find_child("Provider").node.find_child("framework-onEvent")
    for function in (handler, framework):
        for policy in ("AWSLambdaBasicExecutionRole", "AWSLambdaVPCAccessExecutionRole"):
            acknowledge_managed_policy(function, f"service-role/{policy}", _KEPT_BY_AWS)
    acknowledge_managed_policy(handler, "AmazonEC2ContainerRegistryReadOnly", _KEPT_BY_AWS)
    acknowledge(handler, f"AwsSolutions-IAM4[Policy::{_public_registry(handler)}]", _KEPT_BY_AWS)
    acknowledge(handler, "AwsSolutions-L1", "the CDK pins the runtime that its own code runs on")
    resource = handler.node.default_child
    assert isinstance(resource, cdk.CfnResource)
    arn = spelling_of(resource.get_att("Arn").to_string(), owner=handler, reader=handler)
    acknowledge_wildcard(framework, f"{arn}:*", "any version of the one function behind it")


def _public_registry(handler: IConstruct) -> str:
    """How cdk-nag spells the policy that exists in the partition ``aws`` only."""
    condition = handler.node.find_child("HasEcrPublic")
    assert isinstance(condition, cdk.CfnCondition)
    stack = cdk.Stack.of(handler)
    policy = ":iam::aws:policy/AmazonElasticContainerRegistryPublicReadOnly"
    joined = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, policy]]}
    name = stack.resolve(condition.logical_id)
    choice = {"Fn::If": [name, joined, {"Ref": "AWS::NoValue"}]}
    return json.dumps(choice, separators=(",", ":"))
