"""`jobs report`: a summary of a run as text, JSON or a self-contained HTML page."""

import contextlib
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from jobs.bucket.objects import Bucket
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    open_deployment,
    parse_path,
)
from jobs.errors import EXIT_OK
from jobs.orchestrators import find_summary, services_of
from jobs.output.console import note, print_document
from jobs.report.account import report_document
from jobs.report.gather import gather


@command
def report(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Run name.", show_default="the newest run")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            parser=parse_path,
            metavar="FILE",
            help="Write a self-contained HTML page.",
        ),
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show a run's loss, speed, attempts, checkpoints, goodput and cost, during or after the run.

    The data comes from the run's files in the bucket, and from Batch or the cluster as long as they
    keep its jobs. Missing data is listed. For an unfinished run, the report
    covers the time until now.

    \b
    Examples:
      python -m jobs report my-run
      python -m jobs report my-run --html my-run.html
    """
    aws, target = open_deployment(context, deployment, region)
    services = services_of(aws, target, note)
    if run is None:
        run = find_summary(services, target, None)[1].run
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    document = report_document(gather(bucket, services, target, run), now_s=time.time())
    if html is not None:
        from jobs.report.page import page

        _write(html, page(document))
        note(f"wrote {html}")
    if as_json:
        print_document(document)
    elif html is None:
        from jobs.output.terminal import Terminal
        from jobs.report.text import show

        show(Terminal(), document)
    return EXIT_OK


def _write(path: Path, page: str) -> None:
    """Write the page, atomically to a regular file; escape characters that cannot be encoded."""
    data = page.encode(errors="backslashreplace")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)  # a link or a pipe must not be replaced
        return
    partial = path.with_name(f".report-{os.getpid()}.html")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
