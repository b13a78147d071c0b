"""`jobs logs`: the nodes' output, merged by time."""

from typing import Annotated

import typer

from jobs.commands.options import DeploymentOption, JsonOption, RegionOption, command, opened
from jobs.errors import EXIT_OK
from jobs.orchestrators import check_node_index, found_job, services_of
from jobs.output import documents
from jobs.output.console import exit_code, follow_command, note, print_document
from trainium_catalogue.contract import Orchestrator


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

    On EKS lines are the pods' own: those of an attempt that another one followed are gone, those
    of nodes that were given up, and the beginning of a log over 10 MiB, unless they were followed.
    `status` knows how such an attempt ended.

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
        gone = (
            ", or its pods are gone and their lines with them"
            if job.orchestrator is Orchestrator.EKS
            else ""
        )
        note(f"run {job.run} printed nothing{gone}; see: python -m jobs status {job.run}")
    return EXIT_OK
