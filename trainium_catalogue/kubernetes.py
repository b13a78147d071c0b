"""Names in a cluster, shared by stacks, CLI and rehearsal, and the resources of a node's pod."""

from collections.abc import Mapping
from typing import Final

from trainium_catalogue.contract import ATTEMPTS
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode
from trainium_catalogue.instances import InstanceType

NAMESPACE: Final = "trainium"
QUEUE: Final = "trainium"
LUSTRE_CLAIM: Final = "lustre"
"""Prefix of the names of the file system's volume and claim."""
NODE_LABEL: Final = "node.kubernetes.io/instance-type"
TAINT: Final = "aws.amazon.com/neuron"
"""Key of the taint on Trainium nodes; also the device plugin's resource name for chips."""
NEURON_RESOURCE: Final = "aws.amazon.com/neuron"
EFA_RESOURCE: Final = "vpc.amazonaws.com/efa"
TASK: Final = "node"
"""Name of a Volcano job's task (TorchX: role); pods are named ``<job>-node-<index>-0``."""

SUBMITTERS: Final = "trainium:submitters"
"""Group of users who submit jobs, set by their access entries."""

LABEL_DEPLOYMENT: Final = "trainium/deployment"
LABEL_RUN: Final = "trainium/run"
"""Label of a job, its pods and, with several zones, the nodes that the node scaler has assigned to
the run, which its pods select."""
LABEL_WORKLOAD: Final = "trainium/workload"

AFTER: Final = "trainium/after"
"""Annotation of a job: the compile job that it waits for."""
SCALE: Final = "trainium/scale"
"""Annotation of a job: ``true`` if the node scaler should add its missing nodes."""
NOT_BEFORE: Final = "trainium/not-before"
"""Annotation of a job: start of the deployment's Capacity Block or reservation, before which the
node scaler adds no nodes for it."""
HELD_SINCE: Final = "trainium/nodes-held-since"
"""Annotation of a waiting job: time from which the node scaler has held idle nodes for it."""
FAILED_NODES: Final = "trainium/failed-nodes"
"""Annotation of a waiting job: times at which nodes added for it proved unusable."""
DROPPED: Final = "trainium/nodes-dropped"
"""Annotation of a waiting job: why the node scaler no longer holds or adds nodes for it."""
ZONE_PATIENCE: Final = "trainium/zone-patience-minutes"
"""Annotation of a job: minutes without capacity after which it moves to the next zone."""
ZONE: Final = "trainium/zone"
"""Annotation of a job: id of its zone, if it is not the first."""
ZONES_TRIED: Final = "trainium/zones-tried"
"""Annotation of a job: ids of the zones that had no capacity for it."""
ZONE_LEFT: Final = "trainium/zone-left"
"""Annotation of a job: ``<id>=<time>`` of its previous zone."""
SHORT_SINCE: Final = "trainium/no-capacity-since"
"""Annotation of a waiting job: time from which EC2 has failed to provide its requested nodes."""

LOG_STREAM_PREFIX: Final = "pod/"
"""Prefix of a pod's log stream, in the same log group as Batch jobs' streams."""

SCALER: Final = "node-scaler"
"""Name, namespace and service account of the node scaler. It is not in the jobs' namespace, because
anyone who may create pods in a namespace may use its service accounts."""
NODE_REQUEST: Final = "node-request"
"""ConfigMap in the jobs' namespace with a user's requested number of nodes."""
NODE_GROUP_LABEL: Final = "eks.amazonaws.com/nodegroup"
"""Label that EKS sets on the nodes of a managed group."""
IDLE_SINCE: Final = "trainium/idle-since"
"""Annotation of an unused node: time from which it has been idle, UTC in Kubernetes' format."""
UNFIT_SINCE: Final = "trainium/unfit-since"
"""Annotation of a node whose host a job found unfit; it is replaced."""
UNUSABLE_SINCE: Final = "trainium/unusable-since"
"""Annotation of a node that cannot run a job's pod, for example because it is not ready."""
CORDONED_SINCE: Final = "trainium/cordoned-since"
"""Annotation of a node that the node scaler cordoned to remove it."""
TERMINATING_SINCE: Final = "trainium/ends-since"
"""Annotation of a node whose instance the node scaler is terminating."""

