"""The job definition of a workload: one container on every node, all devices mapped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_batch as batch
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from trainium_catalogue.contract import ATTEMPTS, HOST_LOST_REASON, launch_command
from trainium_catalogue.exit_codes import FINAL
from trainium_catalogue.instances import InstanceType
from trainium_catalogue.workloads import Workload
from trainium_constructs.host_setup import NOFILE
from trainium_constructs.nag import acknowledge_wildcard

LOG_STREAM_PREFIX = "node"

# Batch's maximum.
MAX_RETRY_RULES = 5

_HOST_VOLUME = "host"

_RuleProperty = batch.CfnJobDefinition.EvaluateOnExitProperty


def retry_rules() -> list[batch.CfnJobDefinition.EvaluateOnExitProperty]:
    """Derive the retry rules from the table of exit codes.

    Apart from a lost host, only permanent failures are listed, because Batch retries anything that
    matches no rule (user guide, automated job retries). Five rules are therefore enough, and a main
    node that never started (image not pulled, task interface not attached, container engine too
    slow) is retried regardless of ECS's message. A lost host comes first, because its launcher may
    have exited with a final code.
    """
    rules = [
        _RuleProperty(action="RETRY", on_status_reason=HOST_LOST_REASON),
        *(_RuleProperty(action="EXIT", on_exit_code=str(int(code))) for code in FINAL),
    ]
    assert len(rules) <= MAX_RETRY_RULES, rules
    return rules


def environment_pairs(
    environment: Mapping[str, str],
) -> list[batch.CfnJobDefinition.EnvironmentProperty]:
    """Convert a container's environment to Batch's format."""
    return [
        batch.CfnJobDefinition.EnvironmentProperty(name=name, value=value)
        for name, value in environment.items()
    ]


def log_configuration(
    log_group: logs.ILogGroup,
) -> batch.CfnJobDefinition.LogConfigurationProperty:
    """Return a configuration that logs to ``log_group``, with one stream per container."""
    return batch.CfnJobDefinition.LogConfigurationProperty(
        log_driver="awslogs",
        options={
            "awslogs-group": log_group.log_group_name,
            "awslogs-region": cdk.Stack.of(log_group).region,
            "awslogs-stream-prefix": LOG_STREAM_PREFIX,
        },
    )


class JobExecutionRole(Construct):
    """The role that the ECS agent assumes to pull a container's image and write its log."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        repository: ecr.IRepository | None,
        log_group: logs.ILogGroup,
    ) -> None:
        """Allow access to ``log_group`` and ``repository``; None means a public registry."""
        super().__init__(scope, construct_id)
        self.role = iam.Role(
            self, "Role", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com")
        )
        log_group.grant_write(self.role)
        if repository is not None:
            repository.grant_pull(self.role)
            acknowledge_wildcard(
                self.role, "*", "ecr:GetAuthorizationToken has no resource-level permissions"
            )


class JobDefinition(Construct):
    """A job definition and the role of its jobs; subclasses add the container."""

    definition: batch.CfnJobDefinition

    def __init__(self, scope: Construct, construct_id: str) -> None:
        """Create the role."""
        super().__init__(scope, construct_id)
        self.job_role = iam.Role(
            self, "JobRole", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com")
        )

    def _define(
        self, *, time_limit: cdk.Duration, tags: Mapping[str, str] | None, **properties: Any
    ) -> None:
        """Create the definition, with ``time_limit`` for one attempt."""
        # L1: the L2 sets the end of the node range ("0:3"), which would prevent submissions from
        # overriding the number of nodes.
        self.definition = batch.CfnJobDefinition(
            self,
            "Definition",
            platform_capabilities=["EC2"],
            propagate_tags=True,
            tags=dict(tags or {}),
            timeout=batch.CfnJobDefinition.TimeoutProperty(
                attempt_duration_seconds=round(time_limit.to_seconds())
            ),
            retry_strategy=batch.CfnJobDefinition.RetryStrategyProperty(
                # A reclaimed Spot instance looks like a lost host.
                attempts=ATTEMPTS,
                evaluate_on_exit=retry_rules(),
            ),
            **properties,
        )

    @property
    def arn(self) -> str:
        """ARN of the definition, with its revision."""
        return self.definition.ref


