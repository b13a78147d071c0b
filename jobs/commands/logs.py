"""`jobs logs`: the nodes' output, merged by time."""

from typing import Annotated

import typer

from jobs.commands.options import DeploymentOption, JsonOption, RegionOption, command, opened
from jobs.errors import EXIT_OK
from jobs.orchestrators import check_node_index, found_job, services_of
from jobs.output import documents
from jobs.output.console import exit_code, follow_command, note, print_document


@command
def logs(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(help="Run name.", show_default="the newest run")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends.")
    ] = False,
    node: Annotated[
        int | None,
        typer.Option(
            "--node", metavar="I", help="Only this node, or child of an array.", show_default="all"
        ),
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show the log of all nodes, merged by time.

    Lines come from the deployment's log group, where they arrive within seconds and stay when their
    node is gone. A node that is lost takes the last second or two with it.

    With --follow: waits for hosts and says what it waits for, goes on through a new attempt, and
    ends with the exit reason of each node. Ctrl-C leaves the job running.

    Exit codes: 0 (with --follow: the job succeeded), 1 the job failed, 2 refused,
    130 interrupted.

    \b
    Examples:
      python -m jobs logs nightly --follow
      python -m jobs logs nightly --node 2 > node-2.log
    """
    aws, target = opened(context, deployment, region)
    service, job = found_job(services_of(aws, target, note), target, run)
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
            part=job.shape.kind.part,
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
