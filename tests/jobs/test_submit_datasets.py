"""Submissions of workloads with datasets made by prepare: lookups and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.conftest import Cli
from tests.jobs.test_refusals import assert_refused

MANIFESTS: dict[str, dict[str, Any]] = {
    "bert-wikicorpus": {
        "kind": "bert", "seq_len": 128, "max_predictions": 20, "vocab_size": 30522,
        "num_tokens": 12_800_000,
    },
    "long": {
        "kind": "bert", "seq_len": 512, "max_predictions": 80, "vocab_size": 30522,
        "num_tokens": 5_120_000,
    },
    "roomy": {
        "kind": "bert", "seq_len": 128, "max_predictions": 80, "vocab_size": 30522,
        "num_tokens": 5_120_000,
    },
    "terse": {"kind": "bert", "vocab_size": 30522},
    "mnist": {"kind": "images", "epochs": 4},
    "wiki": {"vocab_size": 32000, "num_tokens": 1_000_000},
    "split": {
        "vocab_size": 32000,
        "num_tokens": 1_000_000,
        "validation": {"fraction": 0.1, "num_tokens": 400, "documents": 3, "shards": []},
    },
}  # fmt: skip


@pytest.fixture
def ready(cli: Cli) -> Cli:
    for name, manifest in MANIFESTS.items():
        cli.put(f"datasets/{name}/manifest.json", manifest)
    cli.put("datasets/half/train-images-idx3-ubyte")
    return cli


def test_bert_and_mnist_have_default_datasets(ready: Cli) -> None:
    for workload in ("bert", "mnist"):
        result = ready.run("submit", workload, "--name", f"{workload}-1", "--yes")

        assert result.exit_code == 0, result.stderr
        assert len(ready.jobs(f"{workload}-1")) == 1


def test_bert_plan_has_no_tensor_parallelism(ready: Cli) -> None:
    result = ready.run("submit", "bert", "--name", "bert-1", "--nodes", "1", "--dry-run", "--json")

    assert '"data_parallel": 32' in result.stdout
    assert '"accumulation_steps": 32' in result.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("bert", "--dataset", "wiki"), "wiki is of kind packed, but bert trains on kind bert"),
        (("mnist", "--dataset", "long"), "long is of kind bert, but mnist trains on kind images"),
        (("llama-tiny", "--dataset", "mnist"), "mnist is of kind images, but llama-tiny trains"),
        (
            ("bert", "--dataset", "long"),
            "a sequence length of 512, but the run has --seq-len 128; submit with",
        ),
        (
            ("mnist", "--dataset", "digits"),
            "create it with `python -m jobs submit prepare --dataset",
        ),
        (
            ("bert", "--dataset", "roomy"),
            "a masked-word limit of 80, but the run has --max-predictions 20; submit with",
        ),
        (("bert", "--dataset", "terse"), "num_tokens in its manifest.json is None, not an integer"),
        (
            ("mnist", "--dataset", "nope"),
            "create a dataset for mnist with `python -m jobs submit prepare --dataset mnist` and "
            "submit with --dataset mnist",
        ),
        (
            ("llama-tiny", "--dataset", "nope"),
            "create it with `python -m jobs submit tokenize --da",
        ),
        (
            ("llama-tiny", "--dataset", "split", "--eval-every", "5", "--seq-len", "500"),
            "split has 400 held-out tokens, but --eval-every needs at least one sequence of "
            "--seq-len 500; tokenize into another --dataset with a larger --validation-fraction, "
            "or submit with",
        ),
        (("mnist", "--dataset", "half"), "write one for kind"),
        (("mnist", "--compile"), "mnist has no graphs to compile in advance"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_submission_that_would_fail_on_nodes_is_refused(
    ready: Cli, words: tuple[str, ...], reason: str
) -> None:
    assert_refused(ready.run("submit", *words, "--name", "r", "--yes"), reason)
