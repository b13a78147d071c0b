"""Checks of a workload's inputs in the bucket before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import CheckpointListing, known_runs, read_checkpoints, read_run
from jobs.errors import Refusal
from trainium_catalogue import contract
from trainium_catalogue.models.in_bucket import (
    MODEL_CONFIG,
    WEIGHTS,
    WEIGHTS_INDEX,
    differing_sizes,
    model_prefix,
)
from trainium_catalogue.models.presets import MODELS, PRESETS, ModelShape
from trainium_catalogue.parameters.command_line import ParameterValues
from trainium_catalogue.parameters.data import CORPORA, DATASETS
from trainium_catalogue.parameters.training import resolve_values
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.workloads import Value, Workload

PACKED = "packed"
"""Kind of datasets created by tokenize; prepare creates all others."""
_SAME = {"seq-len": "seq_len", "max-predictions": "max_predictions"}
"""Dataset fields that must equal a parameter, by parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A training run's data in the bucket."""

    values: Mapping[str, Value]
    """All parameters: given, stored with the run, or default."""
    exists: bool = False
    """True if the run has started before."""
    checkpoints: CheckpointListing | None = None
    dataset: Mapping[str, Any] = field(default_factory=dict)
    """The dataset's manifest."""


def training_inputs(bucket: Bucket, run: str, requested: ParameterValues) -> Inputs:
    """Read the run and the dataset of a training workload; refuse those that do not fit."""
    workload, values = requested.workload, requested.own
    stored = read_run(bucket, run)
    checkpoints = None
    if stored is None and bucket.head(contract.run_key(run, contract.RUN_PROGRAM)) is not None:
        raise Refusal(
            "run-changed",
            f"run {run} is a program of your own, and {workload.name} cannot resume from its "
            "snapshots; use another --name",
        )
    if stored is not None:
        try:
            values = resolve_values(
                run=run,
                workload=workload.name,
                stored_workload=stored.workload,
                stored=stored.values,
                values=values,
                given=requested.own_given,
            )
        except ValueError as error:
            raise Refusal("run-changed", str(error)) from None
        checkpoints = read_checkpoints(bucket, run, values)
    if values.get("model") == "":
        raise Refusal(
            "no-model",
            f"run {run} is new and needs --model, one of {', '.join(MODELS)}; "
            f"{listed('runs', known_runs(bucket))}",
        )
    is_start = checkpoints is None or not checkpoints.newest
    if values.get("init-from") and (is_start or values.get("lora-rank")):
        check_model(bucket, workload, values)
    name = str(values["dataset"])
    if not name:
        raise Refusal(
            "no-dataset",
            f"run {run} is new and needs --dataset, the name given to tokenize; "
            f"{listed('datasets', bucket.names(contract.DATASETS_PREFIX))}; "
            f"{listed('runs', known_runs(bucket))}",
        )
    return Inputs(
        values=values,
        exists=stored is not None,
        checkpoints=checkpoints,
        dataset=find_dataset(bucket, name, workload, values),
    )


def check_model(bucket: Bucket, workload: Workload, values: Mapping[str, Value]) -> None:
    """Refuse an --init-from that is not in the bucket, or differs in family or size.

    The job's main node compares the whole config.json and every tensor before training.
    """
    value = str(values["init-from"])
    prefix = model_prefix(value)
    if prefix is None:
        return  # not visible from this machine
    sizes = {item.key.removeprefix(prefix): item.size for item in bucket.objects(prefix)}
    if not sizes:
        models = bucket.names(contract.MODELS_PREFIX)
        exports = [f"{contract.EXPORT_PREFIX}{run}" for run in bucket.names(contract.EXPORT_PREFIX)]
        raise Refusal(
            "no-model",
            f"there is no model {value!r} ({hint('models', value, models + exports)}); upload one "
            "with `python -m jobs upload FOLDER`",
        )
    document = bucket.document(prefix + MODEL_CONFIG) or {}
    files = {WEIGHTS}
    if WEIGHTS not in sizes and (index := bucket.document(prefix + WEIGHTS_INDEX)) is not None:
        # The job reports an invalid index.
        named = index.get("weight_map")
        files = {str(file) for file in named.values()} if isinstance(named, Mapping) else set()
    missing = sorted({MODEL_CONFIG, *files} - sizes.keys())
    if missing:
        raise Refusal(
            "model-incomplete",
            f"model {value!r} lacks {', '.join(missing[:3])}; upload its folder again with `python "
            "-m jobs upload FOLDER`, which resumes",
        )
    shape = (MODELS.get(str(values.get("model"))) or PRESETS[workload.name]).shape
    family = document.get("model_type")
    if isinstance(shape, ModelShape) and isinstance(family, str) and family != shape.family:
        raise Refusal(
            "model-family",
            f"model {value!r} is from a different family: model_type {family} (the run has "
            f"{shape.family}); train a model of that family (`submit pretrain --model` accepts "
            f"{', '.join(MODELS)}), or use another --init-from",
        )
    mismatches = differing_sizes(document, values)
    if mismatches:
        differing = ", ".join(
            f"--{name} {size} (the run has {values[name]})" for name, size in mismatches.items()
        )
        raise Refusal(
            "model-size",
            f"model {value!r} has different sizes: {differing}; submit with these sizes, with the "
            "workload for this model, or with another --init-from",
        )


