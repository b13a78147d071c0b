"""A run: who may train under its name, and what makes it what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from training.storage import ObjectMissing, Objects, open_objects
from training.trainer.runlock import RunLock, RunLocked, RunLost
from trainium_catalogue.contract import RUN_CONFIG, run_prefix
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.training import settle_values

__all__ = ["RunConfig", "RunConfigError", "RunLock", "RunLocked", "RunLost", "checkpoint_root"]

_SCHEMA = 1
RANKS = "num_ranks"
"""A fact of runs that depend on how many ranks train them."""


class RunConfigError(ValueError):
    """What is asked for does not fit the run under this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """``run.json``: a run's workload, parameters and data, as its latest submission left them."""

    workload: str
    values: Mapping[str, Value]
    """Every parameter of the workload."""
    created: str
    """When the run began, ISO 8601."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is fixed and was found out, not given: ``tokenizer_sha256``, ``eos_id``, ..."""

    @staticmethod
    def load(objects: Objects) -> RunConfig | None:
        """The run whose root ``objects`` is; None before its first submission."""
        try:
            document = json.loads(objects.get(RUN_CONFIG))
        except ObjectMissing:
            return None
        except ValueError:
            raise RunConfigError(
                f"{objects.uri}/{RUN_CONFIG} is not JSON; restore it, or use another run name"
            ) from None
        if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
            raise RunConfigError(
                f"{objects.uri}/{RUN_CONFIG} was written by another version of this code; finish "
                "the run with that version, or use another run name"
            )
        return RunConfig(
            workload=document["workload"],
            values=document["values"],
            created=document["created"],
            facts=document["facts"],
        )

    def save(self, objects: Objects) -> None:
        """Write ``run.json``; the writer holds the run's lock."""
        document = {
            "schema": _SCHEMA,
            "workload": self.workload,
            "created": self.created,
            "values": dict(self.values),
            "facts": dict(self.facts),
        }
        objects.put(RUN_CONFIG, json.dumps(document, indent=2).encode() + b"\n")

    @staticmethod
    def settle(
        stored: RunConfig | None,
        *,
        run: str,
        workload: str,
        values: Mapping[str, Value],
        given: Mapping[str, Value],
    ) -> RunConfig:
        """What a submission means: its own words, then what the run remembers, then defaults.

        ``values`` are all parameters with defaults filled in, ``given`` those that the user named.
        ``RunConfigError`` where a parameter that makes the run what it is would change.
        """
        if stored is None:
            return RunConfig(workload=workload, values=dict(values), created=_now())
        try:
            settled = settle_values(
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
            values=settled,
            created=stored.created,
            facts=stored.facts,
        )

    def with_facts(self, *, run: str, facts: Mapping[str, Any]) -> RunConfig:
        """The same with ``facts`` remembered; ``RunConfigError`` if one of them was otherwise."""
        changed = [
            f"{name}={_shown(value)} (the run has {_shown(self.facts[name])})"
            for name, value in facts.items()
            if name in self.facts and self.facts[name] != value
        ]
        if changed:
            remedy = "use the dataset that the run began with"
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
    bucket: Objects,
    run: str,
    config: RunConfig,
    *,
    region: str | None,
    endpoint_url: str | None,
) -> Objects:
    """Where the checkpoints of a run are: its place in the bucket, or below ``checkpoint-uri``.

    The run's name is part of the path in either case, so that runs that share a URI stay apart.
    """
    uri = str(config.values.get("checkpoint-uri", ""))
    if not uri:
        return bucket.at(run_prefix(run, "checkpoints"))
    return open_objects(uri, region=region, endpoint_url=endpoint_url).at(run)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 16 else f"{text[:12]}..."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
