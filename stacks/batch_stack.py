"""The Batch stack: nodes that Batch starts for jobs; can be removed and re-created at any time."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from stacks.config import AppConfig
from stacks.data_jobs_stack import DataJobsStack, job_properties
from stacks.lustre_stack import LustreStack
from stacks.network_stack import NetworkStack
from stacks.reservations import reservation_of
from stacks.storage_stack import StorageStack
from trainium_catalogue import contract
from trainium_catalogue.workloads import WORKLOADS, Hardware, Workload
from trainium_constructs import (
    EfaLaunchTemplate,
    HostSetup,
    MultiNodeTrainingJob,
    PublishedContract,
    TrainingQueue,
    TrainiumComputeEnvironment,
    grant_data_uris,
)


class BatchStack(cdk.Stack):
    """Compute environment, queue, and a job definition for each workload on nodes."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: AppConfig,
        network: NetworkStack,
        storage: StorageStack,
        lustre: LustreStack,
        data: DataJobsStack,
        **kwargs: Any,
    ) -> None:
        """Create everything that runs jobs on nodes.

        Args:
            config: Configuration of the deployment.
            network: Network of the nodes.
            storage: Stack of the bucket.
            lustre: Stack of the file system that nodes mount.
            data: Stack of what all jobs share: image, logs, execution role.
        """
        super().__init__(scope, construct_id, **kwargs)
        self.add_stack_dependency(data, "its image has been pushed")
        self._config = config
        self._storage = storage
        self._mount = lustre.mount
        self._data = data
        self.launch_template = EfaLaunchTemplate(
            self,
            "Node",
            instance_type=config.instance,
            layout=config.efa_layout,
            security_groups=[network.network.security_group],
            user_data=HostSetup(
                instance_type=config.instance,
                release=config.release,
                lustre=lustre.mount,
                own_image=config.ami_id is not None,
            ).user_data(),
            root_volume_gib=config.root_volume_gib,
            reservation=reservation_of(config),
            terminate_on_shutdown=True,
        )
        self.compute = TrainiumComputeEnvironment(
            self,
            "Compute",
            instance_type=config.instance,
            network=network.network,
            launch_template=self.launch_template,
            image_id=config.ami_id or self._host_image(),
            max_vcpus=config.max_vcpus,
            min_vcpus=config.min_vcpus,
            scale_down_delay_minutes=config.scale_down_delay_minutes,
            placement_group=config.placement_group,
            reserved=reservation_of(config) is not None,
            shell=config.node_shell,
            instance_tags={"Name": construct_id, contract.TAG_DEPLOYMENT: config.deployment},
        )
        self.queue = TrainingQueue(
            self,
            "Jobs",
            environment_arn=self.compute.arn,
            runnable_time_limit=cdk.Duration.minutes(config.runnable_time_limit_minutes),
        )
        self.jobs = {
            workload.name: self._define(workload)
            for workload in WORKLOADS.values()
            if workload.hardware is Hardware.TRAINIUM
        }
        PublishedContract(self, "Contract", deployment=config.deployment, values=self._published())

    def _host_image(self) -> str:
        """The dated image that fits the release; the value of its parameter never changes."""
        return ssm.StringParameter.value_for_typed_string_parameter_v2(
            self,
            self._config.release.ecs_ami_ssm_parameter,
            ssm.ParameterValueType.AWS_EC2_IMAGE_ID,
        )

    def _define(self, workload: Workload) -> MultiNodeTrainingJob:
        config = self._config
        lustre = {contract.ENV_LUSTRE: contract.LUSTRE_MOUNT} if self._mount else {}
        job = MultiNodeTrainingJob(
            self,
            workload.name,
            instance_type=config.instance,
            max_nodes=min(config.max_nodes, workload.max_nodes or config.max_nodes),
            environment={
                **self._data.job_environment,
                contract.ENV_INSTANCE_TYPE: config.instance_type,
                contract.ENV_NEURON_RELEASE: config.neuron_release,
                **lustre,
            },
            host_folder=contract.LUSTRE_MOUNT if lustre else None,
            **job_properties(config, workload, self._data),
        )
        self._storage.bucket.grant(job.job_role, workload)
        grant_data_uris(job.job_role, workload, config.data_uris)
        return job

    def _published(self) -> dict[str, str]:
        return {
            contract.SSM_JOB_QUEUE: self.queue.arn,
            contract.SSM_COMPUTE_ENVIRONMENT: self.compute.arn,
            **{contract.ssm_job_definition(name): job.arn for name, job in self.jobs.items()},
        }
