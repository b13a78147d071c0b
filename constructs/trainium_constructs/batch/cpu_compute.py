"""The compute environment of data and export jobs: CPU instances, Spot by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aws_cdk as cdk
from aws_cdk import aws_batch as batch
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from trainium_constructs.batch.compute import UPDATE_TIMEOUT_MINUTES, instance_profile
from trainium_constructs.host_setup import cpu_host_user_data
from trainium_constructs.launch_template import root_volume

ROOT_VOLUME_GIB = 200
"""Enough for the unpacked training image and a job's shards."""


class CpuComputeEnvironment(Construct):
    """Instances that Batch launches for CPU jobs, in any zone, and terminates afterwards."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        vpc: ec2.IVpc,
        subnets: Sequence[ec2.ISubnet],
        instance_types: Sequence[str],
        max_vcpus: int,
        spot: bool,
        instance_tags: Mapping[str, str] | None = None,
    ) -> None:
        """Create the environment.

        Args:
            vpc: VPC of the instances.
            subnets: Private subnets with a route to ECR, S3 and the internet; more zones give Spot
                more capacity pools.
            instance_types: Instance types that Batch may choose from.
            max_vcpus: Limit across all concurrent jobs.
            spot: Use Spot Instances; a job whose instance EC2 reclaims is retried.
            instance_tags: Tags of the instances.
        """
        super().__init__(scope, construct_id)
        group = ec2.SecurityGroup(
            self, "Group", vpc=vpc, description="CPU jobs: HTTPS out", allow_all_outbound=False
        )
        group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.HTTPS, "HTTPS")
        # Some corpora are published over plain HTTP; downloads are verified by sha256.
        group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.HTTP, "HTTP")
        self.instance_role, profile = instance_profile(self)
        template = _launch_template(self, group)
        # L1: the L2 drops the launch template's version.
        self.environment = batch.CfnComputeEnvironment(
            self,
            "Environment",
            type="MANAGED",
            state="ENABLED",
            replace_compute_environment=False,
            compute_resources=batch.CfnComputeEnvironment.ComputeResourcesProperty(
                type="SPOT" if spot else "EC2",
                allocation_strategy=(
                    "SPOT_PRICE_CAPACITY_OPTIMIZED" if spot else "BEST_FIT_PROGRESSIVE"
                ),
                instance_types=list(instance_types),
                instance_role=profile.attr_arn,
                minv_cpus=0,
                maxv_cpus=max_vcpus,
                subnets=[subnet.subnet_id for subnet in subnets],
                launch_template=batch.CfnComputeEnvironment.LaunchTemplateSpecificationProperty(
                    launch_template_id=template.ref, version=template.attr_latest_version_number
                ),
                # Without an AMI ID, Batch uses AWS's ECS-optimized image.
                ec2_configuration=[
                    batch.CfnComputeEnvironment.Ec2ConfigurationObjectProperty(
                        image_type="ECS_AL2023"
                    )
                ],
                tags=dict(instance_tags or {}),
            ),
            update_policy=batch.CfnComputeEnvironment.UpdatePolicyProperty(
                terminate_jobs_on_update=False,
                job_execution_timeout_minutes=UPDATE_TIMEOUT_MINUTES,
            ),
        )
        self.environment.node.add_dependency(self.instance_role)

    @property
    def arn(self) -> str:
        """ARN of the environment."""
        return self.environment.attr_compute_environment_arn


def _launch_template(scope: Construct, group: ec2.ISecurityGroup) -> ec2.CfnLaunchTemplate:
    template = ec2.CfnLaunchTemplate
    return ec2.CfnLaunchTemplate(
        scope,
        "Template",
        launch_template_data=template.LaunchTemplateDataProperty(
            security_group_ids=[group.security_group_id],
            block_device_mappings=[root_volume(ROOT_VOLUME_GIB)],
            metadata_options=template.MetadataOptionsProperty(
                http_endpoint="enabled",
                http_tokens="required",
                # Blocks instance metadata for containers with their own network. Batch's jobs share
                # the host's network instead, where a rule in the user data blocks it.
                http_put_response_hop_limit=1,
                http_protocol_ipv6="disabled",
            ),
            instance_initiated_shutdown_behavior="terminate",
            user_data=cdk.Fn.base64(cpu_host_user_data()),
        ),
    )
