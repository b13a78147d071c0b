"""The compute environment of the nodes, and its queue."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_batch as batch
from aws_cdk import aws_iam as iam
from constructs import Construct

from trainium_catalogue.instances import InstanceType
from trainium_constructs.launch_template import EfaLaunchTemplate
from trainium_constructs.nag import acknowledge_managed_policy
from trainium_constructs.network import EfaNetwork, zone_placement_group
from trainium_constructs.shell import allow_sessions

UPDATE_TIMEOUT_MINUTES = 7200
"""Time for running jobs to finish when an infrastructure update replaces the instances: Batch's
maximum (API reference, UpdatePolicy), since each job has its own time limit. By default an update,
such as any new version of the launch template, ends them after 30 minutes."""
INSTANCE_POLICY = "service-role/AmazonEC2ContainerServiceforEC2Role"

# The three reasons that a queue can act on (AWS Batch User Guide, jobStateTimeLimitActions). A job
# blocked for any other reason, such as hosts that never join, has to be stopped by hand.
BLOCKED_REASONS = (
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE",
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT",
)


def instance_profile(
    scope: Construct, *, shell: bool = False
) -> tuple[iam.Role, iam.CfnInstanceProfile]:
    """Create a host's role: the ECS agent's rights, none of a job's; ``shell`` adds sessions."""
    role = iam.Role(
        scope,
        "InstanceRole",
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(INSTANCE_POLICY)],
    )
    acknowledge_managed_policy(
        role,
        INSTANCE_POLICY,
        "AWS keeps this policy in step with what the ECS agent needs; jobs have roles of their own",
    )
    if shell:
        allow_sessions(role)
    return role, iam.CfnInstanceProfile(scope, "InstanceProfile", roles=[role.role_name])


class TrainiumComputeEnvironment(Construct):
    """Nodes that Batch starts close together for jobs, and stops afterwards."""

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
            network: Subnet of the nodes. Tasks have its group if the launch template lists no
                interfaces, and otherwise the VPC's default group.
            launch_template: Launch template of the nodes.
            image_id: Host image: ECS-optimised, with the Neuron driver.
            max_vcpus: Limit across all jobs that run at the same time.
            min_vcpus: vCPUs that always run, and always cost.
            scale_down_delay_minutes: Time that an idle node waits for another job. Default:
                Batch's own, a few minutes.
            placement_group: Existing cluster placement group to start nodes in. Default: a new one,
                and none for reserved capacity.
            reserved: Start nodes in reserved capacity, which already has its place: a new group
                would contradict it.
            shell: Let hosts accept sessions of AWS Systems Manager.
            instance_tags: Tags of the instances.
        """
        super().__init__(scope, construct_id)
        if not 0 <= min_vcpus <= max_vcpus:
            raise ValueError(f"min_vcpus must be 0 to max_vcpus={max_vcpus}, got {min_vcpus}")
        self.instance_role, profile = instance_profile(self, shell=shell)
        group = placement_group
        if group is None and not reserved:
            group = zone_placement_group(self, network)
        # Batch refuses groups of the environment beside interfaces of its template: "Either compute
        # environment Security Groups or Network Interfaces in Launch template are exclusively
        # allowed" (github.com/aws/aws-cdk/issues/21577). A task of a multi-node job has an
        # interface of its own (awsvpc), with the environment's groups or, without any, the VPC's
        # default group (docs.aws.amazon.com/batch/latest/userguide/mnp-ce.html).
        lists_interfaces = launch_template.lists_interfaces
        # L1: the L2 drops the launch template's version (Batch then uses version 1 forever) and
        # has no scale-down delay.
        self.environment = batch.CfnComputeEnvironment(
            self,
            # Two ids: changing between the two kinds creates a new environment. It would not work
            # in place, since groups that an update leaves out stay (UpdateComputeEnvironment, API
            # reference: an empty list removes them, and CloudFormation sends none).
            "Environment" if lists_interfaces else "EnvironmentWithGroups",
            type="MANAGED",
            state="ENABLED",
            # CloudFormation's default, true, would replace the environment on every change; with
            # this allocation strategy and the service-linked role Batch updates it in place.
            replace_compute_environment=False,
            compute_resources=batch.CfnComputeEnvironment.ComputeResourcesProperty(
                # Multi-node jobs run only on on-demand EC2.
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
                    # There is no Neuron image type; this one only selects how ECS is set up.
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
        # The agent can neither register nor deregister while its role has no policy.
        self.environment.node.add_dependency(self.instance_role)

    @property
    def arn(self) -> str:
        """ARN of the environment."""
        return self.environment.attr_compute_environment_arn


class TrainingQueue(Construct):
    """The queue of one compute environment."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment_arn: str,
        runnable_time_limit: cdk.Duration,
    ) -> None:
        """Create the queue; it cancels jobs that cannot start after ``runnable_time_limit``."""
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