def tokenize_inputs(bucket: Bucket, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Refuse a corpus or tokenizer that is not in the bucket; return remarks for the plan."""
    tokenizer, corpus = str(values["tokenizer"]), str(values["input"])
    if _is_name(tokenizer) and bucket.head(contract.TOKENIZERS_PREFIX + tokenizer) is None:
        names = bucket.names(contract.TOKENIZERS_PREFIX)
        raise Refusal(
            "no-tokenizer",
            f"there is no tokenizer {tokenizer!r} ({hint('tokenizers', tokenizer, names)}); upload "
            "a *.model or tokenizer*.json with `python -m jobs upload FILE`",
        )
    if _is_name(corpus):
        _check_corpus(bucket, corpus)
    dataset = str(values["dataset"])
    done = bucket.head(f"{contract.DATASETS_PREFIX}{dataset}/{contract.DATASET_MANIFEST}")
    remark = f"dataset {dataset} is already complete: the job only verifies it"
    return (remark,) if done is not None else ()


def export_inputs(bucket: Bucket, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Refuse a run without the requested checkpoint; return remarks for the plan."""
    run, step = str(values["run"]), int(values["step"])
    stored = read_run(bucket, run)
    if stored is None and bucket.has(f"{contract.RUNS_PREFIX}{run}/"):
        raise Refusal(
            "no-checkpoint",
            f"run {run} has no checkpoint that export can read; download the files of a "
            f"program of your own with `python -m jobs download {run} --to FOLDER`",
        )
    if stored is None:
        runs = hint("runs", run, known_runs(bucket))
        raise Refusal("unknown-run", f"there is no run {run!r}: {runs}")
    checkpoints = read_checkpoints(bucket, run, stored.values)
    if not checkpoints.are_seen:
        return (f"its checkpoints are in {checkpoints.uri}, which the CLI cannot list",)
    if checkpoints.newest is None:
        raise Refusal(
            "no-checkpoint",
            f"run {run} has no complete checkpoint in {checkpoints.uri}; export it once it has "
            f"saved one (see `python -m jobs status {run}`)",
        )
    if step and step not in checkpoints.steps:
        raise Refusal(
            "no-checkpoint",
            f"--step {step}: run {run} has no complete checkpoint of that step; choose one of "
            f"steps {', '.join(map(str, checkpoints.steps))}",
        )
    chosen = step or checkpoints.newest
    return (f"exports step {chosen} of run {run} to {contract.EXPORT_PREFIX}{run}/",)


def _check_corpus(bucket: Bucket, name: str) -> None:
    prefix = f"{contract.CORPORA_PREFIX}{name}/"
    if not bucket.has(prefix):
        make = (
            f"`python -m jobs submit prepare --dataset {name}`"
            if name in CORPORA
            else f"`python -m jobs upload ./{name}`"
        )
        names = bucket.names(contract.CORPORA_PREFIX)
        raise Refusal(
            "no-corpus",
            f"there is no corpus {name!r} ({hint('corpora', name, names)}); create it with {make}",
        )
    # `prepare` writes the manifest last. A folder that a user uploaded has neither of the two.
    is_prepared = name in CORPORA and bucket.head(f"{prefix}part-00000.jsonl.gz") is not None
    if is_prepared and bucket.head(prefix + contract.DATASET_MANIFEST) is None:
        raise Refusal(
            "corpus-incomplete",
            f"corpus {name!r} is incomplete: its manifest is missing; wait for its prepare job, or "
            f"submit it again: `python -m jobs submit prepare --dataset {name}`",
        )


def _is_name(value: str) -> bool:
    return not value.startswith(("s3://", "/"))


def find_dataset(
    bucket: Bucket, name: str, workload: Workload, values: Mapping[str, Value]
) -> dict[str, Any]:
    """Return the manifest of a dataset; refuse one that does not fit workload and parameters."""
    prefix = f"{contract.DATASETS_PREFIX}{name}/"
    manifest = bucket.document(prefix + contract.DATASET_MANIFEST)
    if manifest is None:
        raise _missing(bucket, name, workload)
    kind = str(manifest.get("kind", PACKED))
    if kind != workload.dataset_kind:
        raise Refusal(
            "dataset-kind",
            f"dataset {name} is of kind {kind}, but {workload.name} trains on kind "
            f"{workload.dataset_kind}; submit with another --dataset",
        )
    if workload.preset is not None:
        _check_fit(name, manifest, values)
    return manifest


def _missing(bucket: Bucket, name: str, workload: Workload) -> Refusal:
    is_packed = workload.dataset_kind == PACKED
    is_known = name in DATASETS
    if bucket.has(f"{contract.DATASETS_PREFIX}{name}/"):
        maker = "prepare" if is_known else "tokenize"
        remedy = f"wait for its {maker} job, or submit it again to resume"
        if not is_known and not is_packed:
            remedy = f"write one for kind {workload.dataset_kind} as in docs/interfaces.md"
        return Refusal(
            "dataset-incomplete",
            f"dataset {name!r} is incomplete: its manifest is missing; {remedy}",
        )
    names = bucket.names(contract.DATASETS_PREFIX)
    make, then = f"tokenize --dataset {name} --input CORPUS --tokenizer TOKENIZER", ""
    if is_known or not is_packed:
        (own,) = (item.default for item in workload.parameters if item.name == "dataset")
        chosen = name if is_known else own
        make = f"prepare --dataset {chosen}"
        then = "" if is_known else f" and submit with --dataset {chosen}"
    which = "it" if not then else f"a dataset for {workload.name}"
    return Refusal(
        "no-dataset",
        f"there is no dataset {name!r} ({hint('datasets', name, names)}); create {which} with "
        f"`python -m jobs submit {make}`{then}",
    )


def _check_fit(name: str, manifest: Mapping[str, Any], values: Mapping[str, Value]) -> None:
    vocab_size = _fact(name, manifest, "vocab_size")
    num_tokens = _fact(name, manifest, "num_tokens")
    if vocab_size > int(values["vocab-size"]):
        raise Refusal(
            "dataset-vocabulary",
            f"dataset {name} has token IDs up to {vocab_size - 1:,}, but the model's vocabulary "
            f"has only {int(values['vocab-size']):,} tokens; submit with --vocab-size "
            f"{vocab_size}, or tokenize with the model's own tokenizer",
        )
    has_responses = manifest.get("kind", PACKED) == PACKED and bool(manifest.get("seq_len"))
    if has_responses != bool(values.get("responses", False)):
        raise Refusal(
            "dataset-responses",
            f"dataset {name} has prompts and responses; submit with --responses"
            if has_responses
            else f"dataset {name} is text, but --responses needs prompts and responses; tokenize "
            "them with --response-seq-len, or submit without --responses",
        )
    for parameter, fact in _SAME.items():
        # Packed tokens can be cut to any length; BERT's shards have a fixed one.
        if fact not in manifest and manifest.get("kind", PACKED) == PACKED:
            continue
        if parameter in values and (has := _fact(name, manifest, fact)) != values[parameter]:
            what = "a sequence length of" if fact == "seq_len" else "a masked-word limit of"
            raise Refusal(
                "dataset-sequences",
                f"dataset {name} has {what} {has}, but the run has --{parameter} "
                f"{values[parameter]}; submit with --{parameter} {has}",
            )
    if values.get("eval-every"):
        _check_validation(name, manifest, seq_len=int(values["seq-len"]))
    # The last label of text is the first token of the next sequence.
    if num_tokens < int(values["seq-len"]) + (not has_responses):
        raise Refusal(
            "dataset-too-small",
            f"dataset {name} has {num_tokens:,} tokens, too few for one sequence of "
            f"--seq-len {values['seq-len']}; use more text or shorter sequences",
        )


def _check_validation(name: str, manifest: Mapping[str, Any], *, seq_len: int) -> None:
    split = manifest.get("validation")
    held_out = _fact(name, split, "num_tokens") if isinstance(split, Mapping) else 0
    if held_out < seq_len + (not manifest.get("seq_len")):
        raise Refusal(
            "dataset-no-validation",
            f"dataset {name} has {held_out:,} held-out tokens, but --eval-every needs at least one "
            f"sequence of --seq-len {seq_len}; tokenize into another --dataset with a larger "
            "--validation-fraction, or submit with --eval-every 0",
        )


def _fact(name: str, manifest: Mapping[str, Any], fact: str) -> int:
    value = manifest.get(fact)
    if not isinstance(value, int):
        raise Refusal(
            "dataset-manifest",
            f"dataset {name}: {fact} in its {contract.DATASET_MANIFEST} is {value!r}, not an "
            "integer; create the dataset again, or write the manifest as in docs/interfaces.md",
        )
    return value


def hint(what: str, name: str, names: list[str]) -> str:
    """Suggest the name that was probably meant, or list them all; ``what`` is a plural noun."""
    if not names:
        return f"the bucket has no {what}"
    meant = did_you_mean(name, names)
    return meant if meant.startswith("did you mean") else listed(what, names)


def listed(what: str, names: list[str]) -> str:
    """List all existing names; ``what`` is a plural noun."""
    return f"{what} in the bucket: {', '.join(names)}" if names else f"the bucket has no {what}"
