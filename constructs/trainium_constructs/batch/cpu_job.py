"""The job definition of a CPU workload: one container on a CPU instance."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_batch as batch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from trainium_catalogue.contract import launch_command
from trainium_catalogue.instances import JOB_MEMORY_MIB, JOB_VCPUS
from trainium_catalogue.workloads import Workload
from trainium_constructs.batch.job import JobDefinition, environment_pairs, log_configuration
from trainium_constructs.host_setup import NOFILE

_USER = "nobody"
_SHARED_MEMORY_MIB = 4096


class CpuJob(JobDefinition):
    """The job definition of one CPU workload; a submission may make it an array job."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        workload: Workload,
        image_uri: str,
        time_limit: cdk.Duration,
        environment: Mapping[str, str],
        execution_role: iam.IRole,
        log_group: logs.ILogGroup,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Define the job.

        Args:
            workload: Workload to run.
            image_uri: The training image, which runs on any x86-64 host.
            time_limit: Time limit of one attempt.
            environment: Environment variables of the container.
            execution_role: Role with which the ECS agent pulls the image and writes the log.
            log_group: Log group of the container.
            tags: Tags of the jobs.
        """
        super().__init__(scope, construct_id)
        requirement = batch.CfnJobDefinition.ResourceRequirementProperty
        self._define(
            type="container",
            time_limit=time_limit,
            tags=tags,
            container_properties=batch.CfnJobDefinition.ContainerPropertiesProperty(
                image=image_uri,
                command=launch_command(workload.name),
                # Not root: there is no Neuron device to open, and only root can reach the host's
                # metadata service (cpu_host_setup.sh).
                user=_USER,
                resource_requirements=[
                    requirement(type="VCPU", value=str(JOB_VCPUS)),
                    requirement(type="MEMORY", value=str(JOB_MEMORY_MIB)),
                ],
                environment=environment_pairs(environment),
                job_role_arn=self.job_role.role_arn,
                execution_role_arn=execution_role.role_arn,
                log_configuration=log_configuration(log_group),
                linux_parameters=batch.CfnJobDefinition.LinuxParametersProperty(
                    init_process_enabled=True, shared_memory_size=_SHARED_MEMORY_MIB
                ),
                ulimits=[
                    batch.CfnJobDefinition.UlimitProperty(
                        name="nofile", soft_limit=NOFILE, hard_limit=NOFILE
                    )
                ],
            ),
        )
