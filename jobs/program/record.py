"""`program.json`: what a run of a user's own program ran, submission by submission."""

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
    """What one submission of a run ran."""

    submitted_at: Timestamp
    """Time in UTC."""
    code: Sha256
    """Name of the bundle."""
    script: str | None
    """File of the bundle that ran."""
    module: str | None
    """Module that ran instead."""
    argv: tuple[str, ...]
    """Arguments of the program, as every worker gets them."""
    parameters: Mapping[str, Value] = field(default_factory=dict)
    """Parameters that were given, of `submit` and of the workload.toml."""
    num_nodes: Positive
    workload: str | None = None
    """Name in its workload.toml."""
    from_snapshot: str | None = None
    """What --from-snapshot named: a number, or none; null without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(SubmittedProgram):
    """One submission of a run."""

    requirements: Mapping[str, Any] | None = None
    """Key and text of the requirements, if there were any."""
    from_snapshot: str | None = field(default=None, metadata=OPTIONAL)
    """As above; earlier releases did not write it."""

    @property
    def shown(self) -> str:
        """The program as one would start it."""
        return f"-m {self.module}" if self.module else str(self.script)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """What a run of a user's own program ran; written just before each submission."""

    format: Literal[1]
    submissions: Annotated[tuple[Submitted, ...], Keywords(minItems=1)]
    """The newest is last."""


def read_record(bucket: Bucket, run: str) -> tuple[Submitted, ...]:
    """Read the submissions of a run, the newest last; none if it is new."""
    data = bucket.read(contract.run_key(run, contract.RUN_PROGRAM))
    return () if data is None else _parsed(bucket, run, data)


def _parsed(bucket: Bucket, run: str, data: bytes) -> tuple[Submitted, ...]:
    key = contract.run_key(run, contract.RUN_PROGRAM)
    try:
        document = read_object(data)
        if document["format"] != FORMAT:
            raise ValueError(
                f"it has format {document['format']!r}, and this checkout reads {FORMAT}"
            )
        return tuple(_submitted(item) for item in document["submissions"])
    except (KeyError, TypeError, ValueError) as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise Refusal(
            "program-record",
            f"s3://{bucket.name}/{key} cannot be used: {said}; use the checkout that submitted the "
            "run, or another --name",
        ) from None


def add_record(bucket: Bucket, run: str, new: Submitted) -> None:
    """Add the submission that is about to be made to those of the run.

    Somebody else may submit at the same time, so the record is replaced only as it was read.
    """
    key = contract.run_key(run, contract.RUN_PROGRAM)
    for _ in range(_ATTEMPTS):
        found = bucket.read_version(key)
        earlier = () if found is None else _parsed(bucket, run, found.data)
        record = ProgramRecord(format=FORMAT, submissions=(*earlier, new))
        etag = None if found is None else found.etag
        data = json.dumps(as_document(record), indent=1).encode()
        if bucket.replace(key, data, etag=etag) is not None:
            return
    raise Refusal(
        "program-record",
        f"s3://{bucket.name}/{key} has been replaced {_ATTEMPTS} times while this submission was "
        "about to be added; submit again when nobody else does",
    )


def now() -> str:
    """Return the time of a submission."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _submitted(item: Mapping[str, Any]) -> Submitted:
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
