"""What one node is told about its job, by Batch or by a Volcano job, as one frozen value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from training.core import contract_batch, contract_volcano
from training.core.contract_values import ContractError, Place, whole
from trainium_catalogue.contract import (
    DEFAULT_DEPLOYMENT,
    ENV_BUCKET,
    ENV_DEPLOYMENT,
    ENV_DEVICE,
    ENV_INSTANCE_TYPE,
    ENV_JOB_ID,
    ENV_LUSTRE,
    ENV_NEURON_RELEASE,
    ENV_NODE_ADDRESS,
    ENV_PROCESSES_PER_NODE,
    ENV_REGION,
    ENV_RUN,
    RUN_NAME_PATTERN,
)
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.releases import NeuronRelease, TorchBackend, find_release
from trainium_catalogue.suggest import did_you_mean

LOOPBACK = "127.0.0.1"


class DeviceKind(StrEnum):
    """How the workers compute."""

    CPU = "cpu"
    XLA = "xla"
    TORCH_NEURON = "torchneuron"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContract:
    """One node of one attempt of one job."""

    job_id: str
    attempt: int
    """Counted from 1."""
    node_index: int
    num_nodes: int
    main_index: int
    address: str
    """The node's own IPv4 address, on which it listens."""
    main_address: str
    run: str
    deployment: str
    bucket: str | None
    region: str | None
    endpoint_url: str | None
    """Of an emulator of AWS."""
    lustre: str | None
    array_index: int
    array_size: int
    time_limit_s: int | None
    """After which the launcher ends the attempt; None where the orchestrator does."""
    device: DeviceKind
    processes_per_node: int
    instance_type: InstanceType | None
    release: NeuronRelease | None
    on_cluster: bool = False
    """A pod of a Volcano job; otherwise a node of a Batch job, or this machine."""

    @property
    def is_main(self) -> bool:
        """The node whose exit status is the job's."""
        return self.node_index == self.main_index

    @property
    def node_rank(self) -> int:
        """torchrun's rank of the node: the main node must be 0, wherever Batch counts it."""
        return (self.node_index - self.main_index) % self.num_nodes

    @property
    def num_ranks(self) -> int:
        """Workers in all."""
        return self.num_nodes * self.processes_per_node


def read_contract(
    env: Mapping[str, str],
    find_address: Callable[[str | None], str],
    find_host: Callable[[str], str] = str,
) -> NodeContract:
    """Read the environment of a node.

    ``find_address`` returns the node's own address; it is given the main node's on children and
    None on the main node, and called only where the environment does not tell. ``find_host``
    returns the address of a host name. Outside Batch and Volcano the machine is a job of one node.
    """
    env = {name: value for name, value in env.items() if value}
    place = _place(env, find_host)
    is_main = place.node_index == place.main_index
    device, instance_type, release = _hardware(env)
    if place.num_nodes > 1 and device is not DeviceKind.CPU:
        assert instance_type is not None
        if not instance_type.supports_multi_node:
            raise ContractError(
                f"{instance_type.name} has no EFA and cannot join {place.num_nodes} nodes; "
                "submit with one node, or deploy a type with EFA"
            )
    if ENV_NODE_ADDRESS in env:
        address = env[ENV_NODE_ADDRESS]
    elif place.num_nodes == 1:
        address = LOOPBACK
    else:
        address = find_address(place.main_address)
    return NodeContract(
        job_id=place.job_id,
        attempt=place.attempt,
        node_index=place.node_index,
        num_nodes=place.num_nodes,
        main_index=place.main_index,
        address=address,
        main_address=address if is_main else str(place.main_address),
        run=_run_name(env.get(ENV_RUN, place.job_id)),
        deployment=env.get(ENV_DEPLOYMENT, DEFAULT_DEPLOYMENT),
        bucket=env.get(ENV_BUCKET),
        # The job definition sets AWS_REGION, which boto3 does not read.
        region=env.get(ENV_REGION) or env.get("AWS_DEFAULT_REGION"),
        endpoint_url=env.get("AWS_ENDPOINT_URL"),
        lustre=env.get(ENV_LUSTRE),
        array_index=place.array_index,
        array_size=place.array_size,
        time_limit_s=place.time_limit_s,
        device=device,
        processes_per_node=_processes(env, device, instance_type),
        instance_type=instance_type,
        release=release,
        on_cluster=contract_volcano.is_volcano(env),
    )


def _place(env: Mapping[str, str], find_host: Callable[[str], str]) -> Place:
    """Where the node stands, as its orchestrator says."""
    if not contract_volcano.is_volcano(env):
        return contract_batch.read_place(env)
    if contract_batch.ENV_JOB_ID in env:
        raise ContractError(
            f"{contract_batch.ENV_JOB_ID} and {ENV_JOB_ID} are both set, "
            "and a node belongs to one job; unset those of the other orchestrator"
        )
    return contract_volcano.read_place(env, find_host)


def _hardware(
    env: Mapping[str, str],
) -> tuple[DeviceKind, InstanceType | None, NeuronRelease | None]:
    """Device, instance type and release, and whether they fit each other."""
    try:
        instance_type = (
            find_instance_type(env[ENV_INSTANCE_TYPE]) if ENV_INSTANCE_TYPE in env else None
        )
        release = find_release(env[ENV_NEURON_RELEASE]) if ENV_NEURON_RELEASE in env else None
    except ValueError as error:
        raise ContractError(str(error)) from None
    wanted = env.get(ENV_DEVICE)
    if wanted == DeviceKind.CPU:
        return DeviceKind.CPU, instance_type, release
    if wanted is not None:
        reason = did_you_mean(wanted, [DeviceKind.CPU.value])
        raise ContractError(
            f"{ENV_DEVICE}={wanted} is not a device that can be asked for; {reason} "
            "Without the variable the Neuron release decides"
        )
    if instance_type is None or release is None:
        raise ContractError(
            f"{ENV_INSTANCE_TYPE} and {ENV_NEURON_RELEASE} are not both set, so there is no "
            f"Neuron device to run on; set {ENV_DEVICE}=cpu to run on this machine's CPU"
        )
    if instance_type.family not in release.families:
        raise ContractError(
            f"Neuron release {release.name} does not run on {instance_type.name}; "
            f"it runs on {', '.join(sorted(release.families))}"
        )
    if release.backend is None:
        raise ContractError(
            f"Neuron release {release.name} ships no PyTorch for training; "
            "deploy a release that does"
        )
    kind = {
        TorchBackend.XLA: DeviceKind.XLA,
        TorchBackend.TORCH_NEURON: DeviceKind.TORCH_NEURON,
    }[release.backend]
    return kind, instance_type, release


def _processes(
    env: Mapping[str, str], device: DeviceKind, instance_type: InstanceType | None
) -> int:
    """Workers per node: the environment's, one on a CPU, else one for each logical core."""
    if device is DeviceKind.CPU or instance_type is None:
        return whole(env, ENV_PROCESSES_PER_NODE, default=1, least=1)
    default = instance_type.processes_per_node
    return whole(env, ENV_PROCESSES_PER_NODE, default=default, least=1)


def _run_name(name: str) -> str:
    """Refuse what could not be a run name: it becomes part of object keys."""
    if not re.fullmatch(RUN_NAME_PATTERN, name):
        raise ContractError(
            f"{ENV_RUN}={name} is not a run name; "
            "use letters, digits, hyphens and underscores, at most 100, a letter or digit first"
        )
    return name
