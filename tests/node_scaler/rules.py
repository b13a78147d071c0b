"""The default rules of a scaler, and node groups of an emulated account."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import boto3

from node_scaler.group import ManagedNodeGroup
from node_scaler.model import Rules
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.kubernetes import device_resources

TYPE = find_instance_type("trn1.32xlarge")
RULES = Rules(
    idle=timedelta(minutes=30),
    hold=timedelta(minutes=60),
    unusable=timedelta(minutes=10),
    join=timedelta(minutes=20),
    cordon_time=timedelta(seconds=20),
    devices=device_resources(TYPE),
)
_ROLE = "arn:aws:iam::123456789012:role/eks"


def create_node_groups(*names: str, desired: int) -> dict[str, ManagedNodeGroup]:
    """Create a cluster with node groups of at most four nodes each."""
    eks: Any = boto3.client("eks", region_name="us-west-2")
    autoscaling: Any = boto3.client("autoscaling", region_name="us-west-2")
    eks.create_cluster(name="training", roleArn=_ROLE, resourcesVpcConfig={"subnetIds": ["s"]})
    for name in names:
        eks.create_nodegroup(
            clusterName="training", nodegroupName=name, nodeRole=_ROLE, subnets=["s"],
            instanceTypes=[TYPE.name],
            scalingConfig={"minSize": 0, "desiredSize": desired, "maxSize": 4},
        )  # fmt: skip
    return {
        name: ManagedNodeGroup(cluster="training", name=name, eks=eks, autoscaling=autoscaling)
        for name in names
    }
