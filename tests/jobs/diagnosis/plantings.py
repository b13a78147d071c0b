"""Runs with a planted cause, as AWS and Kubernetes would show them; counted in docs/diagnosis.md.

Texts come from the sources of each cause in jobs/diagnosis/causes.toml.
"""

from __future__ import annotations

import re
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


def _waits(cause: str, what: str, **more: Any) -> OnBatch:
    """Return a run that waits on Batch."""
    return OnBatch(cause=cause, what=what, status="RUNNABLE", **more)


def _waits_on_cluster(cause: str, what: str, **more: Any) -> OnCluster:
    """Return a run that waits on the cluster."""
    return OnCluster(cause=cause, what=what, status="RUNNABLE", **more)


def _launch(cause: str, what: str, text: str, **more: Any) -> tuple[Planting, Planting]:
    """Return the same failed launch on both orchestrators."""
    more["activities"] = [text]
    return _waits(cause, what, **more), _waits_on_cluster(cause, what, nodes=0, **more)


def _ended(cause: str, what: str, line: str, code: int = 0) -> tuple[Planting, Planting]:
    """Return the same last lines on both orchestrators; a launcher's line has the exit code."""
    lines = [line, f"launch: exit {code} (x): node 0: y"]
    if verdict := re.match(r"launch: exit (\d+)", line):
        lines, code = [line], int(verdict[1])
    both: dict[str, Any] = {"cause": cause, "what": what, "codes": (code, code), "log": lines}
    return OnBatch(reason=EXITED, **both), OnCluster(**both)


