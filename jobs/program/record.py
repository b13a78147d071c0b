"""`program.json`: what a run of a user's own program ran, submission by submission."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from trainium_catalogue import contract
from trainium_catalogue.typed_json import read_object
from trainium_catalogue.workloads import Value

FORMAT = 1
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One submission of a run."""

    submitted_at: str
    """Time in UTC, as in ISO 8601."""
    code: str
    """SHA-256 of the bundle."""
    script: str | None
    module: str | None
    argv: tuple[str, ...]
    """Arguments of the program, as every worker gets them."""
    parameters: Mapping[str, Value] = field(default_factory=dict)
    """Parameters that were given, of `submit` and of the workload.toml."""
    requirements: Mapping[str, Any] | None = None
    """Key and text of the requirements, if there were any."""
    num_nodes: int
    workload: str | None = None
    """Name in its workload.toml."""
    from_snapshot: str | None = None
    """The snapshot that it was told to go back to: a number, or none."""

    @property
    def shown(self) -> str:
        """The program as one would start it."""
        return f"-m {self.module}" if self.module else str(self.script)


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
        document = {"format": FORMAT, "submissions": [_document(item) for item in (*earlier, new)]}
        etag = None if found is None else found.etag
        if bucket.replace(key, json.dumps(document, indent=1).encode(), etag=etag) is not None:
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


def _document(item: Submitted) -> dict[str, Any]:
    return {**asdict(item), "argv": list(item.argv)}
