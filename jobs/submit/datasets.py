"""The dataset of a training: looked up, and refused, before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from trainium_catalogue import contract
from trainium_catalogue.parameters.data import DATASETS
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.workloads import Value, Workload

PACKED = "packed"
"""Kind of the datasets that tokenize makes; the others come from prepare."""
_SAME = {"seq-len": "seq_len", "max-predictions": "max_predictions"}
"""Parameter to what the dataset says, where they have to be equal."""


def find_dataset(
    bucket: Bucket, name: str, workload: Workload, values: Mapping[str, Value]
) -> dict[str, Any]:
    """Manifest of a dataset that the workload can train on with these parameters; or refuse."""
    prefix = f"{contract.DATASETS_PREFIX}{name}/"
    manifest = bucket.document(prefix + contract.DATASET_MANIFEST)
    if manifest is None:
        raise _missing(bucket, name, workload)
    kind = str(manifest.get("kind", PACKED))
    if kind != workload.dataset_kind:
        raise Refusal(
            "dataset-kind",
            f"dataset {name} is of kind {kind}, and {workload.name} trains on kind "
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
        remedy = f"wait for its {maker} job, or submit that again, it goes on where it ended"
        if not is_known and not is_packed:
            remedy = (
                f"write one as docs/interfaces.md describes it for kind {workload.dataset_kind}"
            )
        return Refusal(
            "dataset-incomplete",
            f"dataset {name!r} is not complete: its manifest is missing; {remedy}",
        )
    there = bucket.names(contract.DATASETS_PREFIX)
    make, then = f"tokenize --dataset {name} --input CORPUS --tokenizer TOKENIZER", ""
    if is_known or not is_packed:
        (own,) = (item.default for item in workload.parameters if item.name == "dataset")
        chosen = name if is_known else own
        make = f"prepare --dataset {chosen}"
        then = "" if is_known else f" and submit with --dataset {chosen}"
    which = "it" if not then else f"what {workload.name} trains on"
    return Refusal(
        "no-dataset",
        f"there is no dataset {name!r}: {hint('datasets', name, there)}; make {which} with "
        f"`python -m jobs submit {make}`{then}",
    )


def _check_fit(name: str, manifest: Mapping[str, Any], values: Mapping[str, Value]) -> None:
    vocab_size = _fact(name, manifest, "vocab_size")
    num_tokens = _fact(name, manifest, "num_tokens")
    if vocab_size > int(values["vocab-size"]):
        raise Refusal(
            "dataset-vocabulary",
            f"dataset {name} has ids up to {vocab_size - 1} and the model's vocabulary only "
            f"{values['vocab-size']}; submit with --vocab-size {vocab_size}, or tokenize with the "
            "model's own tokenizer",
        )
    for parameter, fact in _SAME.items():
        # Packed tokens are cut to any length; the shards of BERT are made for one.
        if fact not in manifest and manifest.get("kind", PACKED) == PACKED:
            continue
        if parameter in values and (has := _fact(name, manifest, fact)) != values[parameter]:
            what = "sequences of" if fact == "seq_len" else "masked words of a sequence, at most"
            raise Refusal(
                "dataset-sequences",
                f"dataset {name} has {what} {has} and the run --{parameter} {values[parameter]}; "
                f"submit with --{parameter} {has}",
            )
    if values.get("eval-every"):
        _check_validation(name, manifest, seq_len=int(values["seq-len"]))
    if num_tokens <= int(values["seq-len"]):
        raise Refusal(
            "dataset-too-small",
            f"dataset {name} has {num_tokens:,} tokens, less than one sequence of "
            f"--seq-len {values['seq-len']}; use more text or shorter sequences",
        )


def _check_validation(name: str, manifest: Mapping[str, Any], *, seq_len: int) -> None:
    split = manifest.get("validation")
    held_out = _fact(name, split, "num_tokens") if isinstance(split, Mapping) else 0
    if held_out <= seq_len:
        raise Refusal(
            "dataset-no-validation",
            f"dataset {name} holds {held_out:,} tokens out, and --eval-every needs a sequence of "
            f"--seq-len {seq_len} at least; tokenize into another --dataset with a larger "
            "--validation-fraction, or submit with --eval-every 0",
        )


def _fact(name: str, manifest: Mapping[str, Any], fact: str) -> int:
    found = manifest.get(fact)
    if not isinstance(found, int):
        raise Refusal(
            "dataset-manifest",
            f"dataset {name}: its {contract.DATASET_MANIFEST} says {found!r} of {fact}, not a "
            "whole number; make the dataset again, or write what docs/interfaces.md describes",
        )
    return found


def hint(what: str, name: str, there: list[str]) -> str:
    """The name that was probably meant, or all that there are; ``what`` is their plural."""
    if not there:
        return f"the bucket has no {what}"
    meant = did_you_mean(name, there)
    return meant if meant.startswith("did you mean") else listed(what, there)


def listed(what: str, there: list[str]) -> str:
    """All names that there are; ``what`` is their plural."""
    return f"{what} in the bucket: {', '.join(there)}" if there else f"the bucket has no {what}"
