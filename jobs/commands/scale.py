"""`jobs scale`: the number of nodes in the cluster."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    eks_service,
)
from jobs.errors import EXIT_OK
from jobs.job import ESTIMATE_NOTE, counted
from jobs.output.console import confirm, echo, note, print_document

if TYPE_CHECKING:
    from jobs.eks.service import EksService


@command
def scale(
    context: typer.Context,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=0, help="Number of nodes.", show_default="show those there are"
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for them, at most."),
    ] = 1800,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before nodes are added.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Ask for a number of Trainium nodes in the cluster, and wait until they are ready.

    Nodes cost money from the moment they start, whether a job runs or not: it asks before it adds
    any. Where there is no terminal to ask on, that needs --yes. Only idle nodes are removed. Nodes
    that no job uses or waits for are removed after `eks_idle_minutes` of the deployment, counted
    from this command.

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

    service = eks_service(chosen(context, deployment, region), "scale")
    target = service.target
    if nodes is None:
        with refusing():
            return _show(service, as_json=as_json)
    check_scale(target, nodes)
    before = read_node_group(service.aws, target)
    price = nodes * target.instance_type.usd_per_hour_estimate
    change = f"{before.wanted} -> {counted(nodes, 'node')} of {target.instance_type.name}" + (
        f", about ${price:,.2f} an hour ({ESTIMATE_NOTE})" if nodes else ""
    )
    fewer = nodes < before.wanted
    with refusing():
        if fewer:
            check_fewer(service.cluster(), target, nodes)
        if nodes != before.wanted:
            note(change)
        if nodes > before.wanted and not yes:
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
        print_document(_document(service, before=before.wanted, nodes=nodes, ready=nodes))
    return EXIT_OK


def _show(service: "EksService", *, as_json: bool) -> int:
    """Show the nodes, who uses them, and when idle ones go."""
    from jobs.eks.node_users import describe_idle, nodes_of_group, read_use
    from jobs.eks.nodes import look_at_nodes, read_node_group

    cluster, target = service.cluster(), service.target
    group = read_node_group(service.aws, target)
    found = look_at_nodes(cluster, target)
    if as_json:
        document = _document(service, before=group.wanted, nodes=group.wanted, ready=found.usable)
        print_document(document)
        return EXIT_OK
    echo(
        f"{group.wanted} of at most {group.most} nodes of {target.instance_type.name} are wanted, "
        f"{found.usable} {'is' if found.usable == 1 else 'are'} ready"
    )
    use = read_use(cluster, target)
    for instance in sorted(group.instances, key=lambda each: use.nodes.get(each, "")):
        users = ", ".join(use.runs.get(instance, ())) or "nobody"
        echo(f"  {use.nodes.get(instance, 'not joined yet')} ({instance}): {users}")
    for remark in (*group.troubles, *found.remarks):
        echo(f"  {remark}")
    idle = describe_idle(nodes_of_group(cluster, target), target, now=datetime.now(UTC))
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
