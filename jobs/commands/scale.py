"""`jobs scale`: how many nodes the cluster has."""

import time
from typing import Annotated

import typer

from jobs.commands.cluster import eks_service
from jobs.commands.confirm import confirm
from jobs.errors import EXIT_OK
from jobs.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    note,
    print_document,
)
from jobs.request import ESTIMATE_NOTE


@command
def scale(
    context: typer.Context,
    nodes: Annotated[int, typer.Option("--nodes", min=0, help="Number of nodes.")],
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for them, at most."),
    ] = 1800,
    force: Annotated[
        bool, typer.Option("--force", help="Also take nodes away from runs that need them.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before nodes are added.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Give the cluster so many Trainium nodes, and wait until they are ready.

    Nodes cost money from the moment they start, whether a job runs or not, until `--nodes 0`:
    it asks before it adds any. Where there is no terminal to ask on, that needs --yes.

    \b
    Examples:
      python -m jobs scale --nodes 2
      python -m jobs scale --nodes 0
    """
    from jobs.eks.cluster import refusing
    from jobs.eks.nodes import (
        Progress,
        check_scale,
        check_unused,
        look_at_nodes,
        read_node_group,
        request_nodes,
        wait_for_nodes,
    )

    service = eks_service(chosen(context, deployment, region), "scale")
    target, eks = service.target, service.aws.eks()
    check_scale(target, nodes)
    before = read_node_group(eks, target)
    if nodes < before.wanted and not force:
        check_unused(service.runs(), nodes)
    if before.wanted != nodes:
        price = nodes * target.instance_type.usd_per_hour_estimate
        note(
            f"{before.wanted} -> {nodes} nodes of {target.instance_type.name}"
            + (f", about ${price:,.2f} an hour ({ESTIMATE_NOTE})" if nodes else "")
        )
        if nodes > before.wanted and not yes:
            confirm("adding nodes", question="add them?", declined="nothing was changed")
        request_nodes(eks, target, nodes)

    def read() -> Progress:
        found = look_at_nodes(service.cluster(), target)
        group = read_node_group(eks, target)
        return Progress(ready=found.usable, group=group, remarks=found.remarks)

    with refusing():
        for progress in wait_for_nodes(
            read, nodes, limit_s=wait, now=time.monotonic, sleep=time.sleep
        ):
            note(progress.text(nodes))
    if as_json:
        print_document(
            {
                "deployment": target.name,
                "region": target.region,
                "nodes_before": before.wanted,
                "nodes": nodes,
                "ready": nodes,
            }
        )
    return EXIT_OK