RETRY_COUNT_FIELD: Final = "metadata.annotations['volcano.sh/job-retry-count']"
"""Field of a pod, for the downward API: the number of restarts of its job, from 0.

``volcano.sh/job-version`` counts every removal of pods instead (Volcano 1.15.1,
pkg/controllers/job, createJobPod and killPods)."""
MAX_RETRY: Final = ATTEMPTS
"""``maxRetry`` of a job: it fails after exactly this many failed attempts (Volcano 1.15.1,
pkg/controllers/job/state/restarting.go)."""


UNFIT_HOST_DELAY_S: Final = 15
"""Seconds between the exit of a pod on an unfit host and the restart of its job; enough for the
node scaler, which runs every 5 s, to cordon the node."""


def _terminate_on(code: ExitCode) -> Mapping[str, str | int]:
    return {"exitCode": code.value, "action": "TerminateJob"}


JOB_POLICIES: Final[tuple[Mapping[str, str | int], ...]] = (
    # The first match applies. STOPPED (143) is an exception to the table of exit codes, which does
    # not retry it: a job stopped on request needs no policy, and a pod on a drained node should be
    # retried.
    *(
        _terminate_on(code)
        for code, ending in EXIT_CODES.items()
        if not ending.retry and code not in (ExitCode.OK, ExitCode.STOPPED)
    ),
    # The other pods wait (``hold_pod`` in launch.py). Delay: Volcano, processNextReq and
    # AddDelayActionForJob in
    # https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/job/job_controller.go
    {
        "exitCode": ExitCode.UNFIT_HOST.value,
        "action": "RestartJob",
        "timeout": f"{UNFIT_HOST_DELAY_S}s",
    },
    {"event": "PodEvicted", "action": "RestartJob"},
    {"event": "PodFailed", "action": "RestartJob"},
)
"""``policies`` of a job."""

# The kernel, plugins and monitors get the rest.
_SHARE_OF_VCPUS: Final = 0.9
_SHARE_OF_MEMORY: Final = 0.9
_EVICTION_MIB: Final = 100
"""Free memory below which the kubelet evicts pods; not available to pods."""


def log_stream(pod: str, uid: str) -> str:
    """Return a pod's log stream, with its uid, because pods of all attempts share a name."""
    return f"{LOG_STREAM_PREFIX}{pod}/{uid}"


def service_account(workload: str) -> str:
    """Return the service account of a workload."""
    return f"job-{workload}"


def max_pods(instance_type: InstanceType) -> int:
    """Return a node's pod limit (amazon-eks-ami, nodeadm/internal/kubelet/eni_max_pods.go).

    Network cards other than the first do not count: vpc-cni uses only addresses of the first.
    """
    return instance_type.enis_per_card * (instance_type.addresses_per_interface - 1) + 2


def kubelet_memory_mib(instance_type: InstanceType) -> int:
    """Return the memory that EKS's image withholds from pods: kube-reserved and eviction threshold.

    It depends on the number of pods, not the size of the node, so small types lose a larger share
    (amazon-eks-ami, nodeadm/internal/kubelet/config.go, getMemoryMebibytesToReserve).
    """
    return 255 + 11 * max_pods(instance_type) + _EVICTION_MIB


def device_resources(instance_type: InstanceType) -> Mapping[str, int]:
    """Return the number of each device on a usable node, as advertised by the device plugins."""
    devices = {
        NEURON_RESOURCE: instance_type.num_neuron_devices,
        EFA_RESOURCE: instance_type.num_efa_interfaces,
    }
    return {name: number for name, number in devices.items() if number}


def pod_resources(instance_type: InstanceType) -> Mapping[str, str]:
    """Return the requests and limits of a pod that uses a whole node."""
    cpu = int(instance_type.num_vcpus * _SHARE_OF_VCPUS)
    memory = int(instance_type.memory_mib * _SHARE_OF_MEMORY) - kubelet_memory_mib(instance_type)
    return {
        "cpu": str(cpu),
        "memory": f"{memory}Mi",
        **{name: str(number) for name, number in device_resources(instance_type).items()},
    }
