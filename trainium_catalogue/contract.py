"""Names that the stacks publish and that nodes and the CLI read (docs/interfaces.md)."""

from enum import StrEnum
from typing import Final

CONTRACT_VERSION: Final = "3"
"""Incremented when the meaning of a name below changes; the CLI refuses any other version."""

DEFAULT_DEPLOYMENT: Final = "default"


class Orchestrator(StrEnum):
    """A service that runs jobs on nodes, as `cdk deploy` and the published parameters name it."""

    BATCH = "batch"
    EKS = "eks"

    @property
    def who(self) -> str:
        """Return the name of the component that restarts a job and reports the reasons, if any."""
        return "Batch" if self is Orchestrator.BATCH else "Volcano"


# --- SSM parameters, below /trainium/<deployment>/ ---------------------------------------------
SSM_CONTRACT_VERSION: Final = "contract-version"
SSM_REGION: Final = "region"
SSM_INSTANCE_TYPE: Final = "instance-type"
SSM_VPC: Final = "vpc"
SSM_DEFAULT_SECURITY_GROUP: Final = "default-security-group"
"""The VPC's default security group, used by tasks of multi-node Batch jobs; absent if unknown."""
SSM_MAX_NODES: Final = "max-nodes"
SSM_NEURON_RELEASE: Final = "neuron-release"
SSM_BUCKET: Final = "bucket"
SSM_LUSTRE: Final = "lustre"
"""Id of the file system that nodes mount, or ``NO_LUSTRE``."""
NO_LUSTRE: Final = "none"
SSM_JOB_QUEUE: Final = "batch/job-queue"
SSM_CPU_JOB_QUEUE: Final = "batch/cpu-job-queue"
SSM_COMPUTE_ENVIRONMENT: Final = "batch/compute-environment"
SSM_BATCH_ZONES: Final = "batch/zones"
"""Queue and compute environment of each zone, in order, as JSON; only with several zones."""
SSM_LOG_GROUP: Final = "batch/log-group"
SSM_JOB_TIME_LIMIT_HOURS: Final = "batch/job-time-limit-hours"

SSM_MAX_COST_PER_JOB_USD: Final = "max-cost-per-job-usd"
"""Maximum cost of one submission; published only if the deployment has a maximum."""
SSM_ORCHESTRATORS: Final = "orchestrators"
"""Services that run jobs on the nodes: ``batch``, ``eks`` or both, separated by commas."""
SSM_SETTINGS: Final = "settings"
"""The context settings of the last deployment, as JSON; ``null`` if they are too long."""
MAX_SETTINGS_CHARACTERS: Final = 4096
"""Limit of a value in the standard tier (Systems Manager user guide, parameter tiers)."""
NAT_GATEWAYS: Final = 1  # default of nat_gateways in a new VPC
HAS_INTERFACE_ENDPOINTS: Final = True  # default of interface_endpoints in a new VPC
CPU_SPOT: Final = True  # default of cpu_spot
ROOT_VOLUME_GIB: Final = 200  # default of root_volume_gib
MAX_ROOT_VOLUME_GIB: Final = 16_384
JOB_TIME_LIMIT_HOURS: Final = 168  # default of job_time_limit_hours
MAX_JOB_TIME_LIMIT_HOURS: Final = 720
RUNNABLE_TIME_LIMIT_MINUTES: Final = 60  # default of runnable_time_limit_minutes
ZONE_PATIENCE_MINUTES: Final = 20  # default of submit --zone-patience
CLUSTER_LUSTRE_GIB: Final = 1200  # default of lustre_gib with EKS
LUSTRE_MBPS_PER_TIB: Final = 250  # default of lustre_mbps_per_tib
SSM_EKS_CLUSTER: Final = "eks/cluster"
SSM_EKS_NAMESPACE: Final = "eks/namespace"
SSM_EKS_QUEUE: Final = "eks/queue"
"""The jobs' Volcano queue."""
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
"""Parameters of a deployment with EKS, in addition to those of every deployment."""
SSM_EKS_LUSTRE_CLAIM: Final = "eks/lustre-claim"
"""The claim in the namespace; published only if there is a file system."""
SSM_EKS_IDLE_MINUTES: Final = "eks/idle-minutes"
"""Idle timeout of a node in minutes; published only if the node scaler runs."""

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
"""Parameters of a deployment with Batch, in addition to a job definition per workload."""


def ssm_root(deployment: str) -> str:
    """Return the path under which ``deployment`` publishes, without a trailing slash."""
    return f"/trainium/{deployment}"


def ssm_parameter(deployment: str, name: str) -> str:
    """Return the full name of a parameter."""
    return f"{ssm_root(deployment)}/{name}"


