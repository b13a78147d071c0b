"""A training run's files in the bucket: settings, progress and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.bucket.objects import Bucket
from trainium_catalogue import contract
from trainium_catalogue.workloads import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """Contents of ``run.json``."""

    workload: str
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointListing:
    """The complete checkpoints of a run."""

    uri: str
    steps: tuple[int, ...]
    """Steps, oldest to newest."""
    are_seen: bool = True
    """False if they are in a folder on the nodes, which the CLI cannot list."""

    @property
    def newest(self) -> int | None:
        """Step of the newest checkpoint; None if there is none."""
        return self.steps[-1] if self.steps else None


def read_run(bucket: Bucket, run: str) -> TrainingRun | None:
    """Read the run of that name; None before its first job starts."""
    document = bucket.document(contract.run_key(run, contract.RUN_CONFIG))
    if document is None or "workload" not in document:
        return None
    return TrainingRun(workload=document["workload"], values=document.get("values", {}))


def read_checkpoints(bucket: Bucket, run: str, values: Mapping[str, Any]) -> CheckpointListing:
    """List a run's complete checkpoints, wherever its ``checkpoint-uri`` puts them."""
    uri = str(values.get("checkpoint-uri", ""))
    where, prefix = bucket, contract.run_prefix(run, "checkpoints")
    if uri.startswith("/"):
        return CheckpointListing(uri=f"{uri.rstrip('/')}/{run}", steps=(), are_seen=False)
    if uri:
        name, _, path = uri.removeprefix("s3://").partition("/")
        prefix = "/".join([part for part in path.split("/") if part] + [run]) + "/"
        where = Bucket(client=bucket.client, name=name)
    steps = [
        step
        for name in where.names(prefix)
        if (step := _step(name)) is not None
        and (marker := where.head(f"{prefix}{name}/{contract.CHECKPOINT_MARKER}")) is not None
        and marker["ContentLength"] != contract.WITHDRAWN_BYTES
    ]
    return CheckpointListing(uri=f"s3://{where.name}/{prefix}", steps=tuple(sorted(steps)))


def read_status(bucket: Bucket, run: str) -> dict[str, Any] | None:
    """Read ``results/status.json``, the training progress.

    A resumed attempt reports no checkpoint until it has saved one; until then,
    ``last_checkpoint_step`` is the newest complete checkpoint, without a time.
    """
    status = bucket.document(contract.run_key(run, contract.RUN_STATUS))
    if status is None or status.get("last_checkpoint_step") is not None:
        return status
    if "kind" in status:  # a program, which has snapshots instead
        return status
    stored = read_run(bucket, run)
    if stored is None:
        return status
    try:
        step = read_checkpoints(bucket, run, stored.values).newest
    except Exception:  # best effort: maybe only the nodes can read their bucket
        return status
    return {**status, "last_checkpoint_step": step}


def known_runs(bucket: Bucket) -> list[str]:
    """List the names below ``runs/``."""
    return bucket.names(contract.RUNS_PREFIX)


def _step(name: str) -> int | None:
    _, _, digits = name.partition("step-")
    step = int(digits) if digits.isdigit() else None
    return step if step is not None and contract.checkpoint_name(step) == name else None
