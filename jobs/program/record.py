"""`program.json`: the submissions of a user's own program in a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from trainium_catalogue import contract
from trainium_catalogue.documents import (
    OPTIONAL,
    Keywords,
    Positive,
    Sha256,
    Timestamp,
    as_document,
)
from trainium_catalogue.typed_json import read_object
from trainium_catalogue.workloads import Value

FORMAT: Literal[1] = 1
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedProgram:
    """The program of one submission of a run."""

    submitted_at: Timestamp
    """Time in UTC."""
    code: Sha256
    """SHA-256 of the bundle."""
    script: str | None
    """File in the bundle that was run."""
    module: str | None
    """Module that was run instead."""
    argv: tuple[str, ...]
    """Arguments of the program, for every worker."""
    parameters: Mapping[str, Value] = field(default_factory=dict)
    """Specified parameters, including those that the workload.toml defines."""
    num_nodes: Positive
    workload: str | None = None
    """Name in its workload.toml."""
    from_snapshot: str | None = None
    """Value of --from-snapshot: a number, or none; null without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(SubmittedProgram):
    """One submission of a run."""

    requirements: Mapping[str, Any] | None = None
    """Key and text of the requirements, if any."""
    from_snapshot: str | None = field(default=None, metadata=OPTIONAL)
    """Value of --from-snapshot; earlier releases did not write it."""

    @property
    def shown(self) -> str:
        """The program as on a command line."""
        return f"-m {self.module}" if self.module else str(self.script)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """The submissions of a user's own program in a run; written just before each submission."""

    format: Literal[1]
    submissions: Annotated[tuple[Submitted, ...], Keywords(minItems=1)]
    """Submissions, newest last."""


def read_record(bucket: Bucket, run: str) -> tuple[Submitted, ...]:
    """Read the submissions of a run, newest last; empty for a new run."""
    data = bucket.read(contract.run_key(run, contract.RUN_PROGRAM))
    return () if data is None else _parse_record(bucket, run, data)


def _parse_record(bucket: Bucket, run: str, data: bytes) -> tuple[Submitted, ...]:
    key = contract.run_key(run, contract.RUN_PROGRAM)
    try:
        document = read_object(data)
        if document["format"] != FORMAT:
            raise ValueError(
                f"it has format {document['format']!r}, but this checkout reads {FORMAT}"
            )
        return tuple(_parse_submission(item) for item in document["submissions"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise Refusal(
            "program-record",
            f"s3://{bucket.name}/{key} cannot be used: {reason}; use the checkout that submitted "
            "the run, or another --name",
        ) from None


def add_record(bucket: Bucket, run: str, new: Submitted) -> None:
    """Append the upcoming submission to the run's record.

    Another submission may run concurrently, so the record is replaced conditionally.
    """
    key = contract.run_key(run, contract.RUN_PROGRAM)
    for _ in range(_ATTEMPTS):
        stored = bucket.read_version(key)
        earlier = () if stored is None else _parse_record(bucket, run, stored.data)
        record = ProgramRecord(format=FORMAT, submissions=(*earlier, new))
        etag = None if stored is None else stored.etag
        data = json.dumps(as_document(record), indent=1).encode()
        if bucket.replace(key, data, etag=etag) is not None:
            return
    raise Refusal(
        "program-record",
        f"s3://{bucket.name}/{key} was replaced by other submissions {_ATTEMPTS} times while this "
        "submission was being added; submit again later",
    )


def now() -> str:
    """Return the current time for a record."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _parse_submission(item: Mapping[str, Any]) -> Submitted:
    return Submitted(
        submitted_at=str(item["submitted_at"]),
        code=str(item["code"]),
        script=item.get("script"),
        module=item.get("module"),
        argv=tuple(item.get("argv", ())),
        parameters=dict(item.get("parameters") or {}),
        requirements=item.get("requirements"),
        num_nodes=int(item["num_nodes"]),
        workload=item.get("workload"),
        from_snapshot=item.get("from_snapshot"),
    )
