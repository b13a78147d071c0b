"""A node's environment: Batch's variables, and extras that only the rehearsal adds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainium_catalogue import contract
from trainium_catalogue.releases import NEURON_RELEASES, TorchBackend
from trainium_emulators import neuron_device


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """A node's place in its job."""

    job_id: str
    attempt: int
    index: int
    num_nodes: int
    main_index: int
    queue: str
    compute_environment: str


def container_environment(place: NodePlace) -> dict[str, str]:
    """Return Batch's variables for any container (AWS Batch user guide, environment variables)."""
    return {
        "AWS_BATCH_JOB_ID": place.job_id,
        "AWS_BATCH_JOB_ATTEMPT": str(place.attempt),
        "AWS_BATCH_JQ_NAME": place.queue,
        "AWS_BATCH_CE_NAME": place.compute_environment,
    }


def node_address(prefix: str, index: int) -> str:
    """Return a node's loopback address; the first host number is reserved for the machine."""
    return f"{prefix}.{2 + index}"


def batch_environment(place: NodePlace, *, main_address: str) -> dict[str, str]:
    """Return Batch's variables for this node (AWS Batch user guide, environment variables)."""
    environment = {
        **container_environment(place),
        "AWS_BATCH_JOB_ID": f"{place.job_id}#{place.index}",
        "AWS_BATCH_JOB_NODE_INDEX": str(place.index),
        "AWS_BATCH_JOB_NUM_NODES": str(place.num_nodes),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(place.main_index),
    }
    if place.index != place.main_index:
        environment["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = main_address
    return environment


def rehearsal_extras(
    *, endpoint: str, processes_per_node: int, address: str, device: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that real nodes do not have; the receipt lists them."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "rehearsal",
        "AWS_SECRET_ACCESS_KEY": "rehearsal",
        **device,
        contract.ENV_PROCESSES_PER_NODE: str(processes_per_node),
        contract.ENV_NODE_ADDRESS: address,
    }


def device_variables(given: Mapping[str, str], *, in_container: bool) -> dict[str, str]:
    """Return variables that make a node compute on the CPU or an emulated device.

    Only TorchNeuron's device has an emulator, which no image contains.
    """
    name = given.get(contract.ENV_NEURON_RELEASE)
    release = NEURON_RELEASES.get(name) if name else None
    on_cpu = given.get(contract.ENV_DEVICE) == "cpu" or in_container
    if on_cpu or release is None or release.backend is not TorchBackend.TORCH_NEURON:
        return {contract.ENV_DEVICE: "cpu"}
    return {contract.ENV_DEVICE: contract.PRETEND_NEURON, neuron_device.VARIABLE: "1"}


def from_pairs(pairs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Convert Batch's list of names and values to a mapping."""
    return {pair["name"]: pair["value"] for pair in pairs}
