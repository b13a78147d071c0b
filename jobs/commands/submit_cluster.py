"""What `submit` does on a cluster beside submitting: look for nodes, and give them up again."""

from __future__ import annotations

from dataclasses import replace

from jobs.commands.submit_send import Sender
from jobs.eks.service import EksService
from jobs.errors import Refusal
from jobs.options import note
from jobs.orchestrators import JobService, Orchestrator
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


def check_nodes(service: JobService, num_nodes: int) -> None:
    """Refuse a job that the ready nodes cannot hold."""
    from jobs.eks.cluster import refusing
    from jobs.eks.nodes import check_ready

    assert isinstance(service, EksService)
    with refusing():
        check_ready(service.cluster(), service.target, num_nodes)


def releasing(sender: Sender, service: JobService) -> Sender:
    """Have the nodes given up when the job has ended, unless another run still needs them."""
    from jobs.eks.nodes import request_nodes, scale_command

    assert isinstance(service, EksService)

    def release() -> None:
        going_on = [summary.run for summary in service.runs() if not summary.ended]
        if going_on:
            note(
                f"the nodes stay: {', '.join(going_on)} needs them; then: "
                f"{scale_command(service.target, 0)}"
            )
            return
        request_nodes(service.aws.eks(), service.target, 0)
        note("the node group scales to 0 nodes")

    command = scale_command(service.target, 0)
    return replace(sender, release=release, release_command=command)
