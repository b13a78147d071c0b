"""`jobs scale`: the number of nodes in the cluster."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

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
from jobs.output.console import confirm, note, print_document

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

    Nodes cost money from the moment they start, whether a job runs or not: it asks before it adds
    any. Where there is no terminal to ask on, that needs --yes. Fewer nodes are always idle ones,
    unless --force is given. Nodes that no job uses or waits for go by themselves after
    `eks_idle_minutes` of the deployment, counted anew from this command.

    \b
    Examples:
      python -m jobs scale
      python -m jobs scale --nodes 2
      python -m jobs scale --nodes 0
    """
    from jobs.eks.cluster import refusing
    from jobs.eks.nodes import (
        Progress,
        add_nodes,
        check_scale,
        look_at_nodes,
        read_node_group,
        wait_for_nodes,
    )

    service = eks_service(chosen(context, deployment, region), "scale")
    target, aws = service.target, service.aws
    if nodes is None:
        with refusing():
            return _show(service, as_json=as_json)
    check_scale(target, nodes)
    before = read_node_group(aws, target)
    price = nodes * target.instance_type.usd_per_hour_estimate
    change = f"{before.wanted} -> {counted(nodes, 'node')} of {target.instance_type.name}" + (
        f", about ${price:,.2f} an hour ({ESTIMATE_NOTE})" if nodes else ""
    )
    if nodes < before.wanted:
        with refusing():
            _take_away(service, nodes, force=force, change=change)
    else:
        if nodes > before.wanted:
            note(change)
            if not yes:
                confirm("adding nodes", question="add them?", declined="nothing was changed")
            add_nodes(aws, before, nodes)
        with refusing():
            _keep(service)

    def read() -> Progress:
        found = look_at_nodes(service.cluster(), target)
        group = read_node_group(aws, target)
        return Progress(ready=found.usable, group=group, remarks=found.remarks)

    with refusing():
        for progress in wait_for_nodes(
            read, nodes, limit_s=wait, now=time.monotonic, sleep=time.sleep
        ):
            note(progress.text(nodes))
    if as_json:
        print_document(_document(service, before=before.wanted, nodes=nodes, ready=nodes))
    return EXIT_OK


def _take_away(service: "EksService", nodes: int, *, force: bool, change: str) -> None:
    """Remove nodes: idle ones, unless the user insists."""
    from jobs.eks import scale_in
    from jobs.eks.nodes import read_node_group

    cluster, target = service.cluster(), service.target
    use = scale_in.read_use(cluster, target)
    # Read after the pods: an instance that has joined since then is still unused.
    group = read_node_group(service.aws, target)
    asking = scale_in.asking_jobs(cluster, nodes, use=use)
    if not force:
        scale_in.refuse_asking(asking, nodes)
    parts = scale_in.choose(group, use, nodes, force=force)
    note(change)
    if asking:
        note(f"{', '.join(asking.values())} waits on, and asks for nodes no more")
        scale_in.withdraw(cluster, asking)
    scale_in.cut(service.aws, cluster, target, group, parts, use=use, force=force, sleep=time.sleep)


def _keep(service: "EksService") -> None:
    """Restart the idle time of the existing nodes."""
    from jobs.eks.scale_in import keep_idle

    if not keep_idle(service.cluster(), service.target):
        note("nodes that are idle already go when they would have: you may not change nodes")


def _show(service: "EksService", *, as_json: bool) -> int:
    """Show the nodes, who uses them, and when idle ones go."""
    from jobs.eks.nodes import look_at_nodes, read_node_group
    from jobs.eks.scale_in import describe_idle, nodes_of_group, read_use

    cluster, target = service.cluster(), service.target
    group = read_node_group(service.aws, target)
    found = look_at_nodes(cluster, target)
    if as_json:
        document = _document(service, before=group.wanted, nodes=group.wanted, ready=found.usable)
        print_document(document)
        return EXIT_OK
    typer.echo(
        f"{group.wanted} of at most {group.most} nodes of {target.instance_type.name} are wanted, "
        f"{found.usable} {'is' if found.usable == 1 else 'are'} ready"
    )
    use = read_use(cluster, target)
    for instance in sorted(group.instances, key=lambda each: use.nodes.get(each, "")):
        users = ", ".join(use.runs.get(instance, ())) or "nobody"
        typer.echo(f"  {use.nodes.get(instance, 'not joined yet')} ({instance}): {users}")
    for remark in (*group.troubles, *found.remarks):
        typer.echo(f"  {remark}")
    idle = describe_idle(nodes_of_group(cluster, target), target, now=datetime.now(UTC))
    if idle is not None:
        typer.echo(idle)
    return EXIT_OK


def _document(service: "EksService", *, before: int, nodes: int, ready: int) -> dict[str, Any]:
    from jobs.eks.scale_in import idle_documents

    target = service.target
    return {
        "deployment": target.name,
        "region": target.region,
        "nodes_before": before,
        "nodes": nodes,
        "ready": ready,
        "idle": idle_documents(service.cluster(), target),
    }
