"""A job's own properties: the definition's, with the overrides of its submission."""

import copy
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


class InvalidOverride(ValueError):
    """A submission that Batch would refuse."""


def _range(text: str, num_nodes: int) -> range:
    """``0:3``, ``2:`` or ``:1`` as node indexes, or one number."""
    start, colon, end = text.partition(":")
    first = int(start or 0)
    if not colon:
        return range(first, first + 1)
    return range(first, int(end) + 1 if end else num_nodes)


def node_properties(definition: Mapping[str, Any], overrides: Mapping[str, Any]) -> Json:
    """Node properties of the job, one container per node index under ``nodes``.

    AWS Batch user guide, multi-node parallel jobs: the number of nodes can only change when a
    range has an open upper bound, and the ranges must cover all nodes.
    """
    properties = copy.deepcopy(dict(definition))
    ranges = properties["nodeRangeProperties"]
    num_nodes = int(overrides.get("numNodes", properties["numNodes"]))
    is_open = any(entry["targetNodes"].endswith(":") for entry in ranges)
    if num_nodes != int(properties["numNodes"]) and not is_open:
        raise InvalidOverride(
            f"numNodes={num_nodes} needs a node range with an open upper bound, such as 0:"
        )
    properties["numNodes"] = num_nodes
    containers: dict[int, Json] = {}
    for entry in ranges:
        for index in _range(entry["targetNodes"], num_nodes):
            if index < num_nodes:
                containers[index] = copy.deepcopy(entry["container"])
    if sorted(containers) != list(range(num_nodes)):
        raise InvalidOverride("the node ranges do not cover all nodes")
    for override in overrides.get("nodePropertyOverrides", ()):
        given = override.get("containerOverrides", {})
        for index in _range(override["targetNodes"], num_nodes):
            if index in containers:
                _apply(containers[index], given)
    return {**properties, "nodes": [containers[index] for index in range(num_nodes)]}


def container_properties(definition: Mapping[str, Any], overrides: Mapping[str, Any]) -> Json:
    """Container properties of the job: the definition's, with the overrides of its submission."""
    properties = copy.deepcopy(dict(definition))
    _apply(properties, overrides)
    return properties


def _apply(container: Json, given: Mapping[str, Any]) -> None:
    # Where nodes are processes, what they may have of a host says nothing.
    unknown = set(given) - {"command", "environment", "resourceRequirements"}
    if unknown:
        raise InvalidOverride(f"the rehearsal does not understand overrides of {sorted(unknown)}")
    if "command" in given:
        container["command"] = list(given["command"])
    environment = {pair["name"]: pair["value"] for pair in container.get("environment", ())}
    environment |= {pair["name"]: pair["value"] for pair in given.get("environment", ())}
    container["environment"] = [{"name": k, "value": v} for k, v in environment.items()]