def ssm_job_definition(workload: str) -> str:
    """Return the name, relative to the root, of the parameter with a job definition's ARN."""
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
"""Volcano's count of restarts of the job, from 0: one less than the attempt."""
ENV_NODE_INDEX: Final = "TRAINIUM_NODE_INDEX"
ENV_NUM_NODES: Final = "TRAINIUM_NUM_NODES"
ENV_MAIN_HOST_FROM: Final = "TRAINIUM_MAIN_HOST_FROM"
"""Name of the variable that holds the main node's host name or address."""
ENV_AFTER_JOB: Final = "TRAINIUM_AFTER_JOB"
"""Id of the Volcano job that compiles for this one, which waits for it."""
ENV_TIME_LIMIT: Final = "TRAINIUM_TIME_LIMIT_S"
"""Seconds until the launcher ends the attempt, and thereby the job; Batch has its own timeout."""
ENV_STOP_AT: Final = "TRAINIUM_STOP_AT"
"""Time, before the Capacity Block ends, at which the launcher lets the workers save and ends
the job, such as 2027-01-31T10:50:00Z. Unset without a block."""
# The launcher sets these for a user's own program; docs/own-program.md describes them.
ENV_CHECKPOINT_DIR: Final = "TRAINIUM_CHECKPOINT_DIR"
"""Folder that is saved to the bucket while the program runs, and restored in later attempts."""
ENV_OUTPUT_DIR: Final = "TRAINIUM_OUTPUT_DIR"
"""Folder whose files are uploaded to the run's results when the program ends."""
ENV_DATASET_DIR: Final = "TRAINIUM_DATASET_DIR"
"""Folder with the files of ``--dataset``."""
ENV_INPUT_DIR: Final = "TRAINIUM_INPUT_DIR"
"""Folder with the files of ``--input``."""
ENV_PROGRESS_FILE: Final = "TRAINIUM_PROGRESS_FILE"
"""File that a program may touch to show progress during long silences."""

# For the function that sends notifications.
ENV_NOTIFY_TOPIC: Final = "TRAINIUM_NOTIFY_TOPIC"
"""ARN of the SNS topic."""
ENV_NOTIFY_WAIT_MINUTES: Final = "TRAINIUM_NOTIFY_WAIT_MINUTES"

# Only the rehearsal and laptops set these three.
ENV_DEVICE: Final = "TRAINIUM_DEVICE"
PRETEND_NEURON: Final = "pretend-neuron"
"""Value of ``ENV_DEVICE`` for TorchNeuron on the rehearsal's emulated device."""
ENV_PROCESSES_PER_NODE: Final = "TRAINIUM_PROCESSES_PER_NODE"
ENV_NODE_ADDRESS: Final = "TRAINIUM_NODE_ADDRESS"

# Only the rehearsal sets this one, on the node scaler.
ENV_IDLE_CLOCK: Final = "TRAINIUM_IDLE_CLOCK"
"""Factor by which idle time is sped up."""

# --- tags of a job -----------------------------------------------------------------------------
TAG_DEPLOYMENT: Final = "trainium:deployment"
TAG_RUN: Final = "trainium:run"
TAG_WORKLOAD: Final = "trainium:workload"
TAG_ZONE_PATIENCE: Final = "trainium:zone-patience-minutes"
"""Minutes that a job may wait for capacity in a zone before it moves to the next."""
TAG_REQUEST: Final = "trainium:request"
"""SHA-256 of the request with which such a job is resubmitted; also its name in the bucket."""

# --- the bucket --------------------------------------------------------------------------------
TOKENIZERS_PREFIX: Final = "tokenizers/"
CORPORA_PREFIX: Final = "corpora/"
DATASETS_PREFIX: Final = "datasets/"
RUNS_PREFIX: Final = "runs/"
CACHE_PREFIX: Final = "cache/"
GRAPHS_PREFIX: Final = f"{CACHE_PREFIX}neuron"
"""Location of the compiled graphs (NEURON_COMPILE_CACHE_URL)."""
NEFF_PREFIX: Final = f"{CACHE_PREFIX}torchneuron/"
EXPORT_PREFIX: Final = "export/"
MODELS_PREFIX: Final = "models/"
"""Pretrained models, a folder each, as uploaded by `jobs upload`."""
WHEELS_PREFIX: Final = "wheels/"
"""Dependencies of programs: a folder for each set of requirements and image."""
WHEELS_MARKER: Final = "complete.json"
"""Written last: without it a folder of wheels is incomplete."""
INPUT_PREFIXES: Final = (DATASETS_PREFIX, CORPORA_PREFIX, TOKENIZERS_PREFIX, EXPORT_PREFIX)
"""Prefixes that ``--input`` of a program may name in the deployment's bucket."""
WHEELS_LOCK: Final = "requirements.lock"
"""Versions and hashes of a folder's wheels."""
CONSTRAINT_MARK: Final = "# constraint: "
"""Prefix of a line of saved requirements that constrains a package without requiring it."""

