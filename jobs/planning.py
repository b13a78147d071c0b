"""What a run takes on an instance type, computed from the catalogue alone: memory, quota, USD.

No account is asked, so nothing here depends on what the account has: `verify` and a submission
compare these figures with it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from jobs.capacity import TRAINIUM
from trainium_catalogue.contract import (
    ATTEMPTS,
    CLUSTER_LUSTRE_GIB,
    JOB_TIME_LIMIT_HOURS,
    LUSTRE_MBPS_PER_TIB,
    Orchestrator,
)
from trainium_catalogue.documents import Amount, Natural, Positive
from trainium_catalogue.eks import (
    DEFAULT_IDLE_MINUTES,
    USD_PER_HOUR_ESTIMATE,
    cluster_addresses_per_node,
)
from trainium_catalogue.instances import EfaLayout, InstanceType
from trainium_catalogue.models.presets import ModelShape
from trainium_catalogue.parameters.command_line import ParameterValues
from trainium_catalogue.parameters.layout import FILLED, Layout, activation_bytes
from trainium_catalogue.parameters.plan import GIB, TrainingPlan
from trainium_catalogue.prices import HOURS_PER_MONTH, PRICES

ASSUMED_UTILIZATION = 0.2
"""Model FLOPs utilization where none is given, below the 0.31 that AWS published for Llama 2 7B on
16 trn1.32xlarge with Neuron 2.15 (aws-neuron-sdk, benchmarks/trn1). Not measured by this project.
"""
ASSUMED_UPLOAD = 1e9
"""Bytes a second that a node writes to S3; not measured on these instances."""
INTERFACE_ENDPOINTS = 6
"""Of a VPC that the deployment makes (constructs/trainium_constructs/network.py)."""
EKS_ACCESS = {
    "eks_admin_arns": "arn:aws:iam::ACCOUNT:role/ROLE",
    "eks_endpoint_cidrs": "ADDRESS/32",
}
"""Who administers a cluster and from where; the capitals are for the user to replace."""
_PARAMETER = re.compile(r"[a-z][a-z-]*=")
_GB_PER_GIB = GIB / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of one rank, in bytes."""

    state: Natural
    """Weights, gradients and the rank's share of the optimizer's state."""
    activations: int | None
    """Upper bound for one micro-batch; null where the model's layers are not known in parts."""
    available: Natural
    """HBM of the rank."""

    @property
    def needed(self) -> int:
        """State and activations."""
        return self.state + (self.activations or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """A run on a number of nodes of one type."""

    instance_type: str
    nodes: Positive
    ranks: Positive
    orchestrator: Orchestrator
    obstacle: str | None
    """Reason and remedy if the run cannot work; what is derived from the parallelism is null."""
    tensor_parallel: int | None
    data_parallel: int | None
    spans_nodes: bool
    """True if the ranks that share a layer are on several nodes: much slower than was assumed."""
    memory: RankMemory | None
    checkpoint_bytes: int | None
    checkpoint_seconds: float | None
    """At 1 GB/s for each node, an assumption."""
    training_hours: float | None
    """At the utilization that was given or assumed; without compilation and waiting."""
    training_usd: float | None
    quota_code: str
    """EC2's On-Demand quota of vCPUs in the region. Capacity Blocks do not count against it."""
    quota_name: str
    quota_vcpus: Natural
    addresses: Natural
    """Addresses of the subnet that the nodes take."""
    usd_per_hour: Amount
    """Nodes and what the deployment has beside them: NAT gateway, endpoints, cluster, Lustre."""
    usd_at_most: Amount
    """All attempts to their time limit, the nodes' idle time after each on EKS, and what the
    deployment has beside the nodes; without hosts that wait for others, and without traffic."""
    deploy: str
    """Command that deploys for it."""


def estimate(
    values: ParameterValues,
    kind: InstanceType,
    num_nodes: int,
    *,
    orchestrator: Orchestrator,
    time_limit_hours: float,
    utilization: float,
    region: str | None,
) -> RunEstimate:
    """Compute what a run takes; what stands against it is its ``obstacle``."""
    ranks = num_nodes * kind.processes_per_node
    obstacle = _obstacle(kind, num_nodes, region)
    plan = memory = None
    if obstacle is None and values.workload.preset is not None:
        try:
            plan = TrainingPlan.from_values(values.own, ranks)
            memory = _memory(values, plan, kind)
        except ValueError as error:
            # Most begin with the parameter that is wrong.
            plan, obstacle = None, f"--{error}" if _PARAMETER.match(str(error)) else str(error)
    if memory is not None and memory.needed > memory.available:
        obstacle = (
            f"a rank needs {memory.needed / GIB:.1f} GiB and has {memory.available / GIB:g}; raise "
            "--tensor-parallel, lower --micro-batch, or use more nodes"
        )
    hourly = num_nodes * kind.usd_per_hour_estimate + standing_usd_per_hour(orchestrator)
    hours = None if plan is None else _training_hours(values, plan, kind, utilization)
    checkpoint = None if plan is None else plan.checkpoint_bytes
    return RunEstimate(
        instance_type=kind.name,
        nodes=num_nodes,
        ranks=ranks,
        orchestrator=orchestrator,
        obstacle=obstacle,
        tensor_parallel=None if plan is None else plan.tensor_parallel,
        data_parallel=None if plan is None else plan.data_parallel,
        spans_nodes=plan is not None and plan.tensor_parallel > kind.processes_per_node,
        memory=memory,
        checkpoint_bytes=checkpoint,
        checkpoint_seconds=None if checkpoint is None else checkpoint / num_nodes / ASSUMED_UPLOAD,
        training_hours=hours,
        training_usd=None if hours is None else hours * hourly,
        quota_code=TRAINIUM.code,
        quota_name=TRAINIUM.name,
        quota_vcpus=kind.vcpus_for(num_nodes),
        addresses=num_nodes * _addresses_per_node(kind, orchestrator),
        usd_per_hour=hourly,
        usd_at_most=ATTEMPTS * hourly * (time_limit_hours + _idle_hours(orchestrator)),
        deploy=_deploy_command(kind, num_nodes, orchestrator, time_limit_hours, region),
    )


def standing_usd_per_hour(orchestrator: Orchestrator) -> float:
    """Add up what a deployment costs without nodes, but for what passes through it by the GB."""
    endpoints = INTERFACE_ENDPOINTS * PRICES["interface-endpoint"].usd
    network = PRICES["nat-gateway"].usd + PRICES["address"].usd + endpoints
    if orchestrator is Orchestrator.BATCH:
        return network / HOURS_PER_MONTH
    lustre = CLUSTER_LUSTRE_GIB * _GB_PER_GIB * PRICES[f"lustre-{LUSTRE_MBPS_PER_TIB}"].usd
    return (network + lustre) / HOURS_PER_MONTH + USD_PER_HOUR_ESTIMATE


def _idle_hours(orchestrator: Orchestrator) -> float:
    """Hours that the nodes of a cluster may be up after a job; Batch removes its own."""
    return DEFAULT_IDLE_MINUTES / 60 if orchestrator is Orchestrator.EKS else 0.0


def _obstacle(kind: InstanceType, num_nodes: int, region: str | None) -> str | None:
    if num_nodes > 1 and not kind.supports_multi_node:
        return f"{kind.name} has no EFA, which more than one node needs; plan with --nodes 1"
    if region is not None and region not in kind.zone_ids:
        return f"{kind.name} is not offered in {region}; it is in {', '.join(kind.zone_ids)}"
    return None


def _memory(values: ParameterValues, plan: TrainingPlan, kind: InstanceType) -> RankMemory:
    activations = None
    if isinstance(plan.shape, ModelShape):
        activations = activation_bytes(plan, Layout.choose(values.own, plan))
    chips = kind.num_neuron_devices * kind.hbm_gib_per_device
    return RankMemory(
        state=plan.state_bytes_per_rank,
        activations=activations,
        available=GIB * chips // kind.num_logical_cores,
    )


def _training_hours(
    values: ParameterValues, plan: TrainingPlan, kind: InstanceType, utilization: float
) -> float:
    tokens = int(values.own["max-steps"]) * plan.tokens_per_step
    flops_per_second = plan.num_ranks * kind.peak_flops_per_process * utilization
    return tokens * plan.flops_per_token / flops_per_second / 3600


def _addresses_per_node(kind: InstanceType, orchestrator: Orchestrator) -> int:
    if orchestrator is Orchestrator.BATCH:
        return kind.addresses_per_node(EfaLayout.EFA)
    return cluster_addresses_per_node(kind, EfaLayout.EFA)


def _deploy_command(
    kind: InstanceType,
    num_nodes: int,
    orchestrator: Orchestrator,
    time_limit_hours: float,
    region: str | None,
) -> str:
    """Write the command whose deployment takes the run; without a region it chooses one itself."""
    keys: dict[str, object] = {"instance_type": kind.name, "max_nodes": num_nodes}
    if orchestrator is Orchestrator.EKS:
        keys |= {"orchestrators": orchestrator.value, **EKS_ACCESS}
    if region is not None:
        keys["region"] = region
    if time_limit_hours > JOB_TIME_LIMIT_HOURS:
        keys["job_time_limit_hours"] = math.ceil(time_limit_hours)
    return "cdk deploy --all " + " ".join(f"-c trainium:{key}={keys[key]}" for key in keys)


def fills_memory(memory: RankMemory) -> bool:
    """Tell whether less is left than the compiler may need for its copies and collectives."""
    return memory.needed > FILLED * memory.available
