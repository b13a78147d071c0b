"""The record of a verification: the merged findings of nodes and client, as rows of claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.verify.claims import Claim, read_claims
from trainium_catalogue.contract import CONTRACT_VERSION, run_prefix
from trainium_catalogue.probing import (
    NODE_RECORD,
    RECORD,
    SCHEMA,
    Finding,
    ProbeRecord,
    ProbeSite,
    State,
    is_intact,
)
from trainium_catalogue.typed_json import read_object

Record = Mapping[str, Any]
NO_PROBE = "no probe"
_NODE_FIELDS = ("run", "job_id", "num_nodes", "num_ranks", "device")
_WORST_FIRST = (State.CRASHED, State.RED, State.GREEN, State.NOT_RUN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A claim with a probe, or an open claim without one."""

    claim: Claim
    state: str
    """State of its probe, or ``no probe``."""
    seen: str
    expected: str

    @property
    def is_bad(self) -> bool:
        """True if it needs attention."""
        return self.state in (State.RED, State.CRASHED)


def key_of(run: str, name: str = RECORD) -> str:
    """Return the key of a run's record in the bucket."""
    return f"{run_prefix(run, 'results')}{name}"


def parse_record(data: bytes, where: str) -> Record:
    """Parse a record; refuse anything else, and a modified record."""
    try:
        document = read_object(data)
    except ValueError:
        document = {}
    if "findings" not in document:
        raise Refusal(
            "no-record",
            f"{where} is not the record of a verification; specify a run, or a file or object "
            "written by `python -m jobs verify`",
        )
    if document.get("schema") != SCHEMA:
        raise Refusal(
            "record-schema",
            f"{where} has schema {document.get('schema')}, but this checkout reads {SCHEMA}; use "
            "the checkout that wrote it",
        )
    if not is_intact(document):
        raise Refusal(
            "record-changed",
            f"{where} was modified: its checksum does not match; run `python -m jobs verify` "
            "again, which rewrites it",
        )
    return document


def read_record(source: str, bucket: Bucket | None) -> Record:
    """Read a record from a file, an S3 URI, a key in the bucket, or a run; refuse a missing one."""
    path = Path(source)
    if path.is_file():
        return parse_record(path.read_bytes(), source)
    assert bucket is not None
    if "/" not in source:
        keys = [key_of(source), key_of(source, NODE_RECORD)]
        where = bucket
    else:
        name, _, key = source.removeprefix("s3://").partition("/")
        is_uri = source.startswith("s3://")
        where = Bucket(client=bucket.client, name=name) if is_uri else bucket
        keys = [key if is_uri else source]
    for key in keys:
        if (data := where.read(key)) is not None:
            return parse_record(data, f"s3://{where.name}/{key}")
    raise Refusal(
        "no-record",
        f"there is no record {source!r}: neither a file nor {' nor '.join(keys)} in {where.name}; "
        "run `python -m jobs submit verify --nodes 1 --follow`, then `python -m jobs verify`",
    )


def joined(
    target: Deployment,
    client: Iterable[Finding],
    *,
    nodes: Record | None,
    earlier: Record | None,
    emulated: bool,
    run: str | None,
    job_id: str | None,
) -> dict[str, Any]:
    """Merge the findings of nodes and client into one record.

    Some probes only work while the job runs: findings from an ``earlier`` record of the same job
    are kept if they could not be repeated.
    """
    same_job = earlier is not None and earlier["job_id"] == (nodes["job_id"] if nodes else job_id)
    known = _by_id(earlier) if earlier is not None and same_job else {}
    of_client = [
        known.get((finding.id, ProbeSite.CLIENT), finding)
        if finding.state is State.NOT_RUN
        else finding
        for finding in client
    ]
    of_nodes = [Finding.read(document) for document in nodes["findings"]] if nodes else []
    about = {name: nodes[name] for name in _NODE_FIELDS} if nodes else dict.fromkeys(_NODE_FIELDS)
    return ProbeRecord(
        contract_version=CONTRACT_VERSION,
        time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        deployment=target.name,
        region=target.region,
        emulated=emulated,
        **{**about, "run": run, "job_id": about["job_id"] or job_id},
        instance_type=target.instance_type.name,
        neuron_release=target.neuron_release,
        findings=(*of_nodes, *of_client),
    ).sealed()


def _by_id(record: Record) -> dict[tuple[str, ProbeSite], Finding]:
    found = [Finding.read(document) for document in record["findings"]]
    return {(finding.id, finding.place): finding for finding in found}


def rows_of(record: Record, claims: Sequence[Claim] | None = None) -> list[Row]:
    """Build a row for every claim that has a probe or is open."""
    found = _by_id(record)
    rows = []
    for claim in read_claims() if claims is None else claims:
        if claim.probe:
            rows.append(_row(claim, [found.get((claim.id, place)) for place in claim.probe]))
        elif claim.open:
            rows.append(Row(claim=claim, state=NO_PROBE, seen=claim.why, expected=""))
    return rows


def _row(claim: Claim, findings: Sequence[Finding | None]) -> Row:
    known = [finding for finding in findings if finding is not None]
    if not known:
        where = "a run of verify" if ProbeSite.NODE in claim.probe else "`python -m jobs verify`"
        return Row(claim=claim, state=State.NOT_RUN, seen=f"needs {where}", expected="")
    worst = min(known, key=lambda finding: _WORST_FIRST.index(finding.state))
    seen = f"needs {', '.join(worst.needs)}" if worst.state is State.NOT_RUN else worst.seen
    return Row(claim=claim, state=worst.state, seen=seen, expected=worst.expected)


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """Count the rows by state, in a fixed order."""
    numbers = {str(state): 0 for state in (*State, NO_PROBE)}
    for row in rows:
        numbers[row.state] += 1
    return numbers


def is_good(rows: Iterable[Row]) -> bool:
    """Return whether no row is red or crashed."""
    return not any(row.is_bad for row in rows)
