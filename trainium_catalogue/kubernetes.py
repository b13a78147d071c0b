"""Names in a cluster, shared by stacks, CLI and rehearsal, and the resources of a node's pod."""

from collections.abc import Mapping
from typing import Final

from trainium_catalogue.contract import ATTEMPTS
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode
from trainium_catalogue.instances import InstanceType

NAMESPACE: Final = "trainium"
QUEUE: Final = "trainium"
LUSTRE_CLAIM: Final = "lustre"
"""First word of the names of the file system's volume and claim."""
NODE_LABEL: Final = "node.kubernetes.io/instance-type"
TAINT: Final = "aws.amazon.com/neuron"
"""Key of the taint on Trainium nodes; also the resource as which the device plugin counts chips."""
NEURON_RESOURCE: Final = "aws.amazon.com/neuron"
EFA_RESOURCE: Final = "vpc.amazonaws.com/efa"
TASK: Final = "node"
"""Name of a Volcano job's task (in TorchX: role): pods are ``<job>-node-<index>-0``."""

SUBMITTERS: Final = "trainium:submitters"
"""Group of those who submit jobs; their access entries make them members."""

LABEL_DEPLOYMENT: Final = "trainium/deployment"
LABEL_RUN: Final = "trainium/run"
LABEL_WORKLOAD: Final = "trainium/workload"

AFTER: Final = "trainium/after"
"""Annotation of a job: the compile job that it waits for."""
SCALE: Final = "trainium/scale"
"""Annotation of a job: ``true`` if the node scaler is to add the nodes that it lacks."""
HELD_SINCE: Final = "trainium/nodes-held-since"
"""Annotation of a waiting job: since when the node scaler has held idle nodes for it."""
FAILED_NODES: Final = "trainium/failed-nodes"
"""Annotation of a waiting job: times at which nodes bought for it turned out to be unusable."""
DROPPED: Final = "trainium/nodes-dropped"
"""Annotation of a waiting job: why the node scaler holds and buys no more nodes for it."""

LOG_STREAM_PREFIX: Final = "pod/"
"""Start of a pod's log stream, in the same log group as those of Batch's jobs."""

SCALER: Final = "node-scaler"
"""Name, namespace and service account of the node scaler. Whoever may create pods in a namespace
may use its service accounts, so the scaler does not live in the namespace of the jobs."""
NODE_REQUEST: Final = "node-request"
"""ConfigMap in the jobs' namespace: the number of nodes that a user asks the node scaler for."""
NODE_GROUP_LABEL: Final = "eks.amazonaws.com/nodegroup"
"""Label that EKS sets on the nodes of a managed group."""
IDLE_SINCE: Final = "trainium/idle-since"
"""Annotation of an unused node: the time since when, in UTC as Kubernetes writes it."""
UNUSABLE_SINCE: Final = "trainium/unusable-since"
"""Annotation of a node on which no pod of a job could run, such as one that is not ready."""
CORDONED_SINCE: Final = "trainium/cordoned-since"
"""Annotation of a node that the node scaler has cordoned before removing it."""
TERMINATING_SINCE: Final = "trainium/ends-since"
"""Annotation of a node whose instance the node scaler is terminating."""

RETRY_COUNT_FIELD: Final = "metadata.annotations['volcano.sh/job-retry-count']"
"""Field of a pod, for the downward API: the number of restarts of its job, from 0.

``volcano.sh/job-version`` counts something else: every removal of pods (Volcano 1.15.1,
pkg/controllers/job, createJobPod and killPods)."""
MAX_RETRY: Final = ATTEMPTS
"""``maxRetry`` of a job: it fails once as many attempts have failed, not one later (Volcano
1.15.1, pkg/controllers/job/state/restarting.go)."""


def _terminate_on(code: ExitCode) -> Mapping[str, str | int]:
    return {"exitCode": code.value, "action": "TerminateJob"}


JOB_POLICIES: Final[tuple[Mapping[str, str | int], ...]] = (
    # The first match decides. STOPPED (143) is exempt from the table of exit codes, which does not
    # retry it: a job stopped on request needs no policy, and a pod stopped by the drain of its
    # node is worth another attempt.
    *(
        _terminate_on(code)
        for code, ending in EXIT_CODES.items()
        if not ending.retry and code not in (ExitCode.OK, ExitCode.STOPPED)
    ),
    {"event": "PodEvicted", "action": "RestartJob"},
    {"event": "PodFailed", "action": "RestartJob"},
)
"""``policies`` of a job."""

# The rest is for the kernel, the plugins and the monitors.
_SHARE_OF_VCPUS: Final = 0.9
_SHARE_OF_MEMORY: Final = 0.9
_EVICTION_MIB: Final = 100
"""Free memory below which the kubelet evicts pods; not available to pods."""


def log_stream(pod: str, uid: str) -> str:
    """Name a pod's log stream: the pods of all attempts share a name, but not a uid."""
    return f"{LOG_STREAM_PREFIX}{pod}/{uid}"


def service_account(workload: str) -> str:
    """Service account whose role grants what the workload needs."""
    return f"job-{workload}"


def max_pods(instance_type: InstanceType) -> int:
    """Most pods of a node (amazon-eks-ami, nodeadm/internal/kubelet/eni_max_pods.go).

    EFA's other cards do not count: vpc-cni takes addresses from the first card only.
    """
    return instance_type.enis_per_card * (instance_type.addresses_per_interface - 1) + 2


def kubelet_memory_mib(instance_type: InstanceType) -> int:
    """Return the memory that EKS's image reserves for the kubelet, containerd and housekeeping.

    It depends on the number of pods, not the size of the node: small types lose a larger share
    (amazon-eks-ami, nodeadm/internal/kubelet/config.go, getMemoryMebibytesToReserve).
    """
    return 255 + 11 * max_pods(instance_type) + _EVICTION_MIB


def device_resources(instance_type: InstanceType) -> Mapping[str, int]:
    """Return the devices that a usable node offers, as counted by the device plugins."""
    devices = {
        NEURON_RESOURCE: instance_type.num_neuron_devices,
        EFA_RESOURCE: instance_type.num_efa_interfaces,
    }
    return {name: number for name, number in devices.items() if number}


def pod_resources(instance_type: InstanceType) -> Mapping[str, str]:
    """Requests and limits of a pod that fills a whole node."""
    cpu = int(instance_type.num_vcpus * _SHARE_OF_VCPUS)
    memory = int(instance_type.memory_mib * _SHARE_OF_MEMORY) - kubelet_memory_mib(instance_type)
    return {
        "cpu": str(cpu),
        "memory": f"{memory}Mi",
        **{name: str(number) for name, number in device_resources(instance_type).items()},
    }
