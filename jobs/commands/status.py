"""`jobs status`: how one run stands, node by node."""

from typing import Annotated

import typer

from jobs import documents
from jobs.aws import Aws
from jobs.commands.find import found_job
from jobs.deployment import read_deployment
from jobs.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    exit_code,
    print_document,
)


@command
def status(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(help="Run name.", show_default="the newest run")
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show nodes, attempts and why each ended.

    Exit codes: 0 the run goes on or succeeded, 1 it failed, 2 refused.

    \b
    Examples:
      python -m jobs status
      python -m jobs status nightly --json
    """
    given = chosen(context, deployment, region)
    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region)
    batch = aws.batch()
    job = found_job(batch, target, run)
    if as_json:
        print_document(documents.status_document(target, job))
        return exit_code(job)
    from rich.console import Console

    from jobs.show import describe_status, node_table, verdict
    from jobs.waiting import why_waiting

    console = Console(highlight=False)
    found = None
    if job.status == "RUNNABLE" and not job.status_reason:
        found = why_waiting(batch, target, job)
    console.print(describe_status(job, found), soft_wrap=True)
    if job.nodes:
        console.print(node_table(job))
    if job.ended:
        console.print(verdict(job, bucket=target.bucket), soft_wrap=True, markup=False)
    return exit_code(job)
