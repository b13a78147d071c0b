"""What `submit` does on a cluster beside submitting: look for nodes, and give them up again."""

from __future__ import annotations

import time
from dataclasses import replace

from jobs.deployment import Deployment
from jobs.eks.service import EksService
from jobs.errors import Refusal
from jobs.orchestrators import JobService
from jobs.output.console import note
from jobs.submit.send import Sender
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.eks import DEFAULT_IDLE_MINUTES
from trainium_catalogue.workloads import Hardware, Workload


def check_release(workload: Workload, orchestrator: Orchestrator, *, follows: bool) -> None:
    """Refuse ``--release`` where there is nothing to give up, or nobody to do it."""
    if workload.hardware is Hardware.CPU or orchestrator is Orchestrator.BATCH:
        raise Refusal(
            "nothing-to-release",
            "--release: Batch ends idle instances itself; leave --release out",
        )
    if not follows:
        raise Refusal(
            "release-needs-follow",
            "--release: it is this command that gives the nodes up when the job has ended, so it "
            "has to stay; add --follow",
        )


def check_scales(workload: Workload, orchestrator: Orchestrator, target: Deployment) -> None:
    """Refuse ``--scale`` where nobody gets nodes, or somebody does so anyway."""
    if workload.hardware is Hardware.CPU or orchestrator is Orchestrator.BATCH:
        raise Refusal(
            "nothing-to-scale",
            "--scale: Batch starts the instances that a job needs itself; leave --scale out",
        )
    assert target.eks is not None
    if target.eks.idle_minutes is None:
        again = target.redeploy_command(eks_idle_minutes=DEFAULT_IDLE_MINUTES)
        raise Refusal(
            "no-node-scaler",
            f"--scale: nobody gets nodes in deployment {target.name!r}, which has "
            "eks_idle_minutes=0; get them with `python -m jobs scale`, or deploy again with "
            f"`{again}` and the other -c settings it was deployed with",
        )


def check_nodes(service: JobService, num_nodes: int) -> None:
    """Refuse a job that the ready nodes cannot hold."""
    from jobs.eks.cluster import refusing
    from jobs.eks.nodes import check_ready

    assert isinstance(service, EksService)
    with refusing():
        check_ready(service.cluster(), service.target, num_nodes)


def releasing(sender: Sender, service: JobService) -> Sender:
    """Have idle nodes given up when the job has ended, unless another run still needs them."""
    from jobs.eks import scale_in
    from jobs.eks.cluster import refusing
    from jobs.eks.nodes import read_node_group, scale_command

    assert isinstance(service, EksService)
    command = scale_command(service.target, 0)

    def release() -> None:
        going_on = [summary.run for summary in service.runs() if not summary.ended]
        if going_on:
            note(
                f"the nodes stay: {', '.join(going_on)} needs them; then: "
                f"{scale_command(service.target, 0)}"
            )
            return
        cluster, target, aws = service.cluster(), service.target, service.aws
        with refusing():
            use = scale_in.read_use(cluster, target)
            group = read_node_group(aws, target)
            parts = scale_in.idle_ones(group, use)
            scale_in.cut(aws, cluster, target, group, parts, use=use, force=False, sleep=time.sleep)
        left = group.wanted - parts.never_came - len(parts.instances)
        users = ", ".join(dict.fromkeys(run for runs in use.runs.values() for run in runs))
        note(
            f"the node group scales to {left} nodes"
            + (f": {users} still uses {left}; then: {command}" if left else "")
        )

    return replace(sender, release=release, release_command=command)
