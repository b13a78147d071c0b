"""Why a job on the cluster waits: nodes that are missing, or taken, or a job that compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.eks.nodes import read_node_group, ready_nodes, scale_command
from jobs.reasons import Explanation
from jobs.runs import Job

if TYPE_CHECKING:
    from jobs.eks.service import EksService


def why_waiting(service: EksService, job: Job) -> Explanation:
    """Return the first thing that is wrong, or what usually is."""
    target = service.target
    ready = ready_nodes(service.cluster(), target)
    if ready < job.num_nodes:
        group = read_node_group(service.aws.eks(), target)
        said = "; ".join(group.troubles) or f"the node group wants {group.wanted}"
        return Explanation(
            pattern="",
            meaning=f"the job needs {job.num_nodes} nodes, {ready} are ready ({said})",
            remedy=f"get them with `{scale_command(target, job.num_nodes)}`",
        )
    before = [
        summary
        for summary in service.runs()
        if not summary.ended and summary.job_id != job.job_id and summary.status == "RUNNING"
    ]
    if before:
        has = " and ".join(f"run {item.run} ({item.num_nodes} nodes)" for item in before)
        return Explanation(
            pattern="",
            meaning=f"the gang starts as a whole, and {has} runs",
            remedy=(
                "wait, or get more nodes with "
                f"`{scale_command(target, job.num_nodes + sum(i.num_nodes or 0 for i in before))}`"
            ),
        )
    words = service.unschedulable(job.job_id)
    if words is not None:
        return Explanation(
            pattern="",
            meaning=f"nodes are ready, and Volcano places the gang on none: {words}",
            remedy=f"compare with: kubectl describe nodes; kubectl describe queue {job.job_queue}",
        )
    return Explanation(
        pattern="",
        meaning="nodes are ready and nobody has them; pulling an image takes some minutes",
        remedy=f"if it lasts: kubectl describe vcjob {job.job_id}",
    )


def waits_for(service: EksService, job: Job) -> Explanation | None:
    """Which job compiles for this one, and how it stands."""
    for job_id in job.depends_on:
        other = service.describe(job_id)
        if other is not None and not other.succeeded:
            return Explanation(
                pattern="",
                meaning=f"it begins when run {other.run} ({other.status}) has succeeded",
                remedy=f"follow that with `python -m jobs logs {other.run} --follow`",
            )
    return None
