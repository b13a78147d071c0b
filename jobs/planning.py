"""Memory, quota and cost of a run on an instance type, computed from the catalogue alone.

No account is needed: `verify` and submissions compare these figures with the account.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from jobs.capacity import TRAINIUM
from jobs.cost import (
    BilledHours,
    CostCap,
    billed_hours,
    endless_wait,
    unknown_price,
    why_over,
    why_unbounded,
)
from trainium_catalogue import torus
from trainium_catalogue.contract import (
    CLUSTER_LUSTRE_GIB,
    JOB_TIME_LIMIT_HOURS,
    LUSTRE_MBPS_PER_TIB,
    Orchestrator,
)
from trainium_catalogue.documents import Amount, Natural, Positive
from trainium_catalogue.eks import USD_PER_HOUR_ESTIMATE, cluster_addresses_per_node
from trainium_catalogue.instances import EfaLayout, InstanceType
from trainium_catalogue.models.presets import ModelShape
from trainium_catalogue.parameters.command_line import ParameterValues
from trainium_catalogue.parameters.layout import (
    FILLED,
    Layout,
    activation_bytes,
    check_backend,
    has_torch_neuron,
    saved_by_resharding,
)
from trainium_catalogue.parameters.plan import GIB, TrainingPlan, refuse_shared_heads
from trainium_catalogue.prices import HOURS_PER_MONTH, PRICES
from trainium_catalogue.releases import TORCH_NEURON_RELEASE, TorchBackend
from trainium_catalogue.zones import INTERFACE_ENDPOINTS

ASSUMED_UTILIZATION = 0.2
"""Default model FLOPs utilization, below the 0.31 that AWS published for Llama 2 7B on
16 trn1.32xlarge with Neuron 2.15 (aws-neuron-sdk, benchmarks/trn1). Not measured by this project.
"""
ASSUMED_UPLOAD = 1e9
"""Bytes per second that a node writes to S3; not measured on these instances."""
EKS_ACCESS = {
    "eks_admin_arns": "arn:aws:iam::ACCOUNT:role/ROLE",
    "eks_endpoint_cidrs": "ADDRESS/32",
}
"""Administrators of a cluster and their addresses; users replace the uppercase parts."""
_PARAMETER = re.compile(r"[a-z][a-z-]*=")
_GB_PER_GIB = GIB / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of one rank, in bytes."""

    state: Natural
    """Weights, gradients and the rank's share of the optimizer state."""
    activations: int | None
    """Upper bound for one micro-batch; null if the model's layers are not known in detail."""
    available: Natural
    """HBM per rank."""
    saved_by_resharding: Natural
    """Bytes of ``state`` that would not be needed with ``--reshard-after-forward true``; 0 if it is
    set, or not available on the type."""

    @property
    def needed(self) -> int:
        """Sum of state and activations."""
        return self.state + (self.activations or 0)

    @property
    def needed_resharded(self) -> int:
        """The same with ``--reshard-after-forward true``, if that is possible and needs less."""
        return self.needed - self.saved_by_resharding

    @property
    def fillable(self) -> float:
        """Bytes beyond which the compiler's copies and collectives may not fit."""
        return FILLED * self.available


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """Requirements of a run on a number of nodes of one type."""

    instance_type: str
    nodes: Positive
    ranks: Positive
    orchestrator: Orchestrator
    obstacle: str | None
    """Reason and remedy if the run is not feasible; fields derived from parallelism are null."""
    tensor_parallel: int | None
    data_parallel: int | None
    spans_nodes: bool
    """True if the ranks that share a layer span several nodes: much slower than assumed."""
    memory: RankMemory | None
    checkpoint_bytes: int | None
    checkpoint_seconds: float | None
    """At an assumed 1 GB/s per node."""
    training_hours: float | None
    """At the given or assumed utilization; without compilation and waiting."""
    training_usd: float | None
    quota_code: str
    """EC2 On-Demand vCPU quota in the region. Capacity Blocks do not count against it."""
    quota_name: str
    quota_vcpus: Natural
    addresses: Natural
    """Subnet addresses taken by the nodes."""
    usd_per_hour: Amount
    """Nodes and the rest of the deployment: NAT gateway, endpoints, cluster, Lustre."""
    usd_at_most: Amount
    """Upper bound of one submission's instance cost in a deployment with default settings; a later
    submission that resumes the run has its own bound."""
    usd_at_most_caveat: str | None
    """Why the bound may be exceeded, such as an unknown list price, or hosts on Batch that may wait
    for each other indefinitely; null if it holds."""
    billed_hours: BilledHours
    """Billed hours of each node, from which the bound is computed."""
    deploy: str
    """Command that deploys for this run."""


