"""A run's fixed configuration, and the location of its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from training.storage import ObjectMissing, Objects, PreconditionFailed, StorageAccess
from training.storage.results import now_utc
from trainium_catalogue.contract import RUN_CONFIG, run_prefix
from trainium_catalogue.documents import Keywords, Timestamp, as_document
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.training import resolve_values
from trainium_catalogue.typed_json import read_object, typed

RANKS = "num_ranks"
"""Fact of runs whose results depend on the number of ranks."""
INIT_SHA256 = "init_sha256"
"""Fact that identifies the pretrained weights that a run started from."""


class RunConfigError(ValueError):
    """The submission is incompatible with the existing run of this name, or run.json is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The run's fixed configuration, and the parameters of its latest submission."""

    schema: Annotated[int, Keywords(const=1)] = 1
    workload: str
    created: Timestamp
    values: Annotated[
        Mapping[str, Any],
        Keywords(additionalProperties={"type": ["string", "number", "boolean"]}),
    ]
    """Every parameter of the workload; a later submission inherits those that it does not set."""
    facts: Mapping[str, Any]
    """Other immutable facts, such as tokenizer_sha256."""

    @staticmethod
    def load(objects: Objects) -> RunConfig | None:
        """Load the run with root ``objects``; None before its first submission."""
        try:
            document = read_object(objects.get(RUN_CONFIG))
            if document.get("schema") != 1:
                raise RunConfigError(
                    f"{objects.uri}/{RUN_CONFIG} was written by another version of this code; "
                    "finish the run with that version, or use another run name"
                )
            return typed(document, RunConfig)
        except ObjectMissing:
            return None
        except RunConfigError:
            raise
        except ValueError as error:
            raise RunConfigError(
                f"{objects.uri}/{RUN_CONFIG} cannot be read: {error}; restore it, or use another "
                "run name"
            ) from None

    def save(self, objects: Objects, confirm: Callable[[], None] = lambda: None) -> None:
        """Write ``run.json``; ``confirm`` raises unless the writer holds the run's lock."""
        data = json.dumps(as_document(self), indent=2).encode() + b"\n"
        while True:
            try:
                etag: str | None = objects.get_with_etag(RUN_CONFIG)[1]
            except ObjectMissing:
                etag = None
            confirm()
            try:
                objects.put(RUN_CONFIG, data, if_absent=etag is None, if_match=etag)
            except PreconditionFailed:
                continue  # a late write by a job that this one replaced
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
        """Resolve a submission: its own arguments, then the run's stored values, then defaults.

        ``values`` are all parameters with defaults filled in, ``given`` the ones set by the user.
        Raises ``RunConfigError`` if a parameter that defines the run would change.
        """
        if stored is None:
            return RunConfig(workload=workload, values=dict(values), created=now_utc(), facts={})
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
        return replace(stored, workload=workload, values=resolved)

    def with_facts(self, *, run: str, facts: Mapping[str, Any]) -> RunConfig:
        """Add ``facts``; raise ``RunConfigError`` if any has changed."""
        changed = [
            f"{name}={_abbreviate(value)} (the run has {_abbreviate(self.facts[name])})"
            for name, value in facts.items()
            if name in self.facts and self.facts[name] != value
        ]
        if changed:
            remedy = "use the dataset and the weights that the run started with"
            if changed[0].startswith(RANKS):
                remedy = "submit with the same number of nodes"
            raise RunConfigError(
                f"run {run} cannot continue with {', '.join(changed)}; {remedy}, or use another "
                "run name"
            )
        return replace(self, facts={**self.facts, **facts})


def checkpoint_root(
    storage: StorageAccess, bucket: Objects, run: str, config: RunConfig
) -> Objects:
    """Open the location of a run's checkpoints: in the bucket, or below ``checkpoint-uri``.

    The path always includes the run's name, so that runs with the same URI do not collide.
    """
    uri = str(config.values.get("checkpoint-uri", ""))
    if not uri:
        return bucket.at(run_prefix(run, "checkpoints"))
    return storage.open(uri).at(run)


def _abbreviate(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 16 else f"{text[:12]}..."
