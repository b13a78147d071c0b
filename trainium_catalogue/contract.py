"""Names that the stacks publish and nodes and the CLI read; docs/interfaces.md shows them."""

from enum import StrEnum
from typing import Final

CONTRACT_VERSION: Final = "3"
"""Raised when a name below changes its meaning; the CLI refuses any other version."""

DEFAULT_DEPLOYMENT: Final = "default"


class Orchestrator(StrEnum):
    """A service that runs jobs on nodes, as `cdk deploy` and the published parameters name it."""

    BATCH = "batch"
    EKS = "eks"

    @property
    def who(self) -> str:
        """Name the component that restarts a job and reports the reasons, if any."""
        return "Batch" if self is Orchestrator.BATCH else "Volcano"


# --- SSM parameters, below /trainium/<deployment>/ ---------------------------------------------
SSM_CONTRACT_VERSION: Final = "contract-version"
SSM_REGION: Final = "region"
SSM_INSTANCE_TYPE: Final = "instance-type"
SSM_VPC: Final = "vpc"
SSM_DEFAULT_SECURITY_GROUP: Final = "default-security-group"
"""The VPC's own group, used by tasks of multi-node Batch jobs; absent if nobody named it."""
SSM_MAX_NODES: Final = "max-nodes"
SSM_NEURON_RELEASE: Final = "neuron-release"
SSM_BUCKET: Final = "bucket"
SSM_LUSTRE: Final = "lustre"
"""Id of the file system that nodes mount, or ``NO_LUSTRE``."""
NO_LUSTRE: Final = "none"
SSM_JOB_QUEUE: Final = "batch/job-queue"
SSM_CPU_JOB_QUEUE: Final = "batch/cpu-job-queue"
SSM_COMPUTE_ENVIRONMENT: Final = "batch/compute-environment"
SSM_LOG_GROUP: Final = "batch/log-group"
SSM_JOB_TIME_LIMIT_HOURS: Final = "batch/job-time-limit-hours"

SSM_ORCHESTRATORS: Final = "orchestrators"
"""Services that run jobs on the nodes: ``batch``, ``eks`` or both, separated by commas."""
SSM_SETTINGS: Final = "settings"
"""The keys that the last deployment was given, as JSON; ``null`` where they are too long."""
MAX_SETTINGS_CHARACTERS: Final = 4096
ROOT_VOLUME_GIB: Final = 200  # unless root_volume_gib says otherwise
MAX_ROOT_VOLUME_GIB: Final = 16_384
JOB_TIME_LIMIT_HOURS: Final = 168  # unless job_time_limit_hours says otherwise
MAX_JOB_TIME_LIMIT_HOURS: Final = 720
CLUSTER_LUSTRE_GIB: Final = 1200  # of a cluster, unless lustre_gib says otherwise
LUSTRE_MBPS_PER_TIB: Final = 250  # unless lustre_mbps_per_tib says otherwise
"""Limit of a value in the standard tier (Systems Manager user guide, parameter tiers)."""
SSM_EKS_CLUSTER: Final = "eks/cluster"
SSM_EKS_NAMESPACE: Final = "eks/namespace"
SSM_EKS_QUEUE: Final = "eks/queue"
"""Volcano's queue for the jobs."""
SSM_EKS_NODE_GROUP: Final = "eks/node-group"
SSM_EKS_IMAGE: Final = "eks/image"
SSM_EKS_JOB_TIME_LIMIT_HOURS: Final = "eks/job-time-limit-hours"

SSM_EKS_NAMES: Final = (
    SSM_EKS_CLUSTER,
    SSM_EKS_NAMESPACE,
    SSM_EKS_QUEUE,
    SSM_EKS_NODE_GROUP,
    SSM_EKS_IMAGE,
    SSM_EKS_JOB_TIME_LIMIT_HOURS,
)
"""Parameters that a deployment with EKS publishes in addition to those of every deployment."""
SSM_EKS_LUSTRE_CLAIM: Final = "eks/lustre-claim"
"""The claim in the namespace; published only if there is a file system."""
SSM_EKS_IDLE_MINUTES: Final = "eks/idle-minutes"
"""Minutes before an idle node is removed; published only if the node scaler runs."""

