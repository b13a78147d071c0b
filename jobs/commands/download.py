"""`jobs download`: the exported model of a run."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.aws import Aws
from jobs.bucket.downloads import check_arrived, check_target, planned_download
from jobs.bucket.objects import Bucket
from jobs.bucket.transfers import Direction, files, move
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    note,
    print_document,
)
from jobs.deployment import read_deployment
from jobs.errors import EXIT_OK
from jobs.output.documents_transfer import download_document
from jobs.submit.checks import valid_run_name


@command
def download(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run name.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to download into.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be downloaded, download nothing.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Download the model that `submit export --run RUN` made: Hugging Face's layout.

    What is there already with the same size and checksum is left out, so a download that was
    interrupted goes on where it ended.

    \b
    Examples:
      python -m jobs submit export --run my-run --follow
      python -m jobs download my-run --to ./checkpoint
    """
    valid_run_name(run)
    given = chosen(context, deployment, region)
    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    planned = planned_download(bucket, run, to)
    check_target(to, planned)
    outcome = None
    where = f"s3://{target.bucket}/{planned.prefix}"
    if dry_run:
        size = f"{planned.num_bytes / 1e6:,.1f} MB"
        note(f"would download {files(planned.items)}, {size}, from {where} to {to}")
        for item in () if as_json else planned.items:
            typer.echo(str(item.path))
    else:
        outcome = move(bucket, planned.items, Direction.DOWN, prefix=planned.prefix, note=note)
        check_arrived(bucket, outcome.moved)
        there = f"; {files(outcome.skipped)} there already" if outcome.skipped else ""
        note(
            f"downloaded {files(outcome.moved)}{there}: step {planned.step} of run {run} is in {to}"
        )
    if as_json:
        print_document(download_document(target, planned, outcome, to=to))
    return EXIT_OK
