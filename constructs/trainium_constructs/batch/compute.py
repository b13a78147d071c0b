"""The compute environment and the queue of the nodes."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_batch as batch
from aws_cdk import aws_iam as iam
from constructs import Construct

from trainium_catalogue.instances import InstanceType
from trainium_constructs.launch_template import EfaLaunchTemplate
from trainium_constructs.nag import acknowledge_managed_policy
from trainium_constructs.network import EfaNetwork, zone_placement_groups
from trainium_constructs.shell import allow_sessions

UPDATE_TIMEOUT_MINUTES = 7200
"""Time that jobs may keep running when an infrastructure update, such as a new launch template
version, replaces the instances. Batch's maximum (API reference, UpdatePolicy), because each job
has its own time limit; the default is 30 minutes."""
INSTANCE_POLICY = "service-role/AmazonEC2ContainerServiceforEC2Role"

# The only three reasons that a queue can act on (AWS Batch User Guide, jobStateTimeLimitActions).
# A job blocked for another reason, such as hosts that never join, must be stopped manually.
BLOCKED_REASONS = (
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE",
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT",
)


def instance_profile(
    scope: Construct, *, shell: bool = False
) -> tuple[iam.Role, iam.CfnInstanceProfile]:
    """Create the hosts' instance profile and its role, with the ECS agent's permissions.

    ``shell`` also allows Session Manager sessions.
    """
    role = iam.Role(
        scope,
        "InstanceRole",
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(INSTANCE_POLICY)],
    )
    acknowledge_managed_policy(
        role,
        INSTANCE_POLICY,
        "AWS maintains this policy for the ECS agent; jobs have roles of their own",
    )
    if shell:
        allow_sessions(role)
    return role, iam.CfnInstanceProfile(scope, "InstanceProfile", roles=[role.role_name])


class TrainiumComputeEnvironment(Construct):
    """A managed compute environment.

    Batch launches its nodes close together for jobs, and terminates them afterwards.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        instance_type: InstanceType,
        network: EfaNetwork,
        launch_template: EfaLaunchTemplate,
        image_id: str,
        max_vcpus: int,
        min_vcpus: int = 0,
        scale_down_delay_minutes: int | None = None,
        placement_group: str | None = None,
        reserved: bool = False,
        shell: bool = False,
        instance_tags: Mapping[str, str] | None = None,
    ) -> None:
        """Create the environment.

        Args:
            instance_type: The one type of all nodes.
            network: Subnet of the nodes. Tasks use the network's security group if the launch
                template lists no interfaces, otherwise the VPC's default security group.
            launch_template: Launch template of the nodes.
            image_id: AMI of the nodes: ECS-optimized, with the Neuron driver.
            max_vcpus: Limit across all concurrent jobs.
            min_vcpus: vCPUs that always run and are always billed.
            scale_down_delay_minutes: Idle timeout of a node. Default: Batch's own, several
                minutes.
            placement_group: Existing cluster placement group to launch nodes in. Default: a new
                one, but none for reserved capacity.
            reserved: Launch nodes in reserved capacity, whose placement is already fixed: a new
                placement group would conflict with it.
            shell: Let hosts accept AWS Systems Manager sessions.
            instance_tags: Tags of the instances.
        """
        super().__init__(scope, construct_id)
        if not 0 <= min_vcpus <= max_vcpus:
            raise ValueError(f"min_vcpus must be from 0 to max_vcpus={max_vcpus}, got {min_vcpus}")
        self.instance_role, profile = instance_profile(self, shell=shell)
        self.placement_groups: Mapping[str, str] = {}
        """Names of the created placement groups, by zone."""
        group = placement_group
        if group is None and not reserved:
            self.placement_groups = zone_placement_groups(self, network)
            group = self.placement_groups[network.zone]
        # Batch refuses security groups of the environment if its launch template lists interfaces:
        # "Either compute environment Security Groups or Network Interfaces in Launch template are
        # exclusively allowed" (github.com/aws/aws-cdk/issues/21577). A task of a multi-node job has
        # an interface of its own (awsvpc), with the environment's groups or, without any, the VPC's
        # default security group (docs.aws.amazon.com/batch/latest/userguide/mnp-ce.html).
        lists_interfaces = launch_template.lists_interfaces
        # L1: the L2 drops the launch template's version (Batch then uses version 1 forever) and
        # has no scale-down delay.
        self.environment = batch.CfnComputeEnvironment(
            self,
            # Two ids, so that a launch template that starts or stops listing interfaces creates a
            # new environment. An in-place update would keep omitted groups: only an empty list
            # removes them, and CloudFormation sends none (UpdateComputeEnvironment, API reference).
            "Environment" if lists_interfaces else "EnvironmentWithGroups",
            type="MANAGED",
            state="ENABLED",
            # CloudFormation's default, true, would replace the environment on every change; with
            # this allocation strategy and the service-linked role, Batch updates it in place.
            replace_compute_environment=False,
            compute_resources=batch.CfnComputeEnvironment.ComputeResourcesProperty(
                # Multi-node jobs run on On-Demand EC2 only.
                type="EC2",
                allocation_strategy="BEST_FIT_PROGRESSIVE",
                instance_types=[instance_type.name],
                instance_role=profile.attr_arn,
                minv_cpus=min_vcpus,
                maxv_cpus=max_vcpus,
                subnets=[network.subnet.subnet_id],
                security_group_ids=(
                    None if lists_interfaces else [network.security_group.security_group_id]
                ),
                placement_group=group,
                launch_template=batch.CfnComputeEnvironment.LaunchTemplateSpecificationProperty(
                    launch_template_id=launch_template.launch_template_id,
                    version=launch_template.version,
                ),
                ec2_configuration=[
                    # Batch has no image type for Neuron; this one only selects the setup for ECS.
                    batch.CfnComputeEnvironment.Ec2ConfigurationObjectProperty(
                        image_type="ECS_AL2023", image_id_override=image_id
                    )
                ],
                scaling_policy=(
                    None
                    if scale_down_delay_minutes is None
                    else batch.CfnComputeEnvironment.ComputeScalingPolicyProperty(
                        min_scale_down_delay_minutes=scale_down_delay_minutes
                    )
                ),
                tags=dict(instance_tags or {}),
            ),
            update_policy=batch.CfnComputeEnvironment.UpdatePolicyProperty(
                terminate_jobs_on_update=False,
                job_execution_timeout_minutes=UPDATE_TIMEOUT_MINUTES,
            ),
        )
        # Without a policy on its role, the ECS agent can neither register nor deregister the host.
        self.environment.node.add_dependency(self.instance_role)

    @property
    def arn(self) -> str:
        """ARN of the environment."""
        return self.environment.attr_compute_environment_arn


class TrainingQueue(Construct):
    """The job queue of one compute environment."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment_arn: str,
        runnable_time_limit: cdk.Duration,
    ) -> None:
        """Create the queue.

        Args:
            environment_arn: Compute environment of the queue.
            runnable_time_limit: Time after which the job at the head of the queue is cancelled if
                it is blocked for one of ``BLOCKED_REASONS``.
        """
        super().__init__(scope, construct_id)
        self.queue = batch.CfnJobQueue(
            self,
            "Queue",
            priority=1,
            state="ENABLED",
            compute_environment_order=[
                batch.CfnJobQueue.ComputeEnvironmentOrderProperty(
                    order=1, compute_environment=environment_arn
                )
            ],
            job_state_time_limit_actions=[
                batch.CfnJobQueue.JobStateTimeLimitActionProperty(
                    action="CANCEL",
                    state="RUNNABLE",
                    reason=reason,
                    max_time_seconds=round(runnable_time_limit.to_seconds()),
                )
                for reason in BLOCKED_REASONS
            ],
        )

    @property
    def arn(self) -> str:
        """ARN of the queue."""
        return self.queue.attr_job_queue_arn