SSM_BATCH_NAMES: Final = (
    SSM_CONTRACT_VERSION,
    SSM_REGION,
    SSM_VPC,
    SSM_INSTANCE_TYPE,
    SSM_MAX_NODES,
    SSM_NEURON_RELEASE,
    SSM_BUCKET,
    SSM_LUSTRE,
    SSM_JOB_QUEUE,
    SSM_CPU_JOB_QUEUE,
    SSM_COMPUTE_ENVIRONMENT,
    SSM_LOG_GROUP,
    SSM_JOB_TIME_LIMIT_HOURS,
)
"""Parameters that a deployment with Batch publishes, besides a job definition per workload."""


def ssm_root(deployment: str) -> str:
    """Path below which ``deployment`` publishes everything, without a final slash."""
    return f"/trainium/{deployment}"


def ssm_parameter(deployment: str, name: str) -> str:
    """Full name of one parameter."""
    return f"{ssm_root(deployment)}/{name}"


def ssm_job_definition(workload: str) -> str:
    """Name, below the root, of the parameter that holds a workload's job definition ARN."""
    return f"batch/job-definitions/{workload}"


# --- environment of a node ---------------------------------------------------------------------
ENV_DEPLOYMENT: Final = "TRAINIUM_DEPLOYMENT"
ENV_INSTANCE_TYPE: Final = "TRAINIUM_INSTANCE_TYPE"
ENV_NEURON_RELEASE: Final = "TRAINIUM_NEURON_RELEASE"
ENV_BUCKET: Final = "TRAINIUM_BUCKET"
# ECS sets no region on EC2, and boto3 needs one.
ENV_REGION: Final = "AWS_REGION"
ENV_LUSTRE: Final = "TRAINIUM_LUSTRE"
"""Mount point of FSx for Lustre; unset without a file system."""
ENV_RUN: Final = "TRAINIUM_RUN"
# Batch has its own variables for these; a Volcano job sets ours.
ENV_JOB_ID: Final = "TRAINIUM_JOB_ID"
ENV_ATTEMPT: Final = "TRAINIUM_ATTEMPT"
"""Volcano's count of restarts of the job, from 0: the attempt less one."""
ENV_NODE_INDEX: Final = "TRAINIUM_NODE_INDEX"
ENV_NUM_NODES: Final = "TRAINIUM_NUM_NODES"
ENV_MAIN_HOST_FROM: Final = "TRAINIUM_MAIN_HOST_FROM"
"""Name of the variable that holds the main node's host name or address."""
ENV_AFTER_JOB: Final = "TRAINIUM_AFTER_JOB"
"""Id of the Volcano job that compiles for this one; this job itself has to wait for it."""
ENV_TIME_LIMIT: Final = "TRAINIUM_TIME_LIMIT_S"
"""Seconds until the launcher ends an attempt and with it the job; Batch does so itself."""
# The launcher sets these for a user's own program; docs/own-program.md describes them.
ENV_CHECKPOINT_DIR: Final = "TRAINIUM_CHECKPOINT_DIR"
"""Folder that is kept in the bucket while the program runs, and given back to later attempts."""
ENV_OUTPUT_DIR: Final = "TRAINIUM_OUTPUT_DIR"
"""Folder whose files are put below the run's results when the program ends."""
ENV_DATASET_DIR: Final = "TRAINIUM_DATASET_DIR"
"""Folder with the files of ``--dataset``."""
ENV_INPUT_DIR: Final = "TRAINIUM_INPUT_DIR"
"""Folder with the files of ``--input``."""
ENV_PROGRESS_FILE: Final = "TRAINIUM_PROGRESS_FILE"
"""A program that is silent for long may touch this file to show that it is alive."""