LOSS_SCALAR: Final = "step loss"
"""Name of the loss in TensorBoard, as in AWS's reference."""
VALIDATION_LOSS_SCALAR: Final = "val/loss"
"""Name of the validation loss in TensorBoard; the reference has none."""
RUN_FOLDERS: Final = (
    *("checkpoints", "metrics", "logs", "results", "code", "snapshots", "requests"),
)
RESULT_FOLDERS: Final = ("metrics", "logs", "results")
"""Folders of a run that every workload may write."""
RUN_LOCK: Final = "lock.json"
"""The job that is training under the run's name, and the time of its last heartbeat."""
RUN_SUBMISSION: Final = "submission.json"
"""The newest submission under the run's name; prevents concurrent submissions."""
RUN_CONFIG: Final = "run.json"
"""The identity of the run: model, dataset, tokenizer, parameters."""
RUN_PROGRAM: Final = "program.json"
"""The submissions of a user's own program; the newest is last."""
RUN_STATUS: Final = "results/status.json"
"""Training progress; rewritten every few seconds."""
TRAIN_METRICS: Final = "metrics/train.jsonl"
PROGRAM_LOSSES: Final = "metrics/losses/"
"""Losses printed by a program: a file per attempt, with names that sort by time."""

DATASET_NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
DATASET_NAME_HELP: Final = (
    "a name of 1 to 100 letters, digits, dots, hyphens and underscores, starting with a letter or "
    "digit"
)
DATASET_MANIFEST: Final = "manifest.json"
"""Written last: without it a dataset is incomplete."""
CHECKPOINT_MARKER: Final = "complete.json"
"""Written last: without it, or if it has ``WITHDRAWN_BYTES``, a checkpoint is incomplete."""
WITHDRAWN_BYTES: Final = 32
"""Size of the token that replaces the marker while a checkpoint is being saved."""

NOTIFICATIONS_PREFIX: Final = "notifications/"
NOTIFICATIONS_SENT: Final = f"{NOTIFICATIONS_PREFIX}told.json"
"""Keys of published notifications, by job id."""
CLUSTER_SNAPSHOT: Final = f"{NOTIFICATIONS_PREFIX}cluster.json.gz"
"""Cluster objects from which the notifier reads runs: a list for each collection."""

LUSTRE_MOUNT: Final = "/fsx"
"""Mount point of the file system, on hosts and in containers."""


def neff_prefix(release: str) -> str:
    """Return the key prefix of the graphs compiled by a Neuron release's TorchNeuron."""
    return f"{NEFF_PREFIX}{release}"


def run_prefix(run: str, folder: str) -> str:
    """Return the key prefix of a run's ``folder`` (of ``RUN_FOLDERS``), with a trailing slash."""
    assert folder in RUN_FOLDERS, folder
    return f"{RUNS_PREFIX}{run}/{folder}/"


def run_key(run: str, file: str) -> str:
    """Return the key of a run's ``file``, one of the names above."""
    return f"{RUNS_PREFIX}{run}/{file}"


def bundle_key(run: str, digest: str) -> str:
    """Return the key of a program's bundle, named by its SHA-256 in hexadecimal."""
    return f"{run_prefix(run, 'code')}{digest}.tar.gz"


def request_key(run: str, digest: str) -> str:
    """Return the key of the submitted arguments of a job that may move between zones."""
    return f"{run_prefix(run, 'requests')}{digest}.json"


def requirements_key(run: str, wheels_key: str) -> str:
    """Return the key of a program's requirements, named by the key of their wheels."""
    return f"{run_prefix(run, 'code')}{wheels_key}-requirements.txt"


def wheels_prefix(wheels_key: str) -> str:
    """Return the key prefix of a set of wheels, with a trailing slash."""
    return f"{WHEELS_PREFIX}{wheels_key}/"


def attempts_prefix(run: str, job_id: str) -> str:
    """Return the key prefix of the records of a job and its attempts (``attempts.py``).

    On EKS, ``<attempt>-node-<index>.json`` next to them is the final report of a node's launcher,
    ``code`` and ``reason``, because the pods of an attempt are deleted.
    """
    return f"{run_prefix(run, 'results')}attempts/{job_id}/"


JOINING_FOLDER: Final = "joining"
"""Folder in a run's results, with a folder per job: ``<attempt>-node-<index>.json`` for each child
that started but could not join the main node."""


def checkpoint_name(step: int) -> str:
    """Return the folder of the checkpoint after ``step`` steps; names sort by step."""
    return f"step-{step:08d}"


def launch_command(workload: str) -> list[str]:
    """Return the command of a job definition, which every node runs."""
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
"""The launchers' connection, over which every node learns of a lost or silent peer."""
NEURON_ROOT_COMM: Final = 62182
"""Port on the main node with which torch-neuronx bootstraps collectives (torch_xla's plugin)."""
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
"""Batch's status reason when it loses an instance (AWS Batch user guide, job retries)."""

ATTEMPTS: Final = 3
"""Total number of attempts of a job."""

RUN_NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
"""Run names: they become Batch job names (letters, digits, hyphens, underscores; at most 128)."""
