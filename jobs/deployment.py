"""A deployment as read from the SSM parameters that its stacks publish."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from jobs.aws import SsmClient, pages
from jobs.errors import Refusal
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.suggest import nearest
from trainium_catalogue.typed_json import read_json
from trainium_catalogue.workloads import WORKLOADS, Hardware

T = TypeVar("T")
_NAMES = (
    contract.SSM_CONTRACT_VERSION,
    contract.SSM_INSTANCE_TYPE,
    contract.SSM_MAX_NODES,
    contract.SSM_NEURON_RELEASE,
    contract.SSM_BUCKET,
    contract.SSM_JOB_QUEUE,
    contract.SSM_CPU_JOB_QUEUE,
    contract.SSM_COMPUTE_ENVIRONMENT,
    contract.SSM_BATCH_ZONES,
    contract.SSM_LOG_GROUP,
    contract.SSM_JOB_TIME_LIMIT_HOURS,
    contract.SSM_MAX_COST_PER_JOB_USD,
    contract.SSM_ORCHESTRATORS,
    contract.SSM_VPC,
    contract.SSM_DEFAULT_SECURITY_GROUP,
    contract.SSM_SETTINGS,
)
_EKS_NAMES = (
    *contract.SSM_EKS_NAMES,
    contract.SSM_EKS_LUSTRE_CLAIM,
    contract.SSM_EKS_IDLE_MINUTES,
)
_URI = re.compile(r"s3://[^\s,\"'\]]+")
_NAMES_PER_CALL = 10  # of GetParameters (Systems Manager API reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class EksTarget:
    """The cluster of a deployment, and the settings its jobs need."""

    cluster: str
    namespace: str
    queue: str
    """Name of the Volcano queue."""
    node_group: str
    """Name of the node group; with several, ``<zone id>=<name>`` each, in the zones' order."""
    image: str
    job_time_limit_hours: float
    lustre_claim: str | None
    """PersistentVolumeClaim of the file system; None if there is none."""
    idle_minutes: int | None = None
    """Idle timeout of the node scaler; None if nothing removes idle nodes."""

    @property
    def node_groups(self) -> dict[str, str]:
        """Names of the node groups by zone id, which is empty for a single group."""
        pairs = (each.rpartition("=") for each in self.node_group.split(","))
        return {zone: name for zone, _, name in pairs}

    @property
    def has_zones(self) -> bool:
        """True if the nodes can be in several zones."""
        return len(self.node_groups) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchZone:
    """One of several zones where Batch launches nodes."""

    zone: str
    job_queue: str
    compute_environment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchZones:
    """The zones of a deployment, in the order that jobs try them."""

    zones: tuple[BatchZone, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Names, limits and queues of a deployment."""

    name: str
    region: str
    instance_type: InstanceType
    max_nodes: int
    neuron_release: str
    bucket: str
    orchestrators: tuple[Orchestrator, ...]
    """Orchestrators that run jobs on nodes."""
    job_queue: str | None
    """Queue of the nodes; None if Batch launches none, or its stack does not exist."""
    cpu_job_queue: str
    compute_environment: str | None
    log_group: str
    job_time_limit_hours: float
    job_definition: str | None
    """ARN of the requested workload's job definition, if a workload was requested."""
    eks: EksTarget | None = None
    unusable: Mapping[Orchestrator, Refusal] = field(default_factory=dict)
    """Orchestrators with a missing or invalid parameter, for example of a destroyed stack."""
    vpc: str | None = None
    """VPC of the nodes; None if deployed by an earlier checkout, which did not publish it."""
    default_security_group: str | None = None
    """Default security group of that VPC, if published."""
    settings: Mapping[str, str] | None = None
    """The ``-c`` settings it was deployed with; None if unknown."""
    max_cost_per_job_usd: float | None = None
    """Cost cap of a submission; None if there is none."""
    zones: tuple[BatchZone, ...] = ()
    """Zones where Batch launches nodes, in order; empty if there is only one."""

    @property
    def usable(self) -> tuple[Orchestrator, ...]:
        """The orchestrators without missing or invalid parameters."""
        return tuple(item for item in self.orchestrators if item not in self.unusable)

    @property
    def queues(self) -> Mapping[str, Hardware]:
        """The job queues and the hardware behind each."""
        nodes = dict.fromkeys(self.node_queues, Hardware.TRAINIUM)
        return {**nodes, self.cpu_job_queue: Hardware.CPU}

    @property
    def node_queues(self) -> tuple[str, ...]:
        """The queues of the nodes, one per zone."""
        first = () if self.job_queue is None else (self.job_queue,)
        return tuple(each.job_queue for each in self.zones) or first

    def zone_of(self, job_queue: str | None) -> BatchZone | None:
        """Return the zone of a queue; None with a single zone."""
        return next((each for each in self.zones if each.job_queue == job_queue), None)

    def next_zone(self, job_queue: str | None) -> BatchZone | None:
        """Return the zone that a job of this queue moves to; None if there is none."""
        here = self.zone_of(job_queue)
        later = self.zones[self.zones.index(here) + 1 :] if here is not None else ()
        return next(iter(later), None)

    @property
    def data_uris(self) -> list[str]:
        """S3 URIs outside its bucket that its jobs may access, if its settings are known."""
        # As passed to `cdk deploy`: separated by commas, or a JSON list.
        return _URI.findall((self.settings or {}).get("data_uris", ""))

    def cap_hours(self, orchestrator: Orchestrator) -> float:
        """Return the maximum time limit of an attempt."""
        eks = self.eks if orchestrator is Orchestrator.EKS else None
        return self.job_time_limit_hours if eks is None else eks.job_time_limit_hours

    def redeploy(self, **changes: object) -> str:
        """Build the command, in backticks, that redeploys this deployment with ``changes``."""
        # Always explicit: the user's cdk.json may differ.
        known = {**_named(self.name), "instance_type": self.instance_type.name}
        if self.region:
            known["region"] = self.region
        if self.settings is not None:
            return f"`{cdk_deploy({**known, **self.settings, **changes})}`"
        # An earlier checkout saved no settings, or they were too long to save.
        return (
            f"`{cdk_deploy({**known, **changes})}` and the other -c settings it was deployed with"
        )


@dataclass(frozen=True, kw_only=True)
class DeploymentFields:
    """Common fields of documents about a deployment."""

    deployment: str
    region: str


@dataclass(frozen=True, kw_only=True)
class RunFields(DeploymentFields):
    """Common fields of documents about a run."""

    run: str


def where(deployment: Deployment, run: str) -> dict[str, Any]:
    """Return the fields of ``RunFields``."""
    return {"deployment": deployment.name, "region": deployment.region, "run": run}


def read_deployment(
    ssm: SsmClient, name: str, *, region: str | None, workload: str | None = None
) -> Deployment:
    """Read the parameters of ``name``; refuse a deployment that this checkout cannot use."""
    parameters = list(_NAMES)
    if workload is not None:
        parameters.append(contract.ssm_job_definition(workload))
    values = _read_parameters(ssm, name, parameters)
    if Orchestrator.EKS in values.get(contract.SSM_ORCHESTRATORS, ""):
        values |= _read_parameters(ssm, name, _EKS_NAMES)
    where = f" in {region}" if region else ""

    version = values.get(contract.SSM_CONTRACT_VERSION)
    if version is None:
        raise missing_deployment(ssm, name, where)
    if version != contract.CONTRACT_VERSION:
        raise Refusal(
            "contract-version",
            f"deployment {name!r}{where} has contract version {version}, but this checkout has "
            f"{contract.CONTRACT_VERSION}; use the checkout that deployed it, or deploy it again "
            f"from this one with `{deploy_command(name)}`",
        )
    return _parse(name, values, region=region or "", where=where, workload=workload)


def _read_parameters(ssm: SsmClient, name: str, parameters: Sequence[str]) -> dict[str, str]:
    """Read those of a deployment's parameters that exist, by their short names."""
    full = {contract.ssm_parameter(name, short): short for short in parameters}
    names = list(full)
    values: dict[str, str] = {}
    for start in range(0, len(names), _NAMES_PER_CALL):
        published = ssm.get_parameters(Names=names[start : start + _NAMES_PER_CALL])["Parameters"]
        values |= {full[item["Name"]]: str(item["Value"]) for item in published}
    return values


def _parse(
    name: str, values: Mapping[str, str], *, region: str, where: str, workload: str | None
) -> Deployment:
    settings = _settings(values)
    line = deploy_command(name) if settings is None else cdk_deploy({**_named(name), **settings})
    again = f"`{line}`"
    more = (
        " and all -c settings that should apply"
        if settings is None
        else ", adding any settings to change"
    )

    def value(short: str, convert: Callable[[str], T]) -> T:
        parameter = contract.ssm_parameter(name, short)
        if short not in values:
            raise Refusal(
                "missing-parameter",
                f"deployment {name!r}{where} does not publish {parameter} (its stack was "
                "destroyed, or another version of this project deployed it); deploy again with "
                f"{again}{more}",
            )
        try:
            return convert(values[short])
        except ValueError as error:
            raise Refusal(
                "invalid-parameter",
                f"{parameter}{where} is {values[short]!r}, which this checkout cannot use "
                f"({error}); use the checkout that deployed it, or deploy it again with {again}",
            ) from None

    def parse_orchestrators(text: str) -> tuple[Orchestrator, ...]:
        return tuple(Orchestrator(word.strip()) for word in text.split(","))

    orchestrators = value(contract.SSM_ORCHESTRATORS, parse_orchestrators)
    unusable: dict[Orchestrator, Refusal] = {}

    def part(orchestrator: Orchestrator, read: Callable[[], T]) -> T | None:
        """Read the parameters of one orchestrator's stack; defer a refusal until it is used."""
        if orchestrator not in orchestrators:
            return None
        try:
            return read()
        except Refusal as refusal:
            unusable[orchestrator] = refusal
            return None

    def definition() -> str | None:
        return None if workload is None else value(contract.ssm_job_definition(workload), str)

    on_cpu = workload is not None and WORKLOADS[workload].hardware is Hardware.CPU
    nodes = part(
        Orchestrator.BATCH,
        lambda: (
            value(contract.SSM_JOB_QUEUE, str),
            value(contract.SSM_COMPUTE_ENVIRONMENT, str),
            None if on_cpu else definition(),
        ),
    )
    job_queue, compute_environment, job_definition = nodes or (None, None, None)
    has_zones = nodes is not None and contract.SSM_BATCH_ZONES in values
    eks = part(
        Orchestrator.EKS,
        lambda: EksTarget(
            cluster=value(contract.SSM_EKS_CLUSTER, str),
            namespace=value(contract.SSM_EKS_NAMESPACE, str),
            queue=value(contract.SSM_EKS_QUEUE, str),
            node_group=value(contract.SSM_EKS_NODE_GROUP, str),
            image=value(contract.SSM_EKS_IMAGE, str),
            job_time_limit_hours=value(contract.SSM_EKS_JOB_TIME_LIMIT_HOURS, float),
            lustre_claim=values.get(contract.SSM_EKS_LUSTRE_CLAIM),
            idle_minutes=(
                value(contract.SSM_EKS_IDLE_MINUTES, int)
                if contract.SSM_EKS_IDLE_MINUTES in values
                else None
            ),
        ),
    )
    return Deployment(
        name=name,
        region=region,
        instance_type=value(contract.SSM_INSTANCE_TYPE, find_instance_type),
        max_nodes=value(contract.SSM_MAX_NODES, int),
        neuron_release=value(contract.SSM_NEURON_RELEASE, str),
        bucket=value(contract.SSM_BUCKET, str),
        orchestrators=orchestrators,
        job_queue=job_queue,
        cpu_job_queue=value(contract.SSM_CPU_JOB_QUEUE, str),
        compute_environment=compute_environment,
        log_group=value(contract.SSM_LOG_GROUP, str),
        job_time_limit_hours=value(contract.SSM_JOB_TIME_LIMIT_HOURS, float),
        job_definition=definition() if on_cpu else job_definition,
        eks=eks,
        unusable=unusable,
        vpc=values.get(contract.SSM_VPC),
        default_security_group=values.get(contract.SSM_DEFAULT_SECURITY_GROUP),
        settings=settings,
        max_cost_per_job_usd=(
            value(contract.SSM_MAX_COST_PER_JOB_USD, float)
            if contract.SSM_MAX_COST_PER_JOB_USD in values
            else None
        ),
        zones=value(contract.SSM_BATCH_ZONES, _zones) if has_zones else (),
    )


def _zones(text: str) -> tuple[BatchZone, ...]:
    return read_json(text, BatchZones).zones


def _settings(values: Mapping[str, str]) -> dict[str, str] | None:
    """Read the saved settings; None if they are unknown."""
    try:
        settings = json.loads(values.get(contract.SSM_SETTINGS, "null"))
    except ValueError:
        return None
    if not isinstance(settings, dict):
        return None
    return {str(key): str(value) for key, value in settings.items()}


def missing_deployment(ssm: SsmClient, name: str, where: str) -> Refusal:
    """Build the refusal for a deployment that does not exist."""
    parameter = contract.ssm_parameter(name, contract.SSM_CONTRACT_VERSION)
    others = _other_deployments(ssm)
    near = nearest(name, others)
    meant = f"did you mean {near!r}?" if near else f"deployed here: {', '.join(others)}"
    hint = f"; {meant}" if others else ""
    return Refusal(
        "no-deployment",
        f"no deployment {name!r}{where}: there is no SSM parameter {parameter}; pass its --region, "
        f"another --deployment or AWS_PROFILE, or deploy it with `{deploy_command(name)}`{hint}",
    )


def _other_deployments(ssm: SsmClient) -> set[str]:
    """List the names of existing deployments, best effort, for a hint."""
    root = contract.ssm_root("").rstrip("/")
    names: set[str] = set()
    found = pages(ssm.get_parameters_by_path, token="NextToken", Path=root, Recursive=True)
    try:
        for page in islice(found, 20):
            names |= {
                item["Name"].removeprefix(f"{root}/").partition("/")[0]
                for item in page["Parameters"]
            }
    except Exception:  # a failed hint must not hide the refusal
        return names
    return names


def cli_command(deployment: Deployment) -> str:
    """Build `python -m jobs` with the options that select the deployment."""
    name = ""
    if deployment.name != contract.DEFAULT_DEPLOYMENT:
        name = f" --deployment {deployment.name}"
    region = f" --region {deployment.region}" if deployment.region else ""
    return f"python -m jobs{name}{region}"


def deploy_command(name: str) -> str:
    """Build the command that deploys under this name."""
    return cdk_deploy(_named(name))


def _named(name: str) -> Mapping[str, str]:
    return {} if name == contract.DEFAULT_DEPLOYMENT else {"deployment": name}


def cdk_deploy(settings: Mapping[str, object]) -> str:
    """Build the command that deploys with these context keys."""
    given = (f"trainium:{key}={value}" for key, value in settings.items())
    options = "".join(f" -c {shlex.quote(setting)}" for setting in given)
    return f"cdk deploy --all{options}"
