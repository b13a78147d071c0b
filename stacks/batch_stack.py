"""The Batch stack: what runs jobs; it can be destroyed and deployed again at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from stacks.config import AppConfig
from stacks.image_stack import ImageStack
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack
from trainium_catalogue import contract
from trainium_catalogue.workloads import WORKLOADS, Hardware, Workload
from trainium_constructs import (
    CpuComputeEnvironment,
    CpuJob,
    EfaLaunchTemplate,
    HostSetup,
    JobExecutionRole,
    MultiNodeTrainingJob,
    OwnRepositorySynthesizer,
    PublishedContract,
    Reservation,
    RetainedLogs,
    TrainingImage,
    TrainingQueue,
    TrainiumComputeEnvironment,
    grant_data_uris,
    private_repository,
)

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent


class BatchStack(cdk.Stack):
    """Compute environment, queue, one job definition a workload, and the published contract."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: AppConfig,
        network: NetworkStack,
        storage: StorageStack,
        image: ImageStack | None,
        **kwargs: Any,
    ) -> None:
        """Create what runs jobs.

        Args:
            scope: Parent of the stack.
            construct_id: Id of the stack.
            config: What one deployment is to be.
            network: Where nodes live.
            storage: Where data lives.
            image: Where the built image goes. Default: nothing is built, ``config.image_uri`` runs.
            **kwargs: Everything else a stack takes.
        """
        if image is not None:
            kwargs["synthesizer"] = OwnRepositorySynthesizer(
                images=image,
                repository_name=image.repository_name,
                publishing_role_name=image.publishing_role_name,
            )
        super().__init__(scope, construct_id, **kwargs)
        if image is not None:
            self.add_stack_dependency(image, "the image is pushed to its repository")
        self._config = config
        self._storage = storage
        self.logs = RetainedLogs(self, "Logs", retention_days=config.log_retention_days)
        self.launch_template = EfaLaunchTemplate(
            self,
            "Node",
            instance_type=config.instance,
            layout=config.efa_layout,
            security_group=network.network.security_group,
            host=HostSetup(
                instance_type=config.instance, release=config.release, lustre=storage.lustre
            ),
            root_volume_gib=config.root_volume_gib,
            reservation=_reservation(config),
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
            placement_group=_reservation(config) is None,
            instance_tags={"Name": construct_id, contract.TAG_DEPLOYMENT: config.deployment},
        )
        self.queue = TrainingQueue(
            self,
            "Jobs",
            environment_arn=self.compute.arn,
            runnable_time_limit=cdk.Duration.minutes(config.runnable_time_limit_minutes),
        )
        self.cpu = CpuComputeEnvironment(
            self,
            "CpuCompute",
            vpc=network.network.vpc,
            subnet=network.network.subnet,
            instance_types=config.cpu_instance_types,
            max_vcpus=config.cpu_max_vcpus,
            spot=config.cpu_spot,
            instance_tags={
                "Name": f"{construct_id}-cpu",
                contract.TAG_DEPLOYMENT: config.deployment,
            },
        )
        self.cpu_queue = TrainingQueue(
            self,
            "CpuJobs",
            environment_arn=self.cpu.arn,
            runnable_time_limit=cdk.Duration.minutes(config.runnable_time_limit_minutes),
        )
        image_uri, repository = self._image()
        execution_role = JobExecutionRole(
            self, "Execution", repository=repository, log_group=self.logs.log_group
        )
        self.jobs = {
            name: self._define(workload, image_uri, execution_role)
            for name, workload in WORKLOADS.items()
        }
        PublishedContract(self, "Contract", deployment=config.deployment, values=self._published())

    def _host_image(self) -> str:
        """The dated image that fits the release; its parameter never changes its value."""
        return ssm.StringParameter.value_for_typed_string_parameter_v2(
            self,
            self._config.release.ecs_ami_ssm_parameter,
            ssm.ParameterValueType.AWS_EC2_IMAGE_ID,
        )

    def _image(self) -> tuple[str, ecr.IRepository | None]:
        if (base_image := self._config.build_base_image) is not None:
            built = TrainingImage(self, "Image", context=REPOSITORY_ROOT, base_image=base_image)
            return built.image_uri, built.repository
        assert self._config.image_uri is not None
        return self._config.image_uri, private_repository(
            self, "ImageRepository", self._config.image_uri
        )

    def _define(
        self, workload: Workload, image_uri: str, execution_role: JobExecutionRole
    ) -> MultiNodeTrainingJob | CpuJob:
        config = self._config
        common: dict[str, Any] = {
            "workload": workload,
            "image_uri": image_uri,
            "time_limit": cdk.Duration.minutes(
                round(60 * min(workload.time_limit_hours, config.job_time_limit_hours))
            ),
            "execution_role": execution_role.role,
            "log_group": self.logs.log_group,
            "tags": {
                contract.TAG_DEPLOYMENT: config.deployment,
                contract.TAG_WORKLOAD: workload.name,
            },
        }
        job: MultiNodeTrainingJob | CpuJob
        if workload.hardware is Hardware.CPU:
            environment = {**self._environment(), contract.ENV_DEVICE: "cpu"}
            job = CpuJob(self, workload.name, environment=environment, **common)
        else:
            lustre = {contract.ENV_LUSTRE: contract.LUSTRE_MOUNT} if self._storage.lustre else {}
            job = MultiNodeTrainingJob(
                self,
                workload.name,
                instance_type=config.instance,
                max_nodes=min(config.max_nodes, workload.max_nodes or config.max_nodes),
                environment={
                    **self._environment(),
                    contract.ENV_INSTANCE_TYPE: config.instance_type,
                    contract.ENV_NEURON_RELEASE: config.neuron_release,
                    **lustre,
                },
                host_folder=contract.LUSTRE_MOUNT if lustre else None,
                **common,
            )
        self._storage.bucket.grant(job.job_role, workload)
        grant_data_uris(job.job_role, workload, config.data_uris)
        return job

    def _environment(self) -> dict[str, str]:
        return {
            contract.ENV_DEPLOYMENT: self._config.deployment,
            contract.ENV_BUCKET: self._storage.bucket.bucket.bucket_name,
            # ECS on EC2 tells a container its credentials but not its region.
            contract.ENV_REGION: self.region,
        }

    def _published(self) -> dict[str, str]:
        """What this stack knows; the stacks of the network and the bucket publish theirs."""
        config = self._config
        return {
            contract.SSM_CONTRACT_VERSION: contract.CONTRACT_VERSION,
            contract.SSM_INSTANCE_TYPE: config.instance_type,
            contract.SSM_MAX_NODES: str(config.max_nodes),
            contract.SSM_NEURON_RELEASE: config.neuron_release,
            contract.SSM_JOB_QUEUE: self.queue.arn,
            contract.SSM_CPU_JOB_QUEUE: self.cpu_queue.arn,
            contract.SSM_COMPUTE_ENVIRONMENT: self.compute.arn,
            contract.SSM_LOG_GROUP: self.logs.log_group.log_group_name,
            contract.SSM_JOB_TIME_LIMIT_HOURS: str(config.job_time_limit_hours),
            **{contract.ssm_job_definition(name): job.arn for name, job in self.jobs.items()},
        }


def _reservation(config: AppConfig) -> Reservation | None:
    if config.capacity_block_id is not None:
        return Reservation(reservation_id=config.capacity_block_id, is_block=True)
    if config.capacity_reservation_id is not None:
        return Reservation(reservation_id=config.capacity_reservation_id)
    return None
