"""Refusals of AWS Batch: the nodes of multi-node parallel job definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainium_emulators.aws.refusals.batch_environments import API
from trainium_emulators.aws.refusals.batch_jobs import containers
from trainium_emulators.aws.refusals.refusal import DEFINITION, AwsRefusal, Fill, when
from trainium_emulators.aws.refusals.request import AwsRequest, get, text, texts

MAX_RANGES = 5
MAX_NODES = 1000
_RANGE = re.compile(r"\d*(:\d*)?")


def nodes_of(target: str, num_nodes: int) -> range:
    """Parse node indexes from ``1``, ``0:3``, ``2:`` or ``:1``."""
    first, colon, last = target.partition(":")
    start = int(first or 0)
    if not colon:
        return range(start, start + 1)
    return range(start, int(last) + 1 if last else max(num_nodes, start + 1))


def _targets(request: AwsRequest) -> list[str]:
    return [
        text(get(entry, "TargetNodes"))
        for entry in request.each("NodeProperties.NodeRangeProperties")
    ]


def _well_formed_targets(request: AwsRequest) -> list[str]:
    """Return all targets if every one can be parsed, else none."""
    targets = _targets(request)
    return targets if all(t and _RANGE.fullmatch(t) for t in targets) else []


def _num_nodes(request: AwsRequest) -> int:
    wanted = request.number("NodeProperties.NumNodes")
    return int(wanted) if wanted == wanted else 0


def _outside(request: AwsRequest) -> Iterable[Fill]:
    num_nodes = _num_nodes(request)
    for target in _well_formed_targets(request):
        if num_nodes and nodes_of(target, num_nodes)[-1] >= num_nodes:
            yield (target, num_nodes)


def _uncovered(request: AwsRequest) -> Iterable[Fill]:
    num_nodes = _num_nodes(request)
    targets = _well_formed_targets(request)
    covered = {index for target in targets for index in nodes_of(target, num_nodes)}
    return when(bool(targets) and not set(range(num_nodes)) <= covered)


def _without_container(request: AwsRequest) -> Iterable[Fill]:
    for entry in request.each("NodeProperties.NodeRangeProperties"):
        if isinstance(entry, dict) and not {"Container", "EcsProperties", "EksProperties"} & {
            *entry
        }:
            yield (text(get(entry, "TargetNodes")),)


def _types_differ(request: AwsRequest) -> Iterable[Fill]:
    types = {text(get(container, "InstanceType")) for container in containers(request)} - {""}
    return when(len(types) > 1)


ROWS = (
    AwsRefusal(
        id="batch-nodes-missing",
        on=DEFINITION,
        condition="A multi-node job without node properties.",
        words="Node properties of multinode job is required.",
        source=API + "API_RegisterJobDefinition.html",
        judge="pf-batch-jd-multinode-requires-node-properties",
        check=lambda r: when(r.text("Type") == "multinode" and not r.has("NodeProperties")),
    ),
    AwsRefusal(
        id="batch-nodes-on-fargate",
        on=DEFINITION,
        condition="A multi-node job on Fargate.",
        words="Fargate does not support MNP jobs",
        source=API + "API_RegisterJobDefinition.html",
        judge="pf-batch-fargate-multinode",
        check=lambda r: when(
            r.text("Type") == "multinode" and "FARGATE" in texts(r.get("PlatformCapabilities"))
        ),
    ),
    AwsRefusal(
        id="batch-nodes-number",
        on=DEFINITION,
        condition="No node, or more than a thousand.",
        words="Number of nodes must be between 1 and 1000.",
        source=API + "API_NodeProperties.html",
        judge="pf-batch-jd-node-num-nodes-max",
        check=lambda r: when(not 1 <= r.number("NodeProperties.NumNodes", 1) <= MAX_NODES),
    ),
    AwsRefusal(
        id="batch-nodes-main",
        on=DEFINITION,
        condition="A main node beyond the last one.",
        words="Main node index is out of range, must be less than numNodes.",
        source=API + "API_NodeProperties.html",
        judge="pf-batch-jd-node-main-node-lt-num",
        check=lambda r: when(
            r.number("NodeProperties.MainNode") >= r.number("NodeProperties.NumNodes")
        ),
    ),
    AwsRefusal(
        id="batch-node-ranges",
        on=DEFINITION,
        condition="More than five ranges of nodes.",
        words="Maximum allowed size of node range properties is 5",
        source="https://github.com/meta-pytorch/torchx/issues/700",
        judge="pf-batch-jd-node-ranges-max",
        check=lambda r: when(len(r.each("NodeProperties.NodeRangeProperties")) > MAX_RANGES),
    ),
    AwsRefusal(
        id="batch-node-range-form",
        on=DEFINITION,
        condition="A range of nodes that is none.",
        words="targetNodes should contain only digits.",
        source=API + "API_NodeRangeProperty.html",
        judge="pf-batch-jd-node-target-nodes-format",
        check=lambda r: when(any(t and not _RANGE.fullmatch(t) for t in _targets(r))),
    ),
    AwsRefusal(
        id="batch-node-range-outside",
        on=DEFINITION,
        condition="A range that reaches beyond the last node.",
        words="targetNodes {} is out of range for {} nodes",
        verbatim=False,
        source=API + "API_NodeRangeProperty.html",
        judge="pf-batch-jd-node-target-nodes-in-range",
        check=_outside,
    ),
    AwsRefusal(
        id="batch-node-range-gap",
        on=DEFINITION,
        condition="A node that is in no range.",
        words="Node ranges must account for all nodes",
        verbatim=False,
        source=API + "API_NodeRangeProperty.html",
        judge="pf-batch-jd-node-target-nodes-coverage",
        check=_uncovered,
    ),
    AwsRefusal(
        id="batch-node-range-empty",
        on=DEFINITION,
        condition="A range of nodes without a container.",
        words="Must specify container for node range {}",
        source=API + "API_NodeRangeProperty.html",
        judge="pf-batch-jd-node-range-payload-required",
        check=_without_container,
    ),
    AwsRefusal(
        id="batch-node-instance-types",
        on=DEFINITION,
        condition="A list of instance types for nodes with a plain container.",
        words="Using instanceTypes with nodeRangeProperty is only allowed for ecsProperties jobs.",
        source=API + "API_NodeRangeProperty.html",
        judge="pf-batch-jd-node-instance-types-ecs-only",
        check=lambda r: when(
            any(
                get(entry, "InstanceTypes") is not None and get(entry, "EcsProperties") is None
                for entry in r.each("NodeProperties.NodeRangeProperties")
            )
        ),
    ),
    AwsRefusal(
        id="batch-node-types-differ",
        on=DEFINITION,
        condition="Nodes of different instance types.",
        words="All node groups in a multi-node parallel job must use the same instance type",
        verbatim=False,
        source=API + "API_ContainerProperties.html",
        check=_types_differ,
    ),
)
