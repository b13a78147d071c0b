"""`jobs upload`: a tokenizer or text into the deployment's bucket."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.bucket.transfers import Direction, Outcome, files, move
from jobs.bucket.uploads import Upload, planned_upload
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    note,
    print_document,
)
from jobs.deployment import Deployment, read_deployment
from jobs.errors import EXIT_OK
from jobs.output.documents_transfer import upload_document


@command
def upload(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="A tokenizer, a file of text, or a folder of text.")],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name in the bucket.", show_default="the file's or folder's"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be uploaded, upload nothing.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Upload a tokenizer, or text to train on.

    *.model and tokenizer*.json go to tokenizers/, a folder or file of text, JSONL or Parquet to
    corpora/<name>/. What is there already with the same size and checksum is left out, so an
    upload that was interrupted goes on where it ended.

    \b
    Examples:
      python -m jobs upload ./tokenizer.model
      python -m jobs upload ./my-text/ --name my-corpus
      python -m jobs upload articles.jsonl.gz --dry-run
    """
    planned = planned_upload(path, name)
    given = chosen(context, deployment, region)
    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    where = f"s3://{target.bucket}/{planned.prefix}"
    if planned.left_out:
        note(f"left out, no text: {_some(planned.left_out)}")
    outcome = None
    if dry_run:
        note(f"would upload {files(planned.items)}, {_size(planned.num_bytes)}, to {where}")
        for item in () if as_json else planned.items:
            typer.echo(f"s3://{target.bucket}/{item.key}")
    else:
        outcome = move(bucket, planned.items, Direction.UP, prefix=planned.prefix, note=note)
        _report(target, bucket, planned, outcome)
    if as_json:
        print_document(upload_document(target, planned, outcome))
    return EXIT_OK


def _report(target: Deployment, bucket: Bucket, planned: Upload, outcome: Outcome) -> None:
    there = f"; {files(outcome.skipped)} there already" if outcome.skipped else ""
    note(
        f"uploaded {files(outcome.moved)}{there}: "
        f"{planned.kind} {planned.name} in s3://{target.bucket}/{planned.prefix}"
    )
    if planned.kind == "tokenizer":
        note(f"use it with: python -m jobs submit tokenize --tokenizer {planned.name} ...")
        return
    mine = {item.key for item in planned.items}
    strays = [
        found.key.removeprefix(planned.prefix)
        for found in bucket.objects(planned.prefix)
        if found.key not in mine
    ]
    if strays:
        note(
            f"{planned.prefix} holds {len(strays)} more files of earlier uploads, which tokenize "
            f"reads too: {_some(strays)}; remove them, or use another --name"
        )
    note(f"use it with: python -m jobs submit tokenize --input {planned.name} ...")


def _some(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
