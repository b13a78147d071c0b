"""A run's fixed configuration, and where its checkpoints are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from training.storage import ObjectMissing, Objects, PreconditionFailed, StorageAccess
from training.storage.results import now_utc
from trainium_catalogue.contract import RUN_CONFIG, run_prefix
from trainium_catalogue.documents import Keywords, Timestamp, as_document, picked
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.training import resolve_values
from trainium_catalogue.typed_json import read_object, typed

_SCHEMA = 1
RANKS = "num_ranks"
"""A fact of runs that depend on the number of ranks."""
INIT_SHA256 = "init_sha256"
"""The fact of a run that identifies the weights it began with."""


class RunConfigError(ValueError):
    """A submission does not fit the run under this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    """What makes the run what it is, and what its latest submission asked for."""

    schema: Annotated[int, Keywords(const=1)]
    workload: str
    created: Timestamp
    values: Annotated[
        Mapping[str, Any],
        Keywords(additionalProperties={"type": ["string", "number", "boolean"]}),
    ]
    """Every parameter of the workload; a later submission inherits what it does not name."""
    facts: Mapping[str, Any]
    """Other facts that may not change either, such as tokenizer_sha256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """``run.json``: a run's workload, parameters and data, as its latest submission left them."""

    workload: str
    values: Mapping[str, Value]
    """Every parameter of the workload."""
    created: str
    """Start of the run, ISO 8601."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Other fixed facts, discovered rather than given: ``tokenizer_sha256``, ``eos_id``, ..."""

    @staticmethod
    def load(objects: Objects) -> RunConfig | None:
        """Load the run with root ``objects``; None before its first submission."""
        try:
            document = read_object(objects.get(RUN_CONFIG))
            if document.get("schema") != _SCHEMA:
                raise RunConfigError(
                    f"{objects.uri}/{RUN_CONFIG} was written by another version of this code; "
                    "finish the run with that version, or use another run name"
                )
            found = typed(document, RunDocument)
        except ObjectMissing:
            return None
        except RunConfigError:
            raise
        except ValueError as error:
            raise RunConfigError(
                f"{objects.uri}/{RUN_CONFIG} cannot be read: {error}; restore it, or use another "
                "run name"
            ) from None
        return RunConfig(
            workload=found.workload, values=found.values, created=found.created, facts=found.facts
        )

    def save(self, objects: Objects, confirm: Callable[[], None] = lambda: None) -> None:
        """Write ``run.json``; ``confirm`` raises unless the writer holds the run's lock."""
        document = as_document(picked(RunDocument, self, schema=_SCHEMA))
        while True:
            try:
                etag: str | None = objects.get_with_etag(RUN_CONFIG)[1]
            except ObjectMissing:
                etag = None
            confirm()
            try:
                data = json.dumps(document, indent=2).encode() + b"\n"
                objects.put(RUN_CONFIG, data, if_absent=etag is None, if_match=etag)
            except PreconditionFailed:
                continue  # the late write of a job that this one has replaced
            return

    @staticmethod
    def resolve(
        stored: RunConfig | None,
        *,
        run: str,
        workload: str,
        values: Mapping[str, Value],
        given: Mapping[str, Value],
    ) -> RunConfig:
        """Resolve a submission: its own arguments, then what the run remembers, then defaults.

        ``values`` are all parameters with defaults filled in, ``given`` those the user named.
        ``RunConfigError`` if a parameter that defines the run would change.
        """
        if stored is None:
            return RunConfig(workload=workload, values=dict(values), created=now_utc())
        try:
            resolved = resolve_values(
                run=run,
                workload=workload,
                stored_workload=stored.workload,
                stored=stored.values,
                values=values,
                given=given,
            )
        except ValueError as error:
            raise RunConfigError(str(error)) from None
        return RunConfig(
            workload=workload,
            values=resolved,
            created=stored.created,
            facts=stored.facts,
        )

    def with_facts(self, *, run: str, facts: Mapping[str, Any]) -> RunConfig:
        """Add ``facts``; ``RunConfigError`` if one of them was different before."""
        changed = [
            f"{name}={_shown(value)} (the run has {_shown(self.facts[name])})"
            for name, value in facts.items()
            if name in self.facts and self.facts[name] != value
        ]
        if changed:
            remedy = "use the dataset and the weights that the run began with"
            if changed[0].startswith(RANKS):
                remedy = "submit with the same number of nodes"
            raise RunConfigError(
                f"run {run} cannot continue with {', '.join(changed)}; {remedy}, or use another "
                "run name"
            )
        return RunConfig(
            workload=self.workload,
            values=self.values,
            created=self.created,
            facts={**self.facts, **facts},
        )


def checkpoint_root(
    storage: StorageAccess, bucket: Objects, run: str, config: RunConfig
) -> Objects:
    """Open the location of a run's checkpoints: in the bucket, or below ``checkpoint-uri``.

    The path includes the run's name either way, so that runs sharing a URI stay apart.
    """
    uri = str(config.values.get("checkpoint-uri", ""))
    if not uri:
        return bucket.at(run_prefix(run, "checkpoints"))
    return storage.open(uri).at(run)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 16 else f"{text[:12]}..."
