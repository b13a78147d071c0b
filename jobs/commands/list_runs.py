"""`jobs list`: the runs of a deployment."""

from typing import Annotated

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    open_deployment,
)
from jobs.diagnosis.ranking import first_cause
from jobs.errors import EXIT_OK
from jobs.orchestrators import services_of
from jobs.output.console import note, print_document, status_command
from jobs.output.documents import ListDocument, ListedRun
from trainium_catalogue.documents import picked
from trainium_catalogue.wording import counted


@command
def list_runs(
    context: typer.Context,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Number of runs to show, newest first.")
    ] = 20,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """List the runs, newest first.

    A run is listed until Batch or the cluster deletes its job, at least 7 days after it ends.

    \b
    Examples:
      python -m jobs list
      python -m jobs --deployment team-b list --json
    """
    aws, target = open_deployment(context, deployment, region)
    runs = services_of(aws, target, note).newest_first()
    shown = runs[:limit]
    if as_json:
        listed = tuple(picked(ListedRun, run, cause=first_cause(run).line) for run in shown)
        print_document(ListDocument(deployment=target.name, region=target.region, runs=listed))
        return EXIT_OK
    if not runs:
        note(f"no runs in deployment {target.name!r}; submit one: python -m jobs submit --help")
        return EXIT_OK
    from jobs.output.tables import reason_of, runs_table
    from jobs.output.terminal import Terminal

    console = Terminal()
    table, left_out = runs_table(shown, width=console.width)
    console.print(table)
    if left_out:
        note(f"columns that do not fit this terminal: {', '.join(left_out)}; see --json")
    unexplained = [run.run for run in shown if run.status == "FAILED" and not reason_of(run)]
    if unexplained:
        note(f"to see why {unexplained[0]} failed: {status_command(target, unexplained[0])}")
    if len(runs) > len(shown):
        left = len(runs) - len(shown)
        note(f"{counted(left, 'older run')} {'is' if left == 1 else 'are'} not shown; see --limit")
    return EXIT_OK
