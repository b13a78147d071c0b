"""What one node is told about its job: the Batch environment as one frozen value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

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

# docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html
ENV_JOB_ID = "AWS_BATCH_JOB_ID"
ENV_ATTEMPT = "AWS_BATCH_JOB_ATTEMPT"
ENV_NODE_INDEX = "AWS_BATCH_JOB_NODE_INDEX"
ENV_NUM_NODES = "AWS_BATCH_JOB_NUM_NODES"
ENV_MAIN_INDEX = "AWS_BATCH_JOB_MAIN_NODE_INDEX"
# docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
ENV_ARRAY_INDEX = "AWS_BATCH_JOB_ARRAY_INDEX"
ENV_ARRAY_SIZE = "AWS_BATCH_JOB_ARRAY_SIZE"
ENV_MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"

_MULTI_NODE = (ENV_NODE_INDEX, ENV_NUM_NODES, ENV_MAIN_INDEX)
LOOPBACK = "127.0.0.1"


class ContractError(ValueError):
    """The node was configured in a way that cannot run; the message is for the user."""


class DeviceKind(StrEnum):
    """How the workers compute."""

    CPU = "cpu"
    XLA = "xla"
    TORCH_NEURON = "torchneuron"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContract:
    """One node of one attempt of one job."""

    job_id: str
    """Without the ``#N`` or ``:N`` that Batch appends on nodes and children of an array."""
    attempt: int
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
    device: DeviceKind
    processes_per_node: int
    instance_type: InstanceType | None
    release: NeuronRelease | None

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
    env: Mapping[str, str], find_address: Callable[[str | None], str]
) -> NodeContract:
    """Read the environment of a node.

    ``find_address`` returns the node's own address; it is given the main node's on children and
    None on the main node, and called only where the environment does not tell. Outside Batch the
    machine is a job of one node.
    """
    env = {name: value for name, value in env.items() if value}
    node_index, num_nodes, main_index = _position(env)
    is_main = node_index == main_index
    array_index, array_size = _share(env)
    device, instance_type, release = _hardware(env)
    if num_nodes > 1 and device is not DeviceKind.CPU:
        assert instance_type is not None
        if not instance_type.supports_multi_node:
            raise ContractError(
                f"{instance_type.name} has no EFA and cannot join {num_nodes} nodes; "
                "submit with one node, or deploy a type with EFA"
            )
    main_address = env.get(ENV_MAIN_ADDRESS)
    if not is_main and main_address is None:
        raise ContractError(
            f"{ENV_MAIN_ADDRESS} is not set on child node {node_index}; "
            "Batch sets it on every node but the main one"
        )
    if ENV_NODE_ADDRESS in env:
        address = env[ENV_NODE_ADDRESS]
    elif num_nodes == 1:
        address = LOOPBACK
    else:
        address = find_address(None if is_main else main_address)
    job_id = re.split("[#:]", env.get(ENV_JOB_ID, "local"))[0]
    return NodeContract(
        job_id=job_id,
        attempt=_whole(env, ENV_ATTEMPT, default=1, least=1),
        node_index=node_index,
        num_nodes=num_nodes,
        main_index=main_index,
        address=address,
        main_address=address if is_main else str(main_address),
        run=_run_name(env.get(ENV_RUN, job_id)),
        deployment=env.get(ENV_DEPLOYMENT, DEFAULT_DEPLOYMENT),
        bucket=env.get(ENV_BUCKET),
        # The job definition sets AWS_REGION, which boto3 does not read.
        region=env.get(ENV_REGION) or env.get("AWS_DEFAULT_REGION"),
        endpoint_url=env.get("AWS_ENDPOINT_URL"),
        lustre=env.get(ENV_LUSTRE),
        array_index=array_index,
        array_size=array_size,
        device=device,
        processes_per_node=_processes(env, device, instance_type),
        instance_type=instance_type,
        release=release,
    )


def _position(env: Mapping[str, str]) -> tuple[int, int, int]:
    """Node index, number of nodes, main index; a job of one node where Batch says nothing."""
    given = [name for name in _MULTI_NODE if name in env]
    if not given:
        return 0, 1, 0
    missing = [name for name in _MULTI_NODE if name not in env]
    if missing:
        raise ContractError(
            f"{', '.join(missing)} is not set although {given[0]} is; "
            "Batch sets all of them on the nodes of a multi-node job"
        )
    num_nodes = _whole(env, ENV_NUM_NODES, least=1)
    node_index = _whole(env, ENV_NODE_INDEX)
    main_index = _whole(env, ENV_MAIN_INDEX)
    for name, value in ((ENV_NODE_INDEX, node_index), (ENV_MAIN_INDEX, main_index)):
        if value >= num_nodes:
            raise ContractError(
                f"{name}={value} is outside the job's {num_nodes} nodes; indices start at 0"
            )
    return node_index, num_nodes, main_index


def _share(env: Mapping[str, str]) -> tuple[int, int]:
    """Which child of an array job this is, of how many."""
    size = _whole(env, ENV_ARRAY_SIZE, default=1, least=1)
    index = _whole(env, ENV_ARRAY_INDEX, default=0)
    if index >= size:
        raise ContractError(f"{ENV_ARRAY_INDEX}={index} is outside an array job of {size}")
    return index, size


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
        return _whole(env, ENV_PROCESSES_PER_NODE, default=1, least=1)
    default = instance_type.processes_per_node
    return _whole(env, ENV_PROCESSES_PER_NODE, default=default, least=1)


def _whole(env: Mapping[str, str], name: str, *, default: int | None = None, least: int = 0) -> int:
    """Read a whole number of at least ``least``."""
    text = env.get(name)
    if text is None:
        assert default is not None
        return default
    # Not int(): it would take "1_0", " 1" and other scripts' digits.
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise ContractError(f"{name}={text} is not a whole number of at least {least}")
    return int(text)


def _run_name(name: str) -> str:
    """Refuse what could not be a run name: it becomes part of object keys."""
    if not re.fullmatch(RUN_NAME_PATTERN, name):
        raise ContractError(
            f"{ENV_RUN}={name} is not a run name; "
            "use letters, digits, hyphens and underscores, at most 100, a letter or digit first"
        )
    return name