def estimate(
    values: ParameterValues,
    kind: InstanceType,
    num_nodes: int,
    *,
    orchestrator: Orchestrator,
    time_limit_hours: float,
    utilization: float,
    region: str | None,
    cap: CostCap | None = None,
) -> RunEstimate:
    """Compute the requirements of a run; if it is not feasible, ``obstacle`` explains why."""
    ranks = num_nodes * kind.processes_per_node
    obstacle = _obstacle(kind, num_nodes, region)
    plan = memory = None
    if obstacle is None and values.workload.preset is not None:
        try:
            plan = TrainingPlan.from_values(values.own, ranks)
            memory = _memory(values, plan, kind)
            if not has_torch_neuron(kind):
                check_backend(values.own, TorchBackend.XLA)
                refuse_shared_heads(plan.tensor_parallel, plan.shape.num_key_value_heads)
            elif plan.shares_heads:
                torus.check_mesh(kind, plan.tensor_parallel)
        except ValueError as error:
            # Most messages begin with the invalid parameter.
            plan, obstacle = None, f"--{error}" if _PARAMETER.match(str(error)) else str(error)
    if memory is not None and memory.needed > memory.available:
        resharding = memory.needed_resharded <= memory.available
        option = "set --reshard-after-forward true, " if resharding else ""
        obstacle = (
            f"a rank needs {memory.needed / GIB:.1f} GiB but has {memory.available / GIB:g}; "
            f"{option}raise --tensor-parallel, lower --micro-batch, or use more nodes"
        )

    def compute_billed_hours(hours: float) -> BilledHours:
        return billed_hours(orchestrator, hours, parameters=values.given, settings={})

    def usd_at_most(nodes: int, hours: float) -> float:
        return nodes * kind.usd_per_hour_estimate * compute_billed_hours(hours).total

    unknown = unknown_price(kind, region)
    if obstacle is None and cap is not None:
        obstacle = why_over(
            cap,
            usd_at_most,
            num_nodes=num_nodes,
            fewest=max(1, values.workload.min_nodes),
            time_limit_hours=time_limit_hours,
            breakdown=compute_billed_hours(time_limit_hours).text(),
        )
        if unknown is not None:
            obstacle = why_unbounded(cap, unknown)
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
        usd_at_most=usd_at_most(num_nodes, time_limit_hours),
        usd_at_most_caveat=unknown or endless_wait(orchestrator, num_nodes),
        billed_hours=compute_billed_hours(time_limit_hours),
        deploy=_deploy_command(
            kind,
            num_nodes,
            orchestrator,
            time_limit_hours,
            region,
            needs_torch_neuron=plan is not None
            and (plan.shares_heads or plan.reshard_after_forward),
        ),
    )


def standing_usd_per_hour(orchestrator: Orchestrator) -> float:
    """Return a deployment's hourly cost without nodes and without charges per GB."""
    endpoints = len(INTERFACE_ENDPOINTS) * PRICES["interface-endpoint"].usd
    network = PRICES["nat-gateway"].usd + PRICES["address"].usd + endpoints
    if orchestrator is Orchestrator.BATCH:
        return network / HOURS_PER_MONTH
    lustre = CLUSTER_LUSTRE_GIB * _GB_PER_GIB * PRICES[f"lustre-{LUSTRE_MBPS_PER_TIB}"].usd
    return (network + lustre) / HOURS_PER_MONTH + USD_PER_HOUR_ESTIMATE


def _obstacle(kind: InstanceType, num_nodes: int, region: str | None) -> str | None:
    if num_nodes > 1 and not kind.supports_multi_node:
        return f"{kind.name} has no EFA, which multi-node jobs need; plan with --nodes 1"
    if region is not None and region not in kind.zone_ids:
        return f"{kind.name} is not offered in {region}; use one of {', '.join(kind.zone_ids)}"
    return None


def _memory(values: ParameterValues, plan: TrainingPlan, kind: InstanceType) -> RankMemory:
    activations = None
    if isinstance(plan.shape, ModelShape):
        activations = activation_bytes(plan, Layout.choose(values.own, plan))
    hbm_gib = kind.num_neuron_devices * kind.hbm_gib_per_device
    return RankMemory(
        state=plan.state_bytes_per_rank,
        activations=activations,
        available=GIB * hbm_gib // kind.num_logical_cores,
        saved_by_resharding=saved_by_resharding(plan, kind),
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
    *,
    needs_torch_neuron: bool,
) -> str:
    """Build the command that deploys for the run; without a region, deploying chooses one."""
    keys: dict[str, object] = {"instance_type": kind.name, "max_nodes": num_nodes}
    if needs_torch_neuron:
        keys["neuron_release"] = TORCH_NEURON_RELEASE
    if orchestrator is Orchestrator.EKS:
        keys |= {"orchestrators": orchestrator.value, **EKS_ACCESS}
    if region is not None:
        keys["region"] = region
    if time_limit_hours > JOB_TIME_LIMIT_HOURS:
        keys["job_time_limit_hours"] = math.ceil(time_limit_hours)
    return "cdk deploy --all " + " ".join(f"-c trainium:{key}={keys[key]}" for key in keys)