# Only the rehearsal and laptops set these three.
ENV_DEVICE: Final = "TRAINIUM_DEVICE"
ENV_PROCESSES_PER_NODE: Final = "TRAINIUM_PROCESSES_PER_NODE"
ENV_NODE_ADDRESS: Final = "TRAINIUM_NODE_ADDRESS"

# Only the rehearsal sets this one, on the node scaler.
ENV_IDLE_CLOCK: Final = "TRAINIUM_IDLE_CLOCK"
"""Factor by which idle time is sped up."""

# --- tags of a job -----------------------------------------------------------------------------
TAG_DEPLOYMENT: Final = "trainium:deployment"
TAG_RUN: Final = "trainium:run"
TAG_WORKLOAD: Final = "trainium:workload"

# --- the bucket --------------------------------------------------------------------------------
TOKENIZERS_PREFIX: Final = "tokenizers/"
CORPORA_PREFIX: Final = "corpora/"
DATASETS_PREFIX: Final = "datasets/"
RUNS_PREFIX: Final = "runs/"
CACHE_PREFIX: Final = "cache/"
GRAPHS_PREFIX: Final = f"{CACHE_PREFIX}neuron"
"""Location of the compiled graphs (NEURON_COMPILE_CACHE_URL)."""
EXPORT_PREFIX: Final = "export/"
MODELS_PREFIX: Final = "models/"
"""Models to begin with, a folder each, as `jobs upload` puts them there."""
WHEELS_PREFIX: Final = "wheels/"
"""Dependencies of programs: a folder for each set of requirements and image."""
WHEELS_MARKER: Final = "complete.json"
"""Written last: a folder of wheels without it is incomplete."""
INPUT_PREFIXES: Final = (DATASETS_PREFIX, CORPORA_PREFIX, TOKENIZERS_PREFIX, EXPORT_PREFIX)
"""What ``--input`` of a program may name in the deployment's own bucket."""
WHEELS_LOCK: Final = "requirements.lock"
"""Versions and hashes of the wheels of a folder."""
CONSTRAINT_MARK: Final = "# constraint: "
"""Start of a line of kept requirements that limits a package and does not require it."""

LOSS_SCALAR: Final = "step loss"
"""Name of the loss in TensorBoard, as in AWS's reference."""
VALIDATION_LOSS_SCALAR: Final = "val/loss"
"""Name of the validation loss in TensorBoard; the reference has none."""
RUN_FOLDERS: Final = ("checkpoints", "metrics", "logs", "results", "code", "snapshots")
RESULT_FOLDERS: Final = ("metrics", "logs", "results")
"""Folders of a run that every workload may write."""
RUN_LOCK: Final = "lock.json"
"""The job that is training under the run's name, and the time of its last heartbeat."""
RUN_SUBMISSION: Final = "submission.json"
"""The newest submission of the name, so that two do not submit it at the same time."""
RUN_CONFIG: Final = "run.json"
"""The identity of the run: model, dataset, tokenizer, parameters."""
RUN_PROGRAM: Final = "program.json"
"""What a run of a user's own program ran, submission by submission; the newest is last."""
RUN_STATUS: Final = "results/status.json"
"""Progress of the training; rewritten every few seconds."""
TRAIN_METRICS: Final = "metrics/train.jsonl"
PROGRAM_LOSSES: Final = "metrics/losses/"
"""Losses that a program has printed: a file for each attempt, whose names sort by time."""

DATASET_NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
DATASET_NAME_HELP: Final = (
    "a name of 1 to 100 letters, digits, dots, hyphens and underscores, a letter or digit first"
)
DATASET_MANIFEST: Final = "manifest.json"
"""Written last: a dataset without it is incomplete."""
CHECKPOINT_MARKER: Final = "complete.json"
"""Written last: a checkpoint without it, or with one of ``WITHDRAWN_BYTES``, is incomplete."""
WITHDRAWN_BYTES: Final = 32
"""Size of the token that stands for the marker while a checkpoint is being saved."""

