"""Runs with a planted cause, as AWS and Kubernetes would show them; counted in docs/diagnosis.md.

Texts come from the sources of each cause in jobs/diagnosis/causes.toml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from trainium_catalogue.wording import counted

Json = Mapping[str, Any]
NO_CAPACITY = (
    "We currently do not have sufficient trn1.32xlarge capacity in the Availability Zone you "
    "requested (us-west-2d). Our system will be working on provisioning additional capacity. "
    "Launching EC2 instance failed."
)
VCPUS = (
    "You have requested more vCPU capacity than your current vCPU limit of 128 allows for the "
    "instance bucket that the specified instance type belongs to. Launching EC2 instance failed."
)
LOST = "launch: exit 75 (x): node 1 was lost: connection closed"
FAILED = "launch: exit 1 (x): node 0: rank 0: "
HOST = "launch: exit 75 (x): node 0: rank 3: RuntimeError: "
PREFLIGHT = "launch: exit 70 (x): node 0: "
EXITED = "Essential container in task exited"
INSTANCE = "i-0123456789abcdef0"
HOST_LOST = f"Host EC2 (instance {INSTANCE}) terminated."


@dataclass(frozen=True, kw_only=True)
class Planting:
    """A run on two nodes, in the state to diagnose."""

    cause: str
    """The expected first cause."""
    what: str
    """Description of the planting, for the page."""
    status: str = "FAILED"
    reason: str | None = None
    """Status reason of the job."""
    codes: Sequence[int | None] = ()
    """Exit codes of the nodes in the last attempt."""
    node_reasons: Sequence[str] = ()
    """Reasons of the containers, or of the pods."""
    log: Sequence[str] = ()
    """Last lines of the main node."""
    quiet: timedelta = timedelta(0)
    """Age of the last line."""
    earlier: Sequence[int] = ()
    """Exit codes of earlier attempts."""
    quota: float | None = None
    activities: Sequence[str] = ()
    """Failed launches, newest first; an empty text is a successful one."""
    free_addresses: int | None = None
    reservation: Json | None = None
    others: Mapping[str, int] = field(default_factory=dict)
    """Sizes of other, healthy runs."""


@dataclass(frozen=True, kw_only=True)
class OnBatch(Planting):
    """A run on AWS Batch."""

    queue: Json = field(default_factory=dict)
    environment: Json = field(default_factory=dict)
    console: str = ""
    state_reason: str = ""
    """Why EC2 ended the host."""
    closed_group: bool = False


@dataclass(frozen=True, kw_only=True)
class OnCluster(Planting):
    """A run on the cluster; FAILED means Volcano's phase of that name unless ``phase`` is set."""

    phase: str | None = None
    waiting: tuple[str, str] | None = None
    """Reason and message of a waiting container."""
    unscheduled: str = ""
    events: Sequence[tuple[str, str]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 2
    node: str = ""
    """Fault of one of the nodes."""
    ending: tuple[int, str] | None = None
    """The launcher's report in the bucket for an attempt whose pods are gone."""


def _launch(cause: str, what: str, text: str, **more: Any) -> tuple[Planting, Planting]:
    """Return the same failed launch on both orchestrators."""
    both: dict[str, Any] = {"cause": cause, "what": what, "status": "RUNNABLE", **more}
    return OnBatch(activities=[text], **both), OnCluster(activities=[text], nodes=0, **both)


def _ended(cause: str, what: str, line: str, code: int) -> tuple[Planting, Planting]:
    """Return the same last lines on both orchestrators."""
    lines = [line] if line.startswith("launch: ") else [line, f"launch: exit {code} (x): node 0: y"]
    both: dict[str, Any] = {"cause": cause, "what": what, "codes": (code, code), "log": lines}
    return OnBatch(reason=EXITED, **both), OnCluster(**both)


PLANTINGS: tuple[Planting, ...] = (
    # --- waiting for capacity --------------------------------------------------------------------
    *_launch("no-capacity", "insufficient capacity in the zone", NO_CAPACITY),
    *_launch("quota-too-small", "launches that exceed the vCPU quota", VCPUS),
    OnBatch(
        cause="quota-too-small", what="a vCPU quota for a single node", status="RUNNABLE", quota=128
    ),
    *_launch(
        "no-addresses",
        "a subnet without free addresses",
        "There are not enough free addresses in subnet 'subnet-1' to satisfy the requested number "
        "of instances. InsufficientFreeAddressesInSubnet. Launching EC2 instance failed.",
    ),
    OnBatch(
        cause="no-addresses",
        what="a subnet with three free addresses",
        status="RUNNABLE",
        free_addresses=3,
    ),
    *_launch(
        "not-offered-here",
        "a zone that does not offer the instance type",
        "Your requested instance type (trn1.32xlarge) is not supported in your requested "
        "Availability Zone (us-west-2a). Launching EC2 instance failed.",
    ),
    *_launch(
        "image-of-hosts-missing",
        "a deregistered AMI",
        "The image id '[ami-02c7e84c65fcfecee]' does not exist. Launching EC2 instance failed.",
    ),
    *_launch(
        "deployment-changed",
        "a deleted security group",
        "The security group 'sg-0123' does not exist. Launching EC2 instance failed.",
    ),
    *_launch(
        "volume-key",
        "a disabled KMS key",
        "Client.InternalError: Client error on launch",
    ),
    *_launch(
        "account-blocked",
        "a blocked account",
        "This account is currently blocked and not recognized as a valid account. Launching EC2 "
        "instance failed.",
    ),
    OnBatch(
        cause="reservation-not-started",
        what="a Capacity Block that starts next week",
        status="RUNNABLE",
        reservation={"State": "scheduled", "starts": 7},
    ),
    OnCluster(
        cause="reservation-ended",
        what="a Capacity Block that ended last week",
        status="RUNNABLE",
        nodes=0,
        reservation={"State": "expired", "starts": -8},
    ),
    OnBatch(
        cause="reservation-full",
        what="a reservation whose instances are in use",
        status="RUNNABLE",
        reservation={"State": "active", "starts": -1, "AvailableInstanceCount": 1},
    ),
    OnBatch(
        cause="no-spot-capacity",
        what="no Spot capacity",
        status="RUNNABLE",
        activities=["UnfulfillableCapacity: There is no Spot capacity available."],
    ),
    OnBatch(
        cause="spot-quota",
        what="launches that exceed the Spot quota",
        status="RUNNABLE",
        activities=["Max spot instance count exceeded. Launching EC2 instance failed."],
    ),
    # --- waiting in a queue ----------------------------------------------------------------------
    OnBatch(
        cause="no-capacity",
        what="Batch's own status reason for insufficient capacity",
        status="RUNNABLE",
        reason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity "
        "requested for instance type trn1.32xlarge",
    ),
    OnBatch(
        cause="service-role",
        what="a service role without permissions",
        status="RUNNABLE",
        reason="MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS - Batch is missing permissions",
    ),
    OnBatch(
        cause="job-too-large-for-host",
        what="a job that requests more memory than a host registers",
        status="RUNNABLE",
        reason="MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement exceeds "
        "that can be allocated",
    ),
    OnBatch(
        cause="deployment-too-small",
        what="maxvCpus of a single node",
        status="RUNNABLE",
        environment={"computeResources": {"maxvCpus": 128}},
    ),
    OnBatch(
        cause="queue-disabled",
        what="a disabled job queue",
        status="RUNNABLE",
        queue={"state": "DISABLED"},
    ),
    OnBatch(
        cause="environment-disabled",
        what="a disabled compute environment",
        status="RUNNABLE",
        environment={"state": "DISABLED"},
    ),
    OnBatch(
        cause="hosts-never-join",
        what="hosts that cannot reach ECS",
        status="RUNNABLE",
        environment={
            "status": "INVALID",
            "statusReason": "CLIENT_ERROR - You are not authorized, or none of the instances "
            "joined the underlying ECS Cluster",
        },
    ),
    OnBatch(
        cause="host-not-ready",
        what="a host with an incompatible driver",
        status="RUNNABLE",
        console="trainium: HOST NOT READY, the ECS agent stays stopped: driver 2.29.0.0 does not "
        "fit; the host ends in 5min\n",
    ),
    OnBatch(
        cause="behind-other-runs",
        what="another run that occupies the nodes",
        status="RUNNABLE",
        others={"first": 3},
    ),
    OnCluster(
        cause="behind-other-runs",
        what="another run that occupies the nodes",
        status="RUNNABLE",
        others={"first": 3},
    ),
    # --- the cluster -----------------------------------------------------------------------------
    OnCluster(cause="nodes-missing", what="one of two nodes", status="RUNNABLE", nodes=1),
    OnCluster(
        cause="scaler-gave-up",
        what="a request that the node scaler dropped",
        status="RUNNABLE",
        nodes=0,
        annotations={"trainium/nodes-dropped": "2 of 2 nodes did not join within 20 minutes"},
    ),
    OnCluster(
        cause="node-not-ready", what="an unresponsive node", status="RUNNABLE", node="silent"
    ),
    OnCluster(cause="node-cordoned", what="a cordoned node", status="RUNNABLE", node="cordoned"),
    OnCluster(
        cause="device-plugin", what="no Neuron device plugin", status="RUNNABLE", node="no chips"
    ),
    OnCluster(cause="efa-plugin", what="no EFA device plugin", status="RUNNABLE", node="no EFA"),
    OnCluster(cause="node-fault", what="an accelerator fault", status="RUNNABLE", node="fault"),
    OnCluster(
        cause="node-fault",
        what="an accelerator fault on a node that the node scaler cordoned",
        status="RUNNABLE",
        node="fault and cordon",
    ),
    OnCluster(
        cause="untolerated-taint",
        what="an unrelated taint",
        status="RUNNABLE",
        unscheduled="0/2 nodes are available: 2 node(s) had untolerated taint {team: other}.",
    ),
    OnCluster(
        cause="volcano-queue-full",
        what="a Volcano queue that is too small",
        status="RUNNABLE",
        events=[
            (
                "Unschedulable",
                "queue resource quota insufficient: insufficient aws.amazon.com/neuron",
            )
        ],
    ),
    OnCluster(
        cause="namespace-quota",
        what="an exceeded ResourceQuota",
        status="RUNNABLE",
        events=[
            (
                "FailedCreate",
                'Error creating pods: pods "x" is forbidden: exceeded quota: '
                "jobs, requested: requests.memory=471859Mi",
            )
        ],
    ),
    OnCluster(
        cause="service-account-missing",
        what="a missing service account",
        status="RUNNABLE",
        events=[
            (
                "FailedCreate",
                'Error creating pods: pods "x" is forbidden: error looking up '
                'service account trainium/job-bert: serviceaccount "job-bert" not found',
            )
        ],
    ),
    OnCluster(cause="volcano-down", what="no Volcano controller", status="SUBMITTED", phase=""),
    # --- not starting ----------------------------------------------------------------------------
    OnBatch(
        cause="image-missing",
        what="a deleted image",
        reason="Task failed to start",
        codes=(None, None),
        node_reasons=["CannotPullContainerError: failed to resolve ref image:1: not found"],
    ),
    OnCluster(
        cause="image-missing",
        what="a deleted image",
        status="STARTING",
        waiting=("ImagePullBackOff", 'Back-off pulling image "image:1": ErrImagePull: not found'),
    ),
    OnBatch(
        cause="registry-unreachable",
        what="no route to ECR",
        codes=(None, None),
        node_reasons=["CannotPullContainerError: dial tcp 52.94.0.1:443: i/o timeout"],
    ),
    OnCluster(
        cause="no-addresses",
        what="no IP address for a pod",
        status="STARTING",
        events=[
            (
                "FailedCreatePodSandBox",
                'plugin type="aws-cni" name="aws-cni" failed (add): '
                "add cmd: failed to assign an IP address to container",
            )
        ],
    ),
    OnCluster(
        cause="volume-not-mounted",
        what="a file system that cannot be mounted",
        status="STARTING",
        events=[("FailedMount", 'MountVolume.SetUp failed for volume "lustre" : rpc error')],
    ),
    OnBatch(
        cause="devices-missing",
        what="a host without the Neuron driver",
        codes=(None, None),
        node_reasons=[
            "CannotStartContainerError: Error response from daemon: error gathering device "
            'information while adding custom device "/dev/neuron0": no such file or directory'
        ],
    ),
    OnBatch(
        cause="secrets-unreachable",
        what="no route to Secrets Manager",
        codes=(None, None),
        node_reasons=["ResourceInitializationError: unable to pull secrets or registry auth"],
    ),
    # --- failed ----------------------------------------------------------------------------------
    OnBatch(
        cause="stopped", what="jobs stop", reason="stopped by ann with jobs stop", codes=(143, 143)
    ),
    OnCluster(
        cause="stopped",
        what="jobs stop",
        phase="Terminated",
        annotations={"trainium/stopped-by": "stopped by ann with jobs stop"},
    ),
    OnBatch(cause="stopped", what="jobs down", reason="stopped by ann with jobs down"),
    OnBatch(
        cause="time-limit",
        what="a time limit that was reached",
        reason="Job attempt duration exceeded timeout",
        codes=(143,),
    ),
    *_ended(
        "block-ends",
        "a Capacity Block that is about to end",
        "launch: exit 124 (x): node 0: the Capacity Block ends soon, so the job stops at noon",
        124,
    ),
    OnBatch(
        cause="out-of-memory",
        what="a child that exceeded its memory limit",
        reason=EXITED,
        codes=(75, 137),
        node_reasons=["", "OutOfMemoryError: Container killed due to memory usage"],
        log=[LOST],
    ),
    OnCluster(
        cause="out-of-memory",
        what="a pod that exceeded its memory limit",
        codes=(137, 75),
        node_reasons=["OOMKilled"],
    ),
    OnBatch(
        cause="host-lost",
        what="a failed host",
        reason=HOST_LOST,
        state_reason="Server.InternalError",
    ),
    OnBatch(
        cause="spot-reclaimed",
        what="a reclaimed Spot instance",
        node_reasons=[HOST_LOST],
        reason="Task failed",
        codes=(None,),
        state_reason="Server.SpotInstanceTermination",
    ),
    OnCluster(
        cause="evicted",
        what="a node under memory pressure",
        codes=(137, 75),
        node_reasons=["Evicted: The node was low on resource: memory."],
    ),
    *_ended(
        "chips-missing",
        "a host with 15 chips",
        PREFLIGHT + "15 of 16 Neuron devices (/dev/neuron*)",
        70,
    ),
    *_ended(
        "efa-missing",
        "a host with 7 EFA interfaces",
        PREFLIGHT + "7 of 8 EFA interfaces of the host (/sys/class/infiniband)",
        70,
    ),
    *_ended(
        "driver-mismatch",
        "a driver that is too new",
        PREFLIGHT + "Neuron driver 2.29.0.0 on the host; release 2.28.0 requires 2.26.5",
        70,
    ),
    OnBatch(
        cause="default-group-closed",
        what="a default security group that does not allow traffic between its members",
        reason=EXITED,
        codes=(70, 70),
        log=[PREFLIGHT + "node 1 did not join within 120 s (first-child-timeout-s)"],
        closed_group=True,
    ),
    *_ended(
        "neuron-hardware",
        "an uncorrectable HBM error",
        HOST + "NRT_EXEC_HW_ERR_HBM_UE (status_code=1201)",
        75,
    ),
    *_ended(
        "neuron-hardware",
        "a parity error, in TorchNeuron's words",
        HOST + "NRT EXECUTION FAILED: NRT model execution failed, An on-chip memory of Neuron Core "
        "encountered a parity error and produced incorrect results.",
        75,
    ),
    *_ended(
        "neuron-peer",
        "a rank that waits for another one, in TorchNeuron's words",
        HOST
        + "Async execution error: seq_id=7, Stuck in collectives op (missing notification(s)). "
        "Possibly caused by a hardware error on another worker",
        75,
    ),
    *_ended(
        "neuron-timeout",
        "an operation that does not end",
        "ERROR TDRV:exec_request_process_errors (FATAL-RT-UNDEFINED-STATE) [ND 0][NC 0] execution "
        "timeout (30000 ms) on model module.neff, waiting for execution completion notification",
        75,
    ),
    *_ended(
        "neuron-cores-busy",
        "a barrier of a process that waits for its core",
        HOST + "Failed to execute the device barrier 1",
        75,
    ),
    *_ended(
        "neuron-memory",
        "a batch that exceeds device memory, in TorchNeuron's words",
        FAILED + "RuntimeError: Neuron OOM: requested_size=1073741824",
        1,
    ),
    *_ended(
        "neuron-group",
        "a group of ranks that the network does not route",
        FAILED + "DistBackendError: ENC:enc_init_comm failed: no_hier no_mesh",
        1,
    ),
    *_ended(
        "efa-failure",
        "a failed EFA transfer",
        HOST + "libfabric: fi_read failed: Resource temporarily unavailable",
        75,
    ),
    *_ended(
        "neuron-memory",
        "a batch that exceeds device memory",
        FAILED + "RuntimeError: NRT_RESOURCE: Failed to allocate 2 GB of HBM",
        1,
    ),
    *_ended(
        "compiler-memory",
        "a compiler killed for lack of memory",
        "[F137] neuronx-cc was forcibly killed - This most commonly occurs due to insufficient "
        "system memory.",
        1,
    ),
    *_ended(
        "credentials-expired",
        "expired credentials",
        FAILED + "ClientError: An error occurred (ExpiredToken) when calling the GetObject "
        "operation: The security token included in the request is expired",
        1,
    ),
    *_ended(
        "access-denied",
        "a bucket that the job's role cannot read",
        FAILED + "ClientError: An error occurred (AccessDenied) when calling GetObject",
        1,
    ),
    *_ended(
        "module-missing",
        "a missing module",
        FAILED + "ModuleNotFoundError: No module named 'wandb'",
        1,
    ),
    *_ended(
        "checkpoint-damaged",
        "truncated checkpoints",
        FAILED + "CheckpointUnusable: no checkpoint of s3://bucket/runs/x can be loaded",
        1,
    ),
    *_ended(
        "data-missing",
        "a missing corpus",
        FAILED + "DatasetError: there is no input at wiki; submit prepare",
        1,
    ),
    *_ended(
        "diverged",
        "a learning rate that is too large",
        FAILED + "Diverged: the loss of step 7 is nan and the gradient norm inf",
        1,
    ),
    *_ended("program-error", "an error in the program", FAILED + "ValueError: shapes differ", 1),
    *_ended(
        "hang",
        "a deadlock",
        "launch: exit 75 (x): node 0: the program hangs: for 1800 s no node printed",
        75,
    ),
    OnBatch(
        cause="exit-code-137",
        what="exit code 137 without further evidence",
        reason=EXITED,
        codes=(137, 143),
    ),
    OnCluster(
        cause="neuron-hardware",
        what="deleted pods, with the launcher's report in the bucket",
        phase="Terminated",
        ending=(75, "node 1: rank 9: RuntimeError: NRT_EXEC_HW_ERR_NC_UE"),
    ),
    # --- two causes at once ----------------------------------------------------------------------
    OnBatch(
        cause="quota-too-small",
        what="an insufficient quota, and insufficient capacity",
        status="RUNNABLE",
        quota=128,
        activities=[NO_CAPACITY],
    ),
    OnBatch(
        cause="queue-disabled",
        what="a disabled job queue, and an old failed launch",
        status="RUNNABLE",
        queue={"state": "DISABLED"},
        activities=[NO_CAPACITY],
    ),
    OnCluster(
        cause="no-capacity",
        what="no nodes, for lack of capacity",
        status="RUNNABLE",
        nodes=0,
        activities=[NO_CAPACITY],
        annotations={"trainium/scale": "true"},
    ),
    OnBatch(
        cause="program-error",
        what="an error in the program, after an EFA warning",
        reason=EXITED,
        codes=(1, 1),
        log=["libfabric:123: EFA provider warning", FAILED + "KeyError: 'lr'"],
    ),
    OnBatch(
        cause="neuron-hardware",
        what="a lost node whose device failed",
        reason=EXITED,
        codes=(75, 75),
        log=["ERROR NRT:nrt_execute NRT_EXEC_HW_ERR_NC_UE", LOST],
    ),
    OnCluster(
        cause="out-of-memory",
        what="a pod that exceeded its memory limit, and a node cordoned since then",
        codes=(75, 137),
        node_reasons=["", "OOMKilled"],
        node="cordoned",
    ),
    OnBatch(
        cause="no-capacity",
        what="a retry that waits for capacity after a lost host",
        status="RUNNABLE",
        earlier=[75],
        activities=[NO_CAPACITY],
    ),
    # --- healthy ---------------------------------------------------------------------------------
    OnBatch(cause="starting", what="hosts that are starting", status="RUNNABLE"),
    OnBatch(
        cause="starting",
        what="a failed launch, followed by a successful one",
        status="RUNNABLE",
        activities=["", NO_CAPACITY],
    ),
    OnCluster(
        cause="cluster-gets-nodes",
        what="nodes that the node scaler is adding",
        status="RUNNABLE",
        nodes=0,
        annotations={"trainium/scale": "true"},
    ),
    OnBatch(cause="running", what="a healthy run", status="RUNNING", log=["step 7 loss 2.1"]),
    OnCluster(
        cause="running",
        what="a healthy run, after a lost attempt",
        status="RUNNING",
        log=["step 7 loss 2.1"],
        earlier=[75],
    ),
    OnBatch(
        cause="silent",
        what="no output for an hour",
        status="RUNNING",
        log=["step 7"],
        quiet=timedelta(hours=1),
    ),
    OnBatch(cause="succeeded", what="a successful run", status="SUCCEEDED", codes=(0, 0)),
    OnCluster(
        cause="succeeded",
        what="a successful run",
        phase="Completed",
        status="SUCCEEDED",
        codes=(0, 0),
    ),
)


def summary() -> str:
    """Return the number of plantings, for the page."""
    on_batch = sum(isinstance(each, OnBatch) for each in PLANTINGS)
    causes = len({each.cause for each in PLANTINGS})
    return (
        f"{counted(len(PLANTINGS), 'run')}, {on_batch} on Batch and "
        f"{len(PLANTINGS) - on_batch} on EKS, of {causes} causes"
    )