PLANTINGS: tuple[Planting, ...] = (
    # --- waiting for capacity --------------------------------------------------------------------
    *_launch("no-capacity", "insufficient capacity in the zone", NO_CAPACITY),
    *_launch("quota-too-small", "launches that exceed the vCPU quota", VCPUS),
    _waits("quota-too-small", "a vCPU quota for a single node", quota=128),
    *_launch(
        "no-addresses",
        "a subnet without free addresses",
        "There are not enough free addresses in subnet 'subnet-1' to satisfy the requested number "
        "of instances. InsufficientFreeAddressesInSubnet. Launching EC2 instance failed.",
    ),
    _waits("no-addresses", "a subnet with three free addresses", free_addresses=3),
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
    _waits(
        "reservation-not-started",
        "a Capacity Block that starts next week",
        reservation={"State": "scheduled", "starts": 7},
    ),
    _waits_on_cluster(
        "reservation-ended",
        "a Capacity Block that ended last week",
        nodes=0,
        reservation={"State": "expired", "starts": -8},
    ),
    _waits(
        "reservation-full",
        "a reservation whose instances are in use",
        reservation={"State": "active", "starts": -1, "AvailableInstanceCount": 1},
    ),
    _waits(
        "no-spot-capacity",
        "no Spot capacity",
        activities=["UnfulfillableCapacity: There is no Spot capacity available."],
    ),
    _waits(
        "spot-quota",
        "launches that exceed the Spot quota",
        activities=["Max spot instance count exceeded. Launching EC2 instance failed."],
    ),
    # --- waiting in a queue ----------------------------------------------------------------------
    _waits(
        "no-capacity",
        "Batch's own status reason for insufficient capacity",
        reason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity "
        "requested for instance type trn1.32xlarge",
    ),
    _waits(
        "service-role",
        "a service role without permissions",
        reason="MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS - Batch is missing permissions",
    ),
    _waits(
        "job-too-large-for-host",
        "a job that requests more memory than a host registers",
        reason="MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement exceeds "
        "that can be allocated",
    ),
    _waits(
        "deployment-too-small",
        "maxvCpus of a single node",
        environment={"computeResources": {"maxvCpus": 128}},
    ),
    _waits("queue-disabled", "a disabled job queue", queue={"state": "DISABLED"}),
    _waits(
        "environment-disabled", "a disabled compute environment", environment={"state": "DISABLED"}
    ),
    _waits(
        "hosts-never-join",
        "hosts that cannot reach ECS",
        environment={
            "status": "INVALID",
            "statusReason": "CLIENT_ERROR - You are not authorized, or none of the instances "
            "joined the underlying ECS Cluster",
        },
    ),
    _waits(
        "host-not-ready",
        "a host with an incompatible driver",
        console="trainium: HOST NOT READY, the ECS agent stays stopped: driver 2.29.0.0 does not "
        "fit; the host ends in 5min\n",
    ),
    _waits("behind-other-runs", "another run that occupies the nodes", others={"first": 3}),
    _waits_on_cluster(
        "behind-other-runs", "another run that occupies the nodes", others={"first": 3}
    ),
    # --- the cluster -----------------------------------------------------------------------------
    _waits_on_cluster("nodes-missing", "one of two nodes", nodes=1),
    _waits_on_cluster(
        "scaler-gave-up",
        "a request that the node scaler dropped",
        nodes=0,
        annotations={"trainium/nodes-dropped": "2 of 2 nodes did not join within 20 minutes"},
    ),
    _waits_on_cluster("node-not-ready", "an unresponsive node", node="silent"),
    _waits_on_cluster("node-cordoned", "a cordoned node", node="cordoned"),
    _waits_on_cluster("device-plugin", "no Neuron device plugin", node="no chips"),
    _waits_on_cluster("efa-plugin", "no EFA device plugin", node="no EFA"),
    _waits_on_cluster("node-fault", "an accelerator fault", node="fault"),
    _waits_on_cluster(
        "node-fault",
        "an accelerator fault on a node that the node scaler cordoned",
        node="fault and cordon",
    ),
    _waits_on_cluster(
        "untolerated-taint",
        "an unrelated taint",
        unscheduled="0/2 nodes are available: 2 node(s) had untolerated taint {team: other}.",
    ),
    _waits_on_cluster(
        "volcano-queue-full",
        "a Volcano queue that is too small",
        events=[
            (
                "Unschedulable",
                "queue resource quota insufficient: insufficient aws.amazon.com/neuron",
            )
        ],
    ),
    _waits_on_cluster(
        "namespace-quota",
        "an exceeded ResourceQuota",
        events=[
            (
                "FailedCreate",
                'Error creating pods: pods "x" is forbidden: exceeded quota: '
                "jobs, requested: requests.memory=471859Mi",
            )
        ],
    ),
    _waits_on_cluster(
        "service-account-missing",
        "a missing service account",
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
    ),
    *_ended(
        "efa-missing",
        "a host with 7 EFA interfaces",
        PREFLIGHT + "7 of 8 EFA interfaces of the host (/sys/class/infiniband)",
    ),
    *_ended(
        "driver-mismatch",
        "a driver that is too new",
        PREFLIGHT + "Neuron driver 2.29.0.0 on the host; release 2.28.0 requires 2.26.5",
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
    ),
    *_ended(
        "neuron-hardware",
        "a parity error, in TorchNeuron's words",
        HOST + "NRT EXECUTION FAILED: NRT model execution failed, An on-chip memory of Neuron Core "
        "encountered a parity error and produced incorrect results.",
    ),
    *_ended(
        "neuron-peer",
        "a rank that waits for another one, in TorchNeuron's words",
        HOST
        + "Async execution error: seq_id=7, Stuck in collectives op (missing notification(s)). "
        "Possibly caused by a hardware error on another worker",
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
    ),
    *_ended(
        "neuron-memory",
        "a batch that exceeds device memory, in TorchNeuron's words",
        FAILED + "RuntimeError: Neuron OOM: requested_size=1073741824",
    ),
    *_ended(
        "neuron-group",
        "a group of ranks that the network does not route",
        FAILED + "DistBackendError: ENC:enc_init_comm failed: no_hier no_mesh",
    ),
    *_ended(
        "efa-failure",
        "a failed EFA transfer",
        HOST + "libfabric: fi_read failed: Resource temporarily unavailable",
    ),
    *_ended(
        "neuron-memory",
        "a batch that exceeds device memory",
        FAILED + "RuntimeError: NRT_RESOURCE: Failed to allocate 2 GB of HBM",
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
    ),
    *_ended(
        "access-denied",
        "a bucket that the job's role cannot read",
        FAILED + "ClientError: An error occurred (AccessDenied) when calling GetObject",
    ),
    *_ended(
        "module-missing",
        "a missing module",
        FAILED + "ModuleNotFoundError: No module named 'wandb'",
    ),
    *_ended(
        "checkpoint-damaged",
        "truncated checkpoints",
        FAILED + "CheckpointUnusable: no checkpoint of s3://bucket/runs/x can be loaded",
    ),
    *_ended(
        "data-missing",
        "a missing corpus",
        FAILED + "DatasetError: there is no input at wiki; submit prepare",
    ),
    *_ended(
        "diverged",
        "a learning rate that is too large",
        FAILED + "Diverged: the loss of step 7 is nan and the gradient norm inf",
    ),
    *_ended("program-error", "an error in the program", FAILED + "ValueError: shapes differ"),
    *_ended(
        "hang",
        "a deadlock",
        "launch: exit 75 (x): node 0: the program hangs: for 1800 s no node printed",
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
    _waits(
        "quota-too-small",
        "an insufficient quota, and insufficient capacity",
        quota=128,
        activities=[NO_CAPACITY],
    ),
    _waits(
        "queue-disabled",
        "a disabled job queue, and an old failed launch",
        queue={"state": "DISABLED"},
        activities=[NO_CAPACITY],
    ),
    _waits_on_cluster(
        "no-capacity",
        "no nodes, for lack of capacity",
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
    _waits(
        "no-capacity",
        "a retry that waits for capacity after a lost host",
        earlier=[75],
        activities=[NO_CAPACITY],
    ),
    # --- healthy ---------------------------------------------------------------------------------
    _waits("starting", "hosts that are starting"),
    _waits(
        "starting", "a failed launch, followed by a successful one", activities=["", NO_CAPACITY]
    ),
    _waits_on_cluster(
        "cluster-gets-nodes",
        "nodes that the node scaler is adding",
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
