"""`jobs verify`: which claims about AWS and the hardware hold, as far as they were checked."""

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
    chosen,
    command,
)
from jobs.deployment import read_deployment
from jobs.errors import EXIT_JOB_FAILED, EXIT_OK, Refusal, is_denied
from jobs.job import Job, counted
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

if TYPE_CHECKING:
    from rich.table import Table

_NEWEST = 20
_COLOURS = {State.GREEN: "green", State.RED: "red", State.CRASHED: "bold red"}
_FIRST = (State.CRASHED, State.RED, State.GREEN)
EMULATED = (
    "AWS was an emulator: green says that a probe works, and nothing about its claim; "
    "what needs hardware or an account was not run"
)


@command
def verify(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(help="Run of verify.", show_default="the newest that left a record"),
    ] = None,
    read: Annotated[
        str | None,
        typer.Option(
            "--read",
            metavar="RECORD",
            help="Look at nothing, show a record: a file, an object's address or key, or a run.",
        ),
    ] = None,
    shows_all: Annotated[
        bool, typer.Option("--all", help="Show every claim, not only what failed or is new.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a block to paste into an issue.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Look whether the claims of docs/verification.md hold, and show what was seen.

    Joins what a run of `submit verify` found on its nodes with what can be seen from here, by
    calls that only read, and writes the record to the run's results. Some probes have to look
    while a job runs: call it then as well, what it sees is kept. Ends with 1 when a claim does not
    hold or a probe crashed.

    \b
    Examples:
      python -m jobs submit verify --nodes 1 --follow
      python -m jobs verify
      python -m jobs verify --markdown > issue.md
      python -m jobs verify --read verification.json
    """
    given = chosen(context, deployment, region)
    if read is not None:
        if run is not None:
            raise Refusal("usage", f"--read {read} shows that record; leave out the run {run}")
        record, earlier = _stored(given, read), None
    else:
        record, earlier = _look(given, run)
    rows = rows_of(record)
    if as_json:
        print_document(dict(record))
    elif as_markdown:
        echo(markdown(record, rows))
    else:
        _show(record, None if shows_all else interesting(rows, earlier))
    return EXIT_OK if is_good(rows) else EXIT_JOB_FAILED


def _stored(given: Globals, place: str) -> Record:
    if Path(place).is_file():
        return read_record(place, None)
    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region)
    return read_record(place, Bucket(client=aws.s3(), name=target.bucket))


def _look(given: Globals, run: str | None) -> tuple[Record, Record | None]:
    """Run the desk's probes, join them with what the run's nodes found, and write the record."""
    # Imported late, so that other commands do not pay for them.
    from jobs.verify.probes import PROBES, Desk

    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region, workload="verify")
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
    desk = Desk(aws=aws, target=target, services=services, job=job)
    note(f"{len(PROBES.by_id)} probes look from here, and change nothing")
    there = desk.there
    findings = [PROBES.run(name, desk, there) for name in PROBES.by_id]
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
            "no run of verify has left a record, so nothing is written; submit one: "
            "`python -m jobs submit verify --nodes 1 --follow`"
        )
        return record, None
    try:
        where = bucket.write(key_of(run), json.dumps(record, indent=2).encode() + b"\n")
    except Exception as error:
        if not is_denied(error):
            raise
        note("the record is not written: that needs s3:PutObject; keep it with --json")
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
    found = services.find(run)
    if found is None:
        return None
    service, summary = found
    return service.describe(summary.job_id, summary.shape)


def _read(bucket: Bucket, run: str | None, name: str | None = None) -> Record | None:
    if run is None:
        return None
    key = key_of(run) if name is None else key_of(run, name)
    data = bucket.read(key)
    return None if data is None else parse_record(data, f"s3://{bucket.name}/{key}")


def interesting(rows: Sequence[Row], earlier: Record | None) -> list[Row]:
    """Choose failed claims, and those whose result differs from the earlier record."""
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
        console.print(f"{left} not shown: none failed, none is new; --all shows them")
    if record["emulated"]:
        console.print(EMULATED, soft_wrap=True)


def title(record: Record) -> str:
    """Name the deployment and the run that were looked at."""
    nodes, kind = record["num_nodes"], record["instance_type"] or record["device"]
    of = f"{nodes} x {kind}" if nodes else str(kind)
    return (
        f"{of}, Neuron {record['neuron_release']}, deployment {record['deployment']} in "
        f"{record['region']}, run {record['run'] or 'none'}, {record['time']}"
    )


def summary(rows: Sequence[Row]) -> str:
    """Count the rows by their states."""
    return ", ".join(f"{number} {state}" for state, number in counts(rows).items())


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Put the rows that need attention first; otherwise keep document order."""
    order = [str(state) for state in _FIRST]
    rank = {state: index for index, state in enumerate(order)}
    return sorted(rows, key=lambda row: rank.get(row.state, len(order)))


def table(rows: Sequence[Row]) -> "Table":
    """Build a table with one line per claim, in its own words."""
    from rich.table import Table
    from rich.text import Text

    made = Table()
    made.add_column("id", no_wrap=True)
    made.add_column("", no_wrap=True)
    made.add_column("claim, and what was seen", overflow="fold")
    for row in ordered(rows):
        style = next((s for state, s in _COLOURS.items() if row.state == state), "dim")
        lines = [row.claim.claim, row.seen]
        if row.is_bad and row.expected:
            lines.append(f"expected: {row.expected}")
        made.add_row(row.claim.id, Text(row.state, style), Text("\n".join(filter(None, lines))))
    return made


def markdown(record: Record, rows: Sequence[Row]) -> str:
    """Build a block to paste into an issue: checked claims in full, the rest folded."""
    looked = [row for row in ordered(rows) if row.state in _COLOURS]
    others = [row for row in rows if row.state not in _COLOURS]
    lines = [f"### Verification: {title(record)}", "", f"{summary(rows)}."]
    if record["emulated"]:
        lines += ["", f"{EMULATED}."]
    if looked:
        lines += ["", *_table(looked)]
    if others:
        lines += ["", f"<details><summary>{len(others)} claims were not looked at</summary>", ""]
        lines += [*_table(others), "", "</details>"]
    return "\n".join([*lines, "", f"sha256 of the record: `{record['sha256']}`"])


def _table(rows: Sequence[Row]) -> list[str]:
    lines = ["| claim | | seen | expected |", "| --- | --- | --- | --- |"]
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
