"""Submissions of workloads whose datasets prepare makes: looked up, and refused, at the desk."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.conftest import Desk
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
    "silent": {"num_tokens": 1_000_000},
    "mnist": {"kind": "images", "epochs": 4},
    "wiki": {"vocab_size": 32000, "num_tokens": 1_000_000},
    "split": {
        "vocab_size": 32000,
        "num_tokens": 1_000_000,
        "validation": {"fraction": 0.1, "num_tokens": 400, "documents": 3, "shards": []},
    },
}  # fmt: skip


@pytest.fixture
def ready(desk: Desk) -> Desk:
    for name, manifest in MANIFESTS.items():
        desk.put(f"datasets/{name}/manifest.json", manifest)
    desk.put("datasets/half/train-images-idx3-ubyte")
    return desk


def test_bert_and_mnist_need_no_word_about_their_datasets(ready: Desk) -> None:
    for workload in ("bert", "mnist"):
        result = ready.run("submit", workload, "--name", f"{workload}-1", "--yes")

        assert result.exit_code == 0, result.stderr
        assert len(ready.jobs(f"{workload}-1")) == 1


def test_the_plan_of_a_bert_has_no_tensor_parallelism(ready: Desk) -> None:
    result = ready.run("submit", "bert", "--name", "bert-1", "--nodes", "1", "--dry-run", "--json")

    assert '"data_parallel": 32' in result.stdout
    assert '"accumulation_steps": 32' in result.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("bert", "--dataset", "wiki"), "wiki is of kind packed, and bert trains on kind bert"),
        (("mnist", "--dataset", "long"), "long is of kind bert, and mnist trains on kind images"),
        (("llama-tiny", "--dataset", "mnist"), "mnist is of kind images, and llama-tiny trains"),
        (("bert", "--dataset", "long"), "sequences of 512 and the run --seq-len 128; submit with"),
        (("mnist", "--dataset", "digits"), "make it with `python -m jobs submit prepare --dataset"),
        (
            ("bert", "--dataset", "roomy"),
            "masked words of a sequence, at most 80 and the run --max-predictions 20; submit with",
        ),
        (("bert", "--dataset", "terse"), "manifest.json says None of num_tokens, not a whole"),
        (("llama-tiny", "--dataset", "silent"), "manifest.json says None of vocab_size, not a"),
        (
            ("mnist", "--dataset", "nope"),
            "make what mnist trains on with `python -m jobs submit prepare --dataset mnist` and "
            "submit with --dataset mnist",
        ),
        (("bert", "--dataset", "nope"), "submit prepare --dataset bert-wikicorpus` and submit wi"),
        (("llama-tiny", "--dataset", "nope"), "make it with `python -m jobs submit tokenize --da"),
        (
            ("llama-tiny", "--dataset", "wiki", "--eval-every", "5"),
            "wiki holds 0 tokens out, and --eval-every needs a sequence of --seq-len 128 at least; "
            "tokenize into another --dataset with a larger --validation-fraction, or submit with",
        ),
        (
            ("llama-tiny", "--dataset", "split", "--eval-every", "5", "--seq-len", "500"),
            "split holds 400 tokens out, and --eval-every needs a sequence of --seq-len 500",
        ),
        (("mnist", "--dataset", "half"), "write one as docs/interfaces.md describes it for kind"),
        (("mnist", "--compile"), "mnist has no graphs to compile beforehand"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_what_would_fail_on_the_nodes_is_refused(
    ready: Desk, words: tuple[str, ...], reason: str
) -> None:
    assert_refused(ready.run("submit", *words, "--name", "r", "--yes"), reason)
