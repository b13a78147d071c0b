"""A node's description of its job, as one frozen value for launcher and workers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from training.core.orchestrators import (
    ContractError,
    NodePosition,
    is_volcano,
    read_position,
    whole,
)
from trainium_catalogue.contract import (
    DEFAULT_DEPLOYMENT,
    ENV_BUCKET,
    ENV_DEPLOYMENT,
    ENV_DEVICE,
    ENV_INSTANCE_TYPE,
    ENV_LUSTRE,
    ENV_NEURON_RELEASE,
    ENV_NODE_ADDRESS,
    ENV_PROCESSES_PER_NODE,
    ENV_REGION,
    ENV_RUN,
    ENV_STOP_AT,
    PRETEND_NEURON,
    RUN_NAME_PATTERN,
)
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.parameters.layout import check_backend
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.training import TENSOR_PARALLEL
from trainium_catalogue.releases import NeuronRelease, TorchBackend, find_release
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.torus import check_mesh

LOOPBACK = "127.0.0.1"
CONTRACT_FILE = "contract.json"


class DeviceKind(StrEnum):
    """The kinds of device that workers compute on."""

    CPU = "cpu"
    XLA = "xla"
    TORCH_NEURON = "torchneuron"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContract(NodePosition):
    """One node of one attempt of a job; the launcher reads it and passes it to every worker."""

    address: str = LOOPBACK
    """The node's own IPv4 address, on which it listens."""
    main_address: str = LOOPBACK
    run: str
    deployment: str
    bucket: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    """Set only with AWS emulators."""
    lustre: str | None = None
    """Mount point of FSx for Lustre."""
    device: DeviceKind
    processes_per_node: int
    instance_type: str | None = None
    neuron_release: str | None = None
    is_emulated: bool = False
    """True if a rehearsal emulates the device, so no hardware is needed."""
    on_cluster: bool = False
    """True for a pod of a Volcano job; False for a node of a Batch job or a local run."""
    stop_at_s: float | None = None
    """Unix time at which the job must stop because its Capacity Block ends."""

    @property
    def is_main(self) -> bool:
        """True for the node whose exit code becomes the job's."""
        return self.node_index == self.main_index

    @property
    def node_rank(self) -> int:
        """torchrun's node rank: 0 for the main node, whatever its index in Batch."""
        return (self.node_index - self.main_index) % self.num_nodes

    @property
    def num_ranks(self) -> int:
        """Total number of workers."""
        return self.num_nodes * self.processes_per_node

    @property
    def has_hardware(self) -> bool:
        """True on a Trainium host."""
        return self.device is not DeviceKind.CPU and not self.is_emulated

    @property
    def instance(self) -> InstanceType | None:
        """The catalogue's entry for the instance type."""
        return find_instance_type(self.instance_type) if self.instance_type else None

    @property
    def release(self) -> NeuronRelease | None:
        """The catalogue's entry for the Neuron release."""
        return find_release(self.neuron_release) if self.neuron_release else None

    def check_backend(self, values: Mapping[str, Value]) -> None:
        """Raise ``ValueError`` if ``values`` do not fit the backend or the NeuronLink topology."""
        if self.device is not DeviceKind.CPU:
            check_backend(values, TorchBackend(self.device))
        if self.device is DeviceKind.TORCH_NEURON and self.instance and self.has_hardware:
            check_mesh(self.instance, int(values.get(TENSOR_PARALLEL) or 1))

    def write(self, scratch: Path) -> None:
        """Write the contract for the workers."""
        (scratch / CONTRACT_FILE).write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(scratch: Path) -> NodeContract:
        """Read the contract written by the launcher."""
        document = json.loads((scratch / CONTRACT_FILE).read_text())
        return NodeContract(**{**document, "device": DeviceKind(document["device"])})