LUSTRE_MOUNT: Final = "/fsx"
"""Mount point of the file system, on hosts and in containers."""


def run_prefix(run: str, folder: str) -> str:
    """Key prefix of a run's ``folder``, one of ``RUN_FOLDERS``, with its final slash."""
    assert folder in RUN_FOLDERS, folder
    return f"{RUNS_PREFIX}{run}/{folder}/"


def run_key(run: str, file: str) -> str:
    """Key of a run's ``file``, one of those above."""
    return f"{RUNS_PREFIX}{run}/{file}"


def bundle_key(run: str, digest: str) -> str:
    """Key of the archive of a program's files, named by its SHA-256 in hexadecimal."""
    return f"{run_prefix(run, 'code')}{digest}.tar.gz"


def requirements_key(run: str, wheels_key: str) -> str:
    """Key of a program's requirements, named by the key of their wheels."""
    return f"{run_prefix(run, 'code')}{wheels_key}-requirements.txt"


def wheels_prefix(wheels_key: str) -> str:
    """Key prefix of a set of wheels, with its final slash."""
    return f"{WHEELS_PREFIX}{wheels_key}/"


def attempts_prefix(run: str, job_id: str) -> str:
    """Key prefix of the records of how a Volcano job's attempts ended; pods and logs are deleted.

    ``<attempt>-node-<index>.json`` is the last word of a node's launcher: ``code`` and ``reason``.
    """
    return f"{run_prefix(run, 'results')}attempts/{job_id}/"


JOINING_FOLDER: Final = "joining"
"""Folder below a run's results, with a folder per job: ``<attempt>-node-<index>.json`` for each
child that started but could not join the main node."""


def checkpoint_name(step: int) -> str:
    """Folder of the checkpoint after ``step`` optimizer steps; names sort in step order."""
    return f"step-{step:08d}"


def launch_command(workload: str) -> list[str]:
    """The command of a job definition, which every node runs."""
    return ["python", "-m", "training.launch", workload]


ARGV_MARK: Final = "--"
"""Separates a launcher's own parameters from the arguments of a user's program."""
PROGRAM: Final = "program"
"""The workload that runs a user's own program."""
WHEELS: Final = "wheels"
"""The workload that collects a program's dependencies."""


# --- TCP ports between the nodes of a job ------------------------------------------------------
RENDEZVOUS: Final = 41000
"""torchrun's store on the main node; AWS's samples use the same number."""
PEER_WATCH: Final = 41001
"""The launchers' own link, over which every node learns of a lost or silent peer."""
NEURON_ROOT_COMM: Final = 62182
"""Port of torch-neuronx's bootstrap of collectives on the main node (torch_xla's plugin)."""
NEURON_ROOT_COMM_ALTERNATE: Final = 48620
"""The port in the Neuron documentation's examples of ``NEURON_RT_ROOT_COMM_ID``."""

RESERVED_PORTS: Final[tuple[int, ...]] = (
    RENDEZVOUS,
    PEER_WATCH,
    NEURON_ROOT_COMM_ALTERNATE,
    NEURON_ROOT_COMM,
)
"""Ports kept out of the host's ephemeral range (``net.ipv4.ip_local_reserved_ports``)."""

# --- retries -----------------------------------------------------------------------------------
HOST_LOST_REASON: Final = "Host EC2*"
"""Status reason that Batch gives when it loses an instance (AWS Batch user guide, job retries)."""

ATTEMPTS: Final = 3
"""Total attempts of a job."""

RUN_NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
"""Run names: they become Batch job names (letters, digits, hyphens, underscores; at most 128)."""
