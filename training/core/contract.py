"""Everything a node is told about its job, as one frozen value for launcher and workers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from training.core.orchestrators import ContractError, NodePosition, is_volcano, read_place, whole
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
    RUN_NAME_PATTERN,
)
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.releases import NeuronRelease, TorchBackend, find_release
from trainium_catalogue.suggest import did_you_mean

LOOPBACK = "127.0.0.1"
CONTRACT_FILE = "contract.json"


class DeviceKind(StrEnum):
    """The kinds of device that workers compute on."""

    CPU = "cpu"
    XLA = "xla"
    TORCH_NEURON = "torchneuron"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContract(NodePosition):
    """One node of one attempt of one job: read by the launcher, handed to every worker."""

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
    on_cluster: bool = False
    """True for a pod of a Volcano job, False for a node of a Batch job or this machine."""

    @property
    def is_main(self) -> bool:
        """True for the node whose exit status is the job's."""
        return self.node_index == self.main_index

    @property
    def node_rank(self) -> int:
        """torchrun's node rank: the main node must be 0, whatever its index in Batch."""
        return (self.node_index - self.main_index) % self.num_nodes

    @property
    def num_ranks(self) -> int:
        """Total number of workers."""
        return self.num_nodes * self.processes_per_node

    @property
    def instance(self) -> InstanceType | None:
        """The catalogue's entry for the instance type."""
        return find_instance_type(self.instance_type) if self.instance_type else None

    @property
    def release(self) -> NeuronRelease | None:
        """The catalogue's entry for the Neuron release."""
        return find_release(self.neuron_release) if self.neuron_release else None

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

    ``find_address`` returns the node's own address, given the main node's (None on the main node
    itself), and is called only if the environment does not name it. ``find_host`` returns the
    address of a host name. Outside Batch and Volcano the machine is a single-node job.
    """
    env = {name: value for name, value in env.items() if value}
    place = read_place(env, find_host)
    device, instance, release = _hardware(env)
    if place.num_nodes > 1 and device is not DeviceKind.CPU:
        assert instance is not None
        if not instance.supports_multi_node:
            raise ContractError(
                f"{instance.name} has no EFA and cannot join {place.num_nodes} nodes; "
                "submit with one node, or deploy a type with EFA"
            )
    if ENV_NODE_ADDRESS in env:
        address = env[ENV_NODE_ADDRESS]
    elif place.num_nodes == 1:
        address = LOOPBACK
    else:
        address = find_address(place.main_address)
    return NodeContract(
        **{**asdict(place), "main_address": place.main_address or address},
        address=address,
        run=_run_name(env.get(ENV_RUN, place.job_id)),
        deployment=env.get(ENV_DEPLOYMENT, DEFAULT_DEPLOYMENT),
        bucket=env.get(ENV_BUCKET),
        # The job definition sets AWS_REGION, which boto3 does not read.
        region=env.get(ENV_REGION) or env.get("AWS_DEFAULT_REGION"),
        endpoint_url=env.get("AWS_ENDPOINT_URL"),
        lustre=env.get(ENV_LUSTRE),
        device=device,
        processes_per_node=_processes(env, device, instance),
        instance_type=instance.name if instance else None,
        neuron_release=release.name if release else None,
        on_cluster=is_volcano(env),
    )


def _hardware(
    env: Mapping[str, str],
) -> tuple[DeviceKind, InstanceType | None, NeuronRelease | None]:
    """Find device, instance type and release; refuse combinations that do not fit."""
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
    """Workers per node: from the environment, else one on a CPU or one per logical core."""
    if device is DeviceKind.CPU or instance_type is None:
        return whole(env, ENV_PROCESSES_PER_NODE, default=1, least=1)
    default = instance_type.processes_per_node
    return whole(env, ENV_PROCESSES_PER_NODE, default=default, least=1)


def _run_name(name: str) -> str:
    """Refuse an invalid run name, since it becomes part of object keys."""
    if not re.fullmatch(RUN_NAME_PATTERN, name):
        raise ContractError(
            f"{ENV_RUN}={name} is not a run name; "
            "use letters, digits, hyphens and underscores, at most 100, a letter or digit first"
        )
    return name
