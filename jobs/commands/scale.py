"""`jobs scale`: set or show the number of nodes in the cluster."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    eks_service,
    global_options,
)
from jobs.errors import EXIT_OK
from jobs.job import ESTIMATE_NOTE
from jobs.output.console import confirm, echo, note, print_document
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from jobs.eks.service import EksService


@command
def scale(
    context: typer.Context,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=0, help="Number of nodes.", show_default="show the current nodes"
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="Maximum time to wait for the nodes."
        ),
    ] = 1800,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Add nodes without confirmation.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Scale the cluster to N Trainium nodes and wait until they are ready.

    Nodes cost money from the moment they start, whether or not a job runs, so adding nodes requires
    confirmation, or --yes without a terminal. Only idle nodes are removed. Nodes that no job
    uses or waits for are removed after the deployment's `eks_idle_minutes`, counted from this
    command. With several zones, nodes are added in the first.

    \b
    Examples:
      python -m jobs scale
      python -m jobs scale --nodes 2
      python -m jobs scale --nodes 0
    """
    from jobs.eks.cluster import refusing
    from jobs.eks.node_users import check_fewer
    from jobs.eks.nodes import (
        check_scale,
        read_node_group,
        read_progress,
        request_nodes,
        wait_for_nodes,
    )

    service = eks_service(global_options(context, deployment, region), "scale")
    target = service.target
    if nodes is None:
        with refusing():
            return _show(service, as_json=as_json)
    check_scale(target, nodes)
    before = read_node_group(service.aws, target)
    usd_per_hour = nodes * target.instance_type.usd_per_hour_estimate
    change = f"{before.desired} -> {counted(nodes, 'node')} of {target.instance_type.name}" + (
        f", about ${usd_per_hour:,.2f} an hour ({ESTIMATE_NOTE})" if nodes else ""
    )
    fewer = nodes < before.desired
    with refusing():
        if fewer:
            check_fewer(service.cluster(), target, nodes)
        if nodes != before.desired:
            note(change)
        if nodes > before.desired and not yes:
            confirm("adding nodes", question="add them?", declined="nothing was changed")
        request = request_nodes(service.cluster(), nodes)
        for progress in wait_for_nodes(
            lambda: read_progress(service.aws, service.cluster(), target, request, fewer=fewer),
            nodes,
            limit_s=wait,
            now=time.monotonic,
            sleep=time.sleep,
        ):
            note(progress.text(nodes))
    if as_json:
        print_document(_document(service, before=before.desired, nodes=nodes, ready=nodes))
    return EXIT_OK


def _show(service: "EksService", *, as_json: bool) -> int:
    """Show the nodes, the runs on them, and when idle ones are removed."""
    from jobs.eks.node_users import describe_idle, read_use
    from jobs.eks.nodes import count_nodes, read_node_group, read_node_groups

    cluster, target = service.cluster(), service.target
    group = read_node_group(service.aws, target)
    nodes = count_nodes(cluster, target)
    if as_json:
        document = _document(service, before=group.desired, nodes=group.desired, ready=nodes.usable)
        print_document(document)
        return EXIT_OK
    echo(
        f"nodes of {target.instance_type.name}: {group.desired} requested of at most "
        f"{group.max_size}, {nodes.usable} ready"
    )
    use = read_use(cluster, target)
    for each in read_node_groups(service.aws, target):
        zone = f", {each.zone}" if each.zone else ""
        for instance in sorted(each.instances, key=lambda instance: use.nodes.get(instance, "")):
            users = ", ".join(use.runs.get(instance, ())) or "unused"
            echo(f"  {use.nodes.get(instance, 'not joined yet')} ({instance}{zone}): {users}")
    for remark in (*group.health_issues, *nodes.remarks):
        echo(f"  {remark}")
    idle = describe_idle(cluster, target)
    if idle is not None:
        echo(idle)
    return EXIT_OK


def _document(service: "EksService", *, before: int, nodes: int, ready: int) -> object:
    from jobs.eks.node_users import ScaleDocument, idle_nodes

    target = service.target
    return ScaleDocument(
        deployment=target.name,
        region=target.region,
        nodes_before=before,
        nodes=nodes,
        ready=ready,
        idle=idle_nodes(service.cluster(), target),
    )
