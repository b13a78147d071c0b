"""`jobs verify`: the results of probing the claims about AWS and the hardware."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.commands.options import (
    DeploymentOption,
    Globals,
    JsonOption,
    RegionOption,
    command,
    global_options,
)
from jobs.deployment import read_deployment
from jobs.errors import EXIT_JOB_FAILED, EXIT_OK, Refusal, is_denied
from jobs.job import Job
from jobs.orchestrators import Services, services_of
from jobs.output.console import echo, note, print_document
from jobs.verify.verification import (
    Record,
    Row,
    counts,
    is_good,
    joined,
    key_of,
    parse_record,
    read_record,
    rows_of,
)
from trainium_catalogue.probing import NODE_RECORD, State
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from rich.table import Table

_NEWEST = 20
"""Number of newest runs to search for one with a record."""
_COLORS = {State.GREEN: "green", State.RED: "red", State.CRASHED: "bold red"}
_FIRST = (State.CRASHED, State.RED, State.GREEN)
EMULATED = (
    "AWS is emulated: green means that a probe works, not that its claim is true; probes that "
    "need hardware or an account were not run"
)


@command
def verify(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Name of a `verify` run.",
            show_default="the newest run with a record",
        ),
    ] = None,
    read: Annotated[
        str | None,
        typer.Option(
            "--read",
            metavar="RECORD",
            help="Show a record without running probes: a file, an S3 URI or key, or a run.",
        ),
    ] = None,
    shows_all: Annotated[
        bool, typer.Option("--all", help="Show every claim, not only those that failed or changed.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a block to paste into an issue.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Test this project's unverified assumptions about AWS and Neuron, and record the results.

    Combines the results of a `submit verify` run with read-only checks from this machine, and
    writes the record to the run's results. Some probes need a running job: run this command again
    while one is running; earlier results are kept. Exits with 1 if a claim failed or a probe
    crashed.

    \b
    Examples:
      python -m jobs submit verify --nodes 1 --follow
      python -m jobs verify
      python -m jobs verify --markdown > issue.md
      python -m jobs verify --read verification.json
    """
    options = global_options(context, deployment, region)
    if read is not None:
        if run is not None:
            raise Refusal("usage", f"--read {read} shows that record; omit the run {run}")
        record, earlier = _read_stored(options, read), None
    else:
        record, earlier = _probe(options, run)
    rows = rows_of(record)
    if as_json:
        print_document(dict(record))
    elif as_markdown:
        echo(markdown(record, rows))
    else:
        _show(record, None if shows_all else rows_to_show(rows, earlier))
    return EXIT_OK if is_good(rows) else EXIT_JOB_FAILED


def _read_stored(options: Globals, place: str) -> Record:
    if Path(place).is_file():
        return read_record(place, None)
    aws = Aws(options.region)
    target = read_deployment(aws.ssm(), options.deployment, region=aws.region)
    return read_record(place, Bucket(client=aws.s3(), name=target.bucket))


def _probe(options: Globals, run: str | None) -> tuple[Record, Record | None]:
    """Run the client's probes, merge them with the run's results, and write the record."""
    # Imported here to keep other commands fast.
    from jobs.verify.probes import PROBES, ClientContext

    aws = Aws(options.region)
    target = read_deployment(aws.ssm(), options.deployment, region=aws.region, workload="verify")
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    services = services_of(aws, target, note)
    run = run or _newest(services, bucket)
    job = _job(services, run)
    nodes = _read(bucket, run, NODE_RECORD)
    if run is not None and job is None and nodes is None:
        raise Refusal(
            "unknown-run",
            f"there is neither a job nor a record of run {run!r}; see `python -m jobs list`, or "
            "submit one: `python -m jobs submit verify --nodes 1 --follow`",
        )
    context = ClientContext(aws=aws, target=target, services=services, job=job)
    note(f"running {len(PROBES.by_id)} read-only probes from this machine")
    met = context.met_requirements
    findings = [PROBES.run(name, context, met) for name in PROBES.by_id]
    earlier = _read(bucket, run)
    record = joined(
        target,
        findings,
        nodes=nodes,
        earlier=earlier,
        emulated=aws.is_emulated,
        run=run,
        job_id=job.job_id if job else None,
    )
    if run is None:
        note(
            "no verify run has results, so the record is not written; submit one: `python -m jobs "
            "submit verify --nodes 1 --follow`"
        )
        return record, None
    try:
        where = bucket.write(key_of(run), json.dumps(record, indent=2).encode() + b"\n")
    except Exception as error:
        if not is_denied(error):
            raise
        note("the record was not written, because s3:PutObject is denied; print it with --json")
    else:
        note(f"written: {where}")
    return record, earlier


