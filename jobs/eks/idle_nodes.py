"""When idle nodes go: what the node scaler has written on them, for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from jobs.deployment import Deployment
from jobs.eks.cluster import Cluster, Json
from jobs.eks.errors import status_of
from jobs.eks.nodes import scale_command
from jobs.eks.scale_in import nodes_of_group, patch_node
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import goes_at, marked_since, stamp


def try_idle_remark(cluster: Cluster, deployment: Deployment) -> str | None:
    """``describe_idle`` of the nodes as they are; a remark is not worth the end of a command."""
    try:
        nodes = nodes_of_group(cluster, deployment)
    except Exception:
        return None
    return describe_idle(nodes, deployment, now=datetime.now(UTC))


def describe_idle(nodes: Sequence[Json], deployment: Deployment, *, now: datetime) -> str | None:
    """How many nodes are idle and when the first goes; None when there is nothing to say."""
    assert deployment.eks is not None
    minutes = deployment.eks.idle_minutes
    if minutes is None:
        return None
    times = [moment for node in nodes if (moment := goes_at(node, timedelta(minutes=minutes)))]
    if not times:
        return None
    what = "1 idle node" if len(times) == 1 else f"{len(times)} idle nodes, the first of which"
    return (
        f"{what} goes {_when(min(times), now)} unless a job takes it; at once with: "
        f"{scale_command(deployment, len(nodes) - len(times))}"
    )


def idle_documents(cluster: Cluster, deployment: Deployment) -> list[Json]:
    """Idle nodes, each with the times of its end: empty where nobody takes them away."""
    assert deployment.eks is not None
    minutes = deployment.eks.idle_minutes
    if minutes is None:
        return []
    return [
        {
            "node": node["metadata"]["name"],
            "idle_since": stamp(since),
            "goes_at": stamp(since + timedelta(minutes=minutes)),
        }
        for node in nodes_of_group(cluster, deployment)
        if (since := marked_since(node, kubernetes.IDLE_SINCE)) is not None
    ]


def _when(moment: datetime, now: datetime) -> str:
    left = moment - now
    if left <= timedelta(0):
        return "in a moment"
    return f"at {moment.astimezone(UTC):%H:%M} UTC (in {-(-left // timedelta(minutes=1))} min)"


def keep_idle(cluster: Cluster, deployment: Deployment) -> bool:
    """Let idle nodes stay for another while; false when the caller may not change nodes."""
    for node in nodes_of_group(cluster, deployment):
        marks = (kubernetes.IDLE_SINCE, kubernetes.CORDONED_SINCE)
        found = [mark for mark in marks if marked_since(node, mark) is not None]
        if not found:
            continue
        changes: Json = {"metadata": {"annotations": dict.fromkeys(found)}}
        if kubernetes.CORDONED_SINCE in found:
            changes["spec"] = {"unschedulable": None}
        try:
            patch_node(cluster, node["metadata"]["name"], changes)
        except Exception as error:
            if status_of(error) != 403:
                raise
            return False
    return True
