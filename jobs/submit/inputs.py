"""What a workload needs from the bucket: looked up, and refused, before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import Checkpoints, known_runs, read_checkpoints, read_run
from jobs.errors import Refusal
from jobs.submit.datasets import find_dataset, hint, listed
from jobs.submit.parameters import with_defaults
from trainium_catalogue import contract
from trainium_catalogue.parameters.data import CORPORA
from trainium_catalogue.parameters.training import resolve_values
from trainium_catalogue.workloads import Value, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the bucket says about a submission."""

    values: Mapping[str, Value]
    """Every parameter: as given, as the run remembers it, or its default."""
    exists: bool = False
    """The run has begun before."""
    checkpoints: Checkpoints | None = None
    dataset: Mapping[str, Any] = field(default_factory=dict)
    """Its manifest."""
    remarks: tuple[str, ...] = ()


def training_inputs(
    bucket: Bucket, workload: Workload, run: str, given: Mapping[str, Value]
) -> Inputs:
    """Check a training workload's run and dataset."""
    values = with_defaults(workload, given)
    stored = read_run(bucket, run)
    checkpoints = None
    if stored is not None:
        own = {item.name for item in workload.parameters}
        try:
            values = resolve_values(
                run=run,
                workload=workload.name,
                stored_workload=stored.workload,
                stored=stored.values,
                values=values,
                given={name: value for name, value in given.items() if name in own},
            )
        except ValueError as error:
            raise Refusal("run-changed", str(error)) from None
        checkpoints = read_checkpoints(bucket, run, values)
    name = str(values["dataset"])
    if not name:
        raise Refusal(
            "no-dataset",
            f"run {run} is new and needs --dataset, the name that tokenize gave it; "
            f"{listed('datasets', bucket.names(contract.DATASETS_PREFIX))}, "
            f"{listed('runs', known_runs(bucket))}",
        )
    return Inputs(
        values=values,
        exists=stored is not None,
        checkpoints=checkpoints,
        dataset=find_dataset(bucket, name, workload, values),
    )


def tokenize_inputs(bucket: Bucket, values: Mapping[str, Value]) -> Inputs:
    """Check that corpus and tokenizer are in the bucket, where they are named and not addressed."""
    tokenizer, corpus = str(values["tokenizer"]), str(values["input"])
    if _is_name(tokenizer) and bucket.head(contract.TOKENIZERS_PREFIX + tokenizer) is None:
        there = bucket.names(contract.TOKENIZERS_PREFIX)
        raise Refusal(
            "no-tokenizer",
            f"there is no tokenizer {tokenizer!r}: {hint('tokenizers', tokenizer, there)}; upload "
            "a *.model or tokenizer*.json with `python -m jobs upload FILE`",
        )
    if _is_name(corpus):
        _check_corpus(bucket, corpus)
    dataset = str(values["dataset"])
    done = bucket.head(f"{contract.DATASETS_PREFIX}{dataset}/{contract.DATASET_MANIFEST}")
    remark = f"dataset {dataset} is complete already: the job only checks it"
    return Inputs(values=values, remarks=(remark,) if done is not None else ())


def export_inputs(bucket: Bucket, values: Mapping[str, Value]) -> Inputs:
    """Check that the run to export has the checkpoint that is asked for."""
    run, step = str(values["run"]), int(values["step"])
    stored = read_run(bucket, run)
    if stored is None:
        raise Refusal("unknown-run", f"there is no run {run!r}: {_runs(bucket, run)}")
    checkpoints = read_checkpoints(bucket, run, stored.values)
    if not checkpoints.are_seen:
        remark = f"its checkpoints are in {checkpoints.uri}, which is not seen from here"
        return Inputs(values=values, remarks=(remark,))
    if checkpoints.newest is None:
        raise Refusal(
            "no-checkpoint",
            f"run {run} has no complete checkpoint in {checkpoints.uri}; export it when it has "
            f"saved one (`python -m jobs status {run}` says when)",
        )
    if step and step not in checkpoints.steps:
        raise Refusal(
            "no-checkpoint",
            f"--step {step}: run {run} has no complete checkpoint of that step; it has "
            f"{_steps(checkpoints)}",
        )
    chosen = step or checkpoints.newest
    return Inputs(
        values=values,
        checkpoints=checkpoints,
        remarks=(f"exports step {chosen} of run {run} to {contract.EXPORT_PREFIX}{run}/",),
    )


def _check_corpus(bucket: Bucket, name: str) -> None:
    prefix = f"{contract.CORPORA_PREFIX}{name}/"
    if not bucket.has(prefix):
        make = (
            f"`python -m jobs submit prepare --dataset {name}`"
            if name in CORPORA
            else (f"`python -m jobs upload ./{name}`")
        )
        there = bucket.names(contract.CORPORA_PREFIX)
        raise Refusal(
            "no-corpus",
            f"there is no corpus {name!r}: {hint('corpora', name, there)}; put it "
            f"there with {make}",
        )
    # Written last. A folder that somebody uploaded under such a name has no such part either.
    is_prepared = name in CORPORA and bucket.head(f"{prefix}part-00000.jsonl.gz") is not None
    if is_prepared and bucket.head(prefix + contract.DATASET_MANIFEST) is None:
        raise Refusal(
            "corpus-incomplete",
            f"corpus {name!r} is not complete: its manifest is missing; wait for its prepare job, "
            f"or submit it again: `python -m jobs submit prepare --dataset {name}`",
        )


def _runs(bucket: Bucket, run: str) -> str:
    return hint("runs", run, known_runs(bucket))


def _steps(checkpoints: Checkpoints) -> str:
    return "steps " + ", ".join(str(step) for step in checkpoints.steps)


def _is_name(value: str) -> bool:
    return not value.startswith(("s3://", "/"))