def _newest(services: Services, bucket: Bucket) -> str | None:
    for summary in services.newest_first()[:_NEWEST]:
        if bucket.has(key_of(summary.run, NODE_RECORD)):
            return summary.run
    return None


def _job(services: Services, run: str | None) -> Job | None:
    if run is None:
        return None
    newest = services.find(run)
    if newest is None:
        return None
    service, summary = newest
    return service.describe(summary.job_id, summary.shape)


def _read(bucket: Bucket, run: str | None, name: str | None = None) -> Record | None:
    if run is None:
        return None
    key = key_of(run) if name is None else key_of(run, name)
    data = bucket.read(key)
    return None if data is None else parse_record(data, f"s3://{bucket.name}/{key}")


def rows_to_show(rows: Sequence[Row], earlier: Record | None) -> list[Row]:
    """Select failed claims, and those whose result differs from the earlier record."""
    before = {} if earlier is None else {row.claim.id: row.state for row in rows_of(earlier)}
    return [row for row in rows if row.is_bad or before.get(row.claim.id, row.state) != row.state]


def _show(record: Record, only: Sequence[Row] | None) -> None:
    from jobs.output.terminal import Terminal

    rows = rows_of(record)
    console = Terminal()
    shown = rows if only is None else only
    if shown:
        console.print(table(shown))
    console.print(f"{title(record)}\n{summary(rows)}", soft_wrap=True)
    if len(shown) < len(rows):
        left = counted(len(rows) - len(shown), "claim")
        console.print(f"{left} neither failed nor changed; --all shows every claim")
    if record["emulated"]:
        console.print(EMULATED, soft_wrap=True)


def title(record: Record) -> str:
    """Name the deployment and the run that were checked."""
    nodes, kind = record["num_nodes"], record["instance_type"] or record["device"]
    hosts = f"{nodes} x {kind}" if nodes else str(kind)
    return (
        f"{hosts}, Neuron {record['neuron_release']}, deployment {record['deployment']} in "
        f"{record['region']}, run {record['run'] or 'none'}, {record['time']}"
    )


def summary(rows: Sequence[Row]) -> str:
    """Summarize the number of rows in each state."""
    return ", ".join(f"{number} {state}" for state, number in counts(rows).items())


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Sort rows that need attention first; otherwise keep the document order."""
    order = [str(state) for state in _FIRST]
    rank = {state: index for index, state in enumerate(order)}
    return sorted(rows, key=lambda row: rank.get(row.state, len(order)))


def table(rows: Sequence[Row]) -> "Table":
    """Build a table with one row per claim."""
    from rich.table import Table
    from rich.text import Text

    result = Table()
    result.add_column("id", no_wrap=True)
    result.add_column("", no_wrap=True)
    result.add_column("claim and observation", overflow="fold")
    for row in ordered(rows):
        style = next((s for state, s in _COLORS.items() if row.state == state), "dim")
        lines = [row.claim.claim, row.seen]
        if row.is_bad and row.expected:
            lines.append(f"expected: {row.expected}")
        result.add_row(row.claim.id, Text(row.state, style), Text("\n".join(filter(None, lines))))
    return result


def markdown(record: Record, rows: Sequence[Row]) -> str:
    """Build a block to paste into an issue: checked claims in full, the rest collapsed."""
    checked = [row for row in ordered(rows) if row.state in _COLORS]
    others = [row for row in rows if row.state not in _COLORS]
    lines = [f"### Verification: {title(record)}", "", f"{summary(rows)}."]
    if record["emulated"]:
        lines += ["", f"{EMULATED}."]
    if checked:
        lines += ["", *_table(checked)]
    if others:
        lines += [
            "",
            f"<details><summary>{counted(len(others), 'claim')} not checked</summary>",
            "",
        ]
        lines += [*_table(others), "", "</details>"]
    return "\n".join([*lines, "", f"sha256 of the record: `{record['sha256']}`"])


def _table(rows: Sequence[Row]) -> list[str]:
    lines = ["| claim | | observed | expected |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (f"`{row.claim.id}`: {row.claim.claim}", row.state, row.seen, row.expected)
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _cell(text: str) -> str:
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    # Between backticks, an HTML entity would be shown as typed.
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts)
    )