class MultiNodeTrainingJob(JobDefinition):
    """The job definition of one workload, on any number of nodes."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        workload: Workload,
        instance_type: InstanceType,
        image_uri: str,
        max_nodes: int,
        time_limit: cdk.Duration,
        environment: Mapping[str, str],
        execution_role: iam.IRole,
        log_group: logs.ILogGroup,
        host_folder: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Define the job.

        Args:
            workload: Workload to run.
            instance_type: Type of the nodes; devices, vCPUs and memory follow from it.
            image_uri: The training image.
            max_nodes: Maximum number of nodes; each submission chooses its own.
            time_limit: Time limit of one attempt, for all nodes together.
            environment: Environment variables of every node.
            execution_role: Role that the ECS agent assumes to pull the image and write the log.
            log_group: Log group of the nodes.
            host_folder: Folder on the host, mounted in the container at the same path.
            tags: Tags of the jobs.
        """
        super().__init__(scope, construct_id)
        self._define(
            type="multinode",
            time_limit=time_limit,
            tags=tags,
            node_properties=batch.CfnJobDefinition.NodePropertiesProperty(
                main_node=0,
                num_nodes=min(workload.default_nodes, max_nodes),
                node_range_properties=[
                    batch.CfnJobDefinition.NodeRangePropertyProperty(
                        target_nodes="0:",
                        container=_container(
                            workload=workload,
                            instance_type=instance_type,
                            image_uri=image_uri,
                            environment=environment,
                            job_role=self.job_role,
                            execution_role=execution_role,
                            log_group=log_group,
                            host_folder=host_folder,
                        ),
                    )
                ],
            ),
        )


def _container(
    *,
    workload: Workload,
    instance_type: InstanceType,
    image_uri: str,
    environment: Mapping[str, str],
    job_role: iam.IRole,
    execution_role: iam.IRole,
    log_group: logs.ILogGroup,
    host_folder: str | None,
) -> batch.CfnJobDefinition.ContainerPropertiesProperty:
    requirement = batch.CfnJobDefinition.ResourceRequirementProperty
    ulimit = batch.CfnJobDefinition.UlimitProperty
    return batch.CfnJobDefinition.ContainerPropertiesProperty(
        image=image_uri,
        command=launch_command(workload.name),
        instance_type=instance_type.name,
        # The Neuron runtime opens /dev/neuron*, which belong to root.
        user="root",
        resource_requirements=[
            requirement(type="VCPU", value=str(instance_type.container_vcpus)),
            requirement(type="MEMORY", value=str(instance_type.container_memory_mib)),
        ],
        environment=environment_pairs(environment),
        job_role_arn=job_role.role_arn,
        execution_role_arn=execution_role.role_arn,
        log_configuration=log_configuration(log_group),
        volumes=[
            batch.CfnJobDefinition.VolumesProperty(
                name=_HOST_VOLUME,
                host=batch.CfnJobDefinition.VolumesHostProperty(source_path=host_folder),
            )
        ]
        if host_folder
        else None,
        mount_points=[
            batch.CfnJobDefinition.MountPointsProperty(
                source_volume=_HOST_VOLUME, container_path=host_folder
            )
        ]
        if host_folder
        else None,
        linux_parameters=batch.CfnJobDefinition.LinuxParametersProperty(
            # Reaps the processes that a killed launcher leaves behind.
            init_process_enabled=True,
            shared_memory_size=instance_type.shared_memory_mib,
            # Container path and permissions default to the same path, and to read, write and
            # mknod (AWS Batch API reference, Device); spelled out, they would make up a quarter
            # of the templates, which every synthesis checks.
            devices=[
                batch.CfnJobDefinition.DeviceProperty(host_path=path)
                for path in (
                    *instance_type.neuron_device_paths(),
                    *instance_type.efa_device_paths(),
                )
            ],
        ),
        ulimits=[
            # EFA pins the memory that it registers.
            ulimit(name="memlock", soft_limit=-1, hard_limit=-1),
            ulimit(name="nofile", soft_limit=NOFILE, hard_limit=NOFILE),
        ],
    )
