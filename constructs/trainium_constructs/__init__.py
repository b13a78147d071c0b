"""CDK constructs for training on AWS Trainium with AWS Batch and EFA; ``eks`` is for Amazon EKS."""

from trainium_constructs.batch.compute import TrainingQueue, TrainiumComputeEnvironment
from trainium_constructs.batch.cpu_compute import CpuComputeEnvironment
from trainium_constructs.batch.cpu_job import CpuJob
from trainium_constructs.batch.job import JobExecutionRole, MultiNodeTrainingJob
from trainium_constructs.contract import PublishedContract
from trainium_constructs.host_setup import HostSetup
from trainium_constructs.images import (
    ImageRepository,
    OwnRepositorySynthesizer,
    TrainingImage,
    private_repository,
)
from trainium_constructs.launch_template import EfaLaunchTemplate, Reservation
from trainium_constructs.log_group import ExpiringLogGroup
from trainium_constructs.lustre import LustreAccess, LustreFileSystem, LustreMount
from trainium_constructs.network import EfaNetwork, EfaSecurityGroup, NodeVpc
from trainium_constructs.storage import TrainingBucket, grant_data_uris

__all__ = [
    "CpuComputeEnvironment",
    "CpuJob",
    "EfaLaunchTemplate",
    "EfaNetwork",
    "EfaSecurityGroup",
    "ExpiringLogGroup",
    "HostSetup",
    "ImageRepository",
    "JobExecutionRole",
    "LustreAccess",
    "LustreFileSystem",
    "LustreMount",
    "MultiNodeTrainingJob",
    "NodeVpc",
    "OwnRepositorySynthesizer",
    "PublishedContract",
    "Reservation",
    "TrainingBucket",
    "TrainingImage",
    "TrainingQueue",
    "TrainiumComputeEnvironment",
    "grant_data_uris",
    "private_repository",
]