def read_contract(
    env: Mapping[str, str],
    find_address: Callable[[str | None], str],
    find_host: Callable[[str], str] = str,
) -> NodeContract:
    """Read a node's contract from its environment.

    ``find_address`` finds this node's own address, given the main node's (None on the main node
    itself); it is called only in a job of several nodes whose environment does not set the address.
    ``find_host`` resolves a host name. Outside Batch and Volcano, this machine is the only node of
    its job.
    """
    env = {name: value for name, value in env.items() if value}
    position = read_position(env, find_host)
    device, instance, release = _hardware(env)
    is_emulated = env.get(ENV_DEVICE) == PRETEND_NEURON
    if position.num_nodes > 1 and device is not DeviceKind.CPU and not is_emulated:
        assert instance is not None
        if not instance.supports_multi_node:
            raise ContractError(
                f"{instance.name} has no EFA and cannot join {position.num_nodes} nodes; "
                "submit with one node, or deploy a type with EFA"
            )
    if ENV_NODE_ADDRESS in env:
        address = env[ENV_NODE_ADDRESS]
    elif position.num_nodes == 1:
        address = LOOPBACK
    else:
        address = find_address(position.main_address)
    return NodeContract(
        **{**asdict(position), "main_address": position.main_address or address},
        address=address,
        run=_run_name(env.get(ENV_RUN, position.job_id)),
        deployment=env.get(ENV_DEPLOYMENT, DEFAULT_DEPLOYMENT),
        bucket=env.get(ENV_BUCKET),
        # The job definition sets AWS_REGION, which boto3 does not read.
        region=env.get(ENV_REGION) or env.get("AWS_DEFAULT_REGION"),
        endpoint_url=env.get("AWS_ENDPOINT_URL"),
        lustre=env.get(ENV_LUSTRE),
        device=device,
        is_emulated=is_emulated,
        processes_per_node=_processes(env, device, instance),
        instance_type=instance.name if instance else None,
        neuron_release=release.name if release else None,
        on_cluster=is_volcano(env),
        stop_at_s=_stop_at_s(env.get(ENV_STOP_AT)),
    )


def _hardware(
    env: Mapping[str, str],
) -> tuple[DeviceKind, InstanceType | None, NeuronRelease | None]:
    """Determine device, instance type and release; refuse incompatible combinations."""
    try:
        instance_type = (
            find_instance_type(env[ENV_INSTANCE_TYPE]) if ENV_INSTANCE_TYPE in env else None
        )
        release = find_release(env[ENV_NEURON_RELEASE]) if ENV_NEURON_RELEASE in env else None
    except ValueError as error:
        raise ContractError(str(error)) from None
    requested = env.get(ENV_DEVICE)
    if requested == DeviceKind.CPU:
        return DeviceKind.CPU, instance_type, release
    if requested not in (None, PRETEND_NEURON):
        reason = did_you_mean(requested, [DeviceKind.CPU.value])
        raise ContractError(
            f"{ENV_DEVICE}={requested} is not a valid device ({reason}); correct it, or unset the "
            "variable to use the device of the Neuron release"
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
    if requested == PRETEND_NEURON and kind is not DeviceKind.TORCH_NEURON:
        raise ContractError(
            f"{ENV_DEVICE}={requested} emulates TorchNeuron, but Neuron release {release.name} has "
            f"torch_xla instead; set {ENV_DEVICE}=cpu"
        )
    return kind, instance_type, release


def _processes(
    env: Mapping[str, str], device: DeviceKind, instance_type: InstanceType | None
) -> int:
    """Return the workers per node: as set, else one on a CPU or one per logical NeuronCore."""
    if device is DeviceKind.CPU or instance_type is None:
        return whole(env, ENV_PROCESSES_PER_NODE, default=1, least=1)
    default = instance_type.processes_per_node
    return whole(env, ENV_PROCESSES_PER_NODE, default=default, least=1)


def _stop_at_s(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        raise ContractError(
            f"{ENV_STOP_AT}={text} is not a time such as 2027-01-31T10:50:00Z"
        ) from None


def _run_name(name: str) -> str:
    """Refuse an invalid run name, since it becomes part of object keys."""
    if not re.fullmatch(RUN_NAME_PATTERN, name):
        raise ContractError(
            f"{ENV_RUN}={name} is not a valid run name; use at most 100 letters, digits, hyphens "
            "and underscores, starting with a letter or digit"
        )
    return name
