"""The data stack: CPU jobs, and the resources that all jobs share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from constructs import Construct

from stacks.config import AppConfig
from stacks.exports import always_export
from stacks.image_stack import ImageStack
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack
from trainium_catalogue import contract
from trainium_catalogue.releases import TorchBackend
from trainium_catalogue.workloads import WORKLOADS, Hardware, Workload
from trainium_constructs import (
    CpuComputeEnvironment,
    CpuJob,
    ExpiringLogGroup,
    JobExecutionRole,
    OwnRepositorySynthesizer,
    PublishedContract,
    TrainingImage,
    TrainingQueue,
    grant_data_uris,
    private_repository,
)

if TYPE_CHECKING:
    from trainium_constructs.scheduled import CheckedDeployment

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent


class DataJobsStack(cdk.Stack):
    """Data and export jobs, always on Batch; image, logs and contract for all jobs."""

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
        """Create the CPU environment, its queue and a job definition for each CPU workload.

        Args:
            config: Configuration of the deployment.
            network: Network of the instances.
            storage: Stack of the bucket.
            image: Stack of the repository to push to; None to use ``config.image_uri``.
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
        self.logs = ExpiringLogGroup(self, "Logs", retention_days=config.log_retention_days)
        self.image_uri, self.repository = self._image()
        self.execution_role = JobExecutionRole(
            self, "Execution", repository=self.repository, log_group=self.logs.log_group
        ).role
        always_export(
            self,
            self.execution_role.role_arn,
            self.logs.log_group.log_group_arn,
            self.logs.log_group.log_group_name,
        )
        self.job_environment = {
            contract.ENV_DEPLOYMENT: config.deployment,
            contract.ENV_BUCKET: storage.bucket.bucket.bucket_name,
            # ECS on EC2 provides a container's credentials but not its region.
            contract.ENV_REGION: self.region,
        }
        self.compute = CpuComputeEnvironment(
            self,
            "CpuCompute",
            vpc=network.network.vpc,
            subnets=network.network.subnets,
            instance_types=config.cpu_instance_types,
            max_vcpus=config.cpu_max_vcpus,
            spot=config.cpu_spot,
            instance_tags={"Name": construct_id, contract.TAG_DEPLOYMENT: config.deployment},
        )
        self.queue = TrainingQueue(
            self,
            "CpuJobs",
            environment_arn=self.compute.arn,
            runnable_time_limit=cdk.Duration.minutes(config.runnable_time_limit_minutes),
        )
        self.jobs = {
            workload.name: self._define(workload)
            for workload in WORKLOADS.values()
            if workload.hardware is Hardware.CPU
        }
        PublishedContract(self, "Contract", deployment=config.deployment, values=self._parameters())
        if config.monthly_budget_usd is not None:
            # Imported here: only deployments with a budget need its CDK module.
            from trainium_constructs.budget import MonthlyBudget

            MonthlyBudget(
                self,
                "Monthly",
                usd=config.monthly_budget_usd,
                email=config.notify_email,
                topic_arn=config.notify_topic_arn,
                tag=contract.TAG_DEPLOYMENT,
                value=config.deployment,
            )
            # The CDK CLI prints an output's name and value after each deployment.
            cdk.CfnOutput(
                self,
                "MonthlyBudget",
                value=(
                    "it only sends alerts, stops nothing, and stays at 0 until the management "
                    "(payer) account activates the cost allocation tag "
                    f"{contract.TAG_DEPLOYMENT} in Billing (up to 24 hours)"
                ),
            )
        if config.notifies:
            self._notify()

    def _notify(self) -> None:
        """Add the function that sends notifications; omitting its context keys removes it."""
        # Imported here: its CDK modules load slowly, and only notifications need them.
        from trainium_constructs.notifications import RunNotifications

        config = self._config
        notifications = RunNotifications(
            self,
            "Notifications",
            deployment=self.checked_deployment(),
            email=config.notify_email,
            topic_arn=config.notify_topic_arn,
            wait_minutes=config.notify_wait_minutes,
        )
        if config.notify_email is not None:
            cdk.CfnOutput(
                self,
                "ConfirmNotifications",
                value=notifications.topic.topic_arn,
                description=f"{config.notify_email} receives an email with a confirmation link",
            )

    def checked_deployment(self) -> CheckedDeployment:
        """Return the deployment for the functions that check its runs."""
        from trainium_constructs.scheduled import CheckedDeployment  # slow, and rarely needed

        return CheckedDeployment(
            name=self._config.deployment,
            sources=REPOSITORY_ROOT,
            bucket=self._storage.bucket,
            job_logs=self.logs.log_group,
            log_retention_days=self._config.log_retention_days,
        )

    def _image(self) -> tuple[str, ecr.IRepository | None]:
        if (base := self._config.image_base) is not None:
            built = TrainingImage(self, "Image", context=REPOSITORY_ROOT, base=base)
            return built.image_uri, built.repository
        assert self._config.image_uri is not None
        return self._config.image_uri, private_repository(
            self, "ImageRepository", self._config.image_uri
        )

    def _define(self, workload: Workload) -> CpuJob:
        job = CpuJob(
            self,
            workload.name,
            environment={**self.job_environment, contract.ENV_DEVICE: "cpu", **self._no_device},
            **job_properties(self._config, workload, self),
        )
        self._storage.bucket.grant(job.job_role, workload)
        grant_data_uris(job.job_role, workload, self._config.data_uris)
        return job

    @property
    def _no_device(self) -> dict[str, str]:
        """Variables that keep `import torch` from loading TorchNeuron, which needs a device."""
        if self._config.release.backend is not TorchBackend.TORCH_NEURON:
            return {}
        return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    def _parameters(self) -> dict[str, str]:
        """Return the values that every deployment publishes; other stacks publish their own."""
        config = self._config
        cap = config.max_cost_per_job_usd
        return {
            **({} if cap is None else {contract.SSM_MAX_COST_PER_JOB_USD: str(cap)}),
            contract.SSM_SETTINGS: serialized_settings(config),
            contract.SSM_CONTRACT_VERSION: contract.CONTRACT_VERSION,
            contract.SSM_ORCHESTRATORS: ",".join(config.orchestrators),
            contract.SSM_INSTANCE_TYPE: config.instance_type,
            contract.SSM_MAX_NODES: str(config.max_nodes),
            contract.SSM_NEURON_RELEASE: config.neuron_release,
            contract.SSM_CPU_JOB_QUEUE: self.queue.arn,
            contract.SSM_LOG_GROUP: self.logs.log_group.log_group_name,
            contract.SSM_JOB_TIME_LIMIT_HOURS: str(config.job_time_limit_hours),
            **{contract.ssm_job_definition(name): job.arn for name, job in self.jobs.items()},
        }


def serialized_settings(config: AppConfig) -> str:
    """Serialize this deployment's settings for their SSM parameter; ``null`` if too long for it."""
    settings = json.dumps(dict(config.settings))
    return settings if len(settings) <= contract.MAX_SETTINGS_CHARACTERS else "null"


def job_properties(config: AppConfig, workload: Workload, shared: DataJobsStack) -> dict[str, Any]:
    """Return the properties shared by the job definitions of all workloads."""
    hours = min(workload.time_limit_hours, config.job_time_limit_hours)
    return {
        "workload": workload,
        "image_uri": shared.image_uri,
        "time_limit": cdk.Duration.minutes(round(60 * hours)),
        "execution_role": shared.execution_role,
        "log_group": shared.logs.log_group,
        "tags": {
            contract.TAG_DEPLOYMENT: config.deployment,
            contract.TAG_WORKLOAD: workload.name,
        },
    }
