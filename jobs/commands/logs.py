"""`jobs logs`: the logs of all nodes, merged by time."""

from typing import Annotated

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    open_deployment,
)
from jobs.errors import EXIT_OK
from jobs.orchestrators import check_node_index, find_job, services_of
from jobs.output import documents
from jobs.output.console import exit_code, follow_command, note, print_document


@command
def logs(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Run name.", show_default="the newest run")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")
    ] = False,
    node: Annotated[
        int | None,
        typer.Option(
            "--node",
            metavar="I",
            help="Show only this node, or child of an array job.",
            show_default="all",
        ),
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show the log of all nodes, merged by time.

    Lines come from the deployment's log group, where they arrive within seconds and outlive their
    node. When a node is lost, its last second or two of output is lost too.

    With --follow, waits for hosts and shows why they are missing, continues through retries, and
    ends with the exit reason of each node. Ctrl-C leaves the job running. With more than 16 nodes
    it follows node 0, and shows the tail of the log of any node that fails; --node follows another.

    Exit codes: 0 shown (with --follow: the job succeeded), 1 the job failed, 2 refused,
    130 interrupted.

    \b
    Examples:
      python -m jobs logs nightly --follow
      python -m jobs logs nightly --node 2 > node-2.log
    """
    aws, target = open_deployment(context, deployment, region)
    service, job = find_job(services_of(aws, target, note), target, run)
    check_node_index(node, job.shape)
    if follow:
        from jobs.output.screen import watch

        ended, lines = watch(
            service,
            target,
            run=job.run,
            job_id=job.job_id,
            only_node=node,
            keep_lines=as_json,
            shape=job.shape,
        )
        if as_json:
            print_document(
                documents.logs_document(target, job.run, job.job_id, lines=lines, job=ended)
            )
        return exit_code(ended)
    from jobs.output.screen import Screen, existing_lines

    lines = existing_lines(service, job, only_node=node)
    if as_json:
        print_document(documents.logs_document(target, job.run, job.job_id, lines=lines, job=job))
        return EXIT_OK
    screen = Screen(part=job.shape.kind.part)
    for line in lines:
        screen.line(line)
    if not job.ended:
        note(f"run {job.run} is {job.status}; follow it with: {follow_command(target, job.run)}")
    elif not lines:
        note(f"run {job.run} printed nothing; see: python -m jobs status {job.run}")
    return EXIT_OK
