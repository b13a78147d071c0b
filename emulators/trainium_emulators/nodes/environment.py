"""The environment of a node: Batch's variables, and extras that only the rehearsal adds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainium_catalogue import contract


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


def single_environment(place: NodePlace) -> dict[str, str]:
    """Variables that Batch sets in all containers (AWS Batch user guide, environment variables)."""
    return {
        "AWS_BATCH_JOB_ID": place.job_id,
        "AWS_BATCH_JOB_ATTEMPT": str(place.attempt),
        "AWS_BATCH_JQ_NAME": place.queue,
        "AWS_BATCH_CE_NAME": place.compute_environment,
    }


def node_address(prefix: str, index: int) -> str:
    """Return a node's loopback address; the first host number is left to the machine itself."""
    return f"{prefix}.{2 + index}"


def batch_environment(place: NodePlace, *, main_address: str) -> dict[str, str]:
    """Variables that Batch sets on this node (AWS Batch user guide, environment variables)."""
    environment = {
        **single_environment(place),
        "AWS_BATCH_JOB_ID": f"{place.job_id}#{place.index}",
        "AWS_BATCH_JOB_NODE_INDEX": str(place.index),
        "AWS_BATCH_JOB_NUM_NODES": str(place.num_nodes),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(place.main_index),
    }
    if place.index != place.main_index:
        environment["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = main_address
    return environment


def rehearsal_extras(*, endpoint: str, processes_per_node: int, address: str) -> dict[str, str]:
    """Return the variables that a real node does not have; the receipt prints them."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "rehearsal",
        "AWS_SECRET_ACCESS_KEY": "rehearsal",
        contract.ENV_DEVICE: "cpu",
        contract.ENV_PROCESSES_PER_NODE: str(processes_per_node),
        contract.ENV_NODE_ADDRESS: address,
    }


def from_pairs(pairs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Convert Batch's list of names and values to a mapping."""
    return {pair["name"]: pair["value"] for pair in pairs}
