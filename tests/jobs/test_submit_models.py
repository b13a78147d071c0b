"""`jobs submit pretrain --model`: defaults, refusals and stored parameters of a run."""

from __future__ import annotations

import json

import pytest

from tests.jobs.conftest import Cli
from tests.jobs.programs import node_overrides, store_run
from tests.jobs.test_commands import checked
from tests.jobs.test_refusals import assert_refused
from trainium_catalogue.models.presets import MODELS
from trainium_catalogue.workloads import WORKLOADS

TRAIN = ("submit", "pretrain", "--name", "my-run", "--yes")
QWEN = (*TRAIN, "--model", "qwen3-4b")


@pytest.fixture(name="ready")
def _ready(cli: Cli) -> Cli:
    """A deployment with the dataset `wiki`, with ids of Qwen's tokenizer."""
    cli.put("datasets/wiki/manifest.json", {"vocab_size": 151669, "num_tokens": 10**9})
    return cli


def existing_run(cli: Cli, model: str) -> None:
    workload = WORKLOADS["pretrain"].of_model({"model": model})
    store_run(cli, workload, 100, values={"lr": 0.002})


def test_model_sets_nodes_parallelism_and_plan(ready: Cli) -> None:
    result = ready.run(*QWEN, "--dataset", "wiki")

    assert result.exit_code == 0, result.stderr
    assert "model: qwen3-4b, 4,022,468,096 parameters, checkpoints of 48.3 GB" in result.stderr
    assert "ranks: 64 = tensor parallel 4 x data parallel 16" in result.stderr
    assert "1,024 sequences of 4,096" in result.stderr


def test_nodes_get_model_and_explicit_options(ready: Cli) -> None:
    result = ready.run(*QWEN, "--dataset", "wiki", "--lr", "1e-3", "--dry-run")

    payload = json.loads(result.stdout)
    assert payload["nodeOverrides"]["numNodes"] == MODELS["qwen3-4b"].default_nodes == 2
    assert node_overrides(payload)["command"][3:] == [
        "pretrain", "--model", "qwen3-4b", "--dataset", "wiki", "--lr", "0.001",
    ]  # fmt: skip


def test_new_run_without_model_is_refused(ready: Cli) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki")

    assert_refused(result, "run my-run is new and needs --model, one of llama3.1-8b", "qwen3-8b")
    assert ready.jobs("my-run") == []


def test_unknown_model_is_refused(ready: Cli) -> None:
    result = ready.run(*TRAIN, "--model", "llama2-7b", "--dataset", "wiki")

    assert_refused(
        result, "--model=llama2-7b is not valid; it must be one of llama3.1-8b, llama3.1-70b"
    )


def test_run_remembers_model_and_parameters(ready: Cli) -> None:
    existing_run(ready, "qwen3-4b")
    result = ready.run(*TRAIN, "--nodes", "2", "--compile", "--dry-run", "--json")

    document = checked(result, "submit")
    assert document["plan"]["num_parameters"] == 4_022_468_096
    assert document["plan"]["continues_from_step"] == 100
    result = ready.run(*TRAIN, "--nodes", "2", "--compile", "--dry-run")
    first, second = json.loads(result.stdout)
    compiled = node_overrides(first)["command"]
    assert compiled[compiled.index("--model") + 1] == "qwen3-4b"
    assert compiled[compiled.index("--head-dim") + 1] == "128"
    assert "--model" not in node_overrides(second)["command"]


def test_resumed_run_uses_node_count_of_its_model(ready: Cli) -> None:
    existing_run(ready, "qwen3-8b")

    payload = json.loads(ready.run(*TRAIN, "--dry-run").stdout)
    assert payload["nodeOverrides"]["numNodes"] == MODELS["qwen3-8b"].default_nodes == 4
    payload = json.loads(ready.run(*TRAIN, "--nodes", "2", "--dry-run").stdout)
    assert payload["nodeOverrides"]["numNodes"] == 2


def test_run_keeps_its_model(ready: Cli) -> None:
    existing_run(ready, "qwen3-8b")

    assert_refused(ready.run(*QWEN), "cannot continue with model=qwen3-4b (the run has qwen3-8b)")


def test_dataset_with_larger_vocabulary_than_model_is_refused(ready: Cli) -> None:
    result = ready.run(*TRAIN, "--model", "llama3.2-1b", "--dataset", "wiki")

    assert_refused(
        result, "wiki has token IDs up to 151,668, but the model's vocabulary has only 128,256"
    )


def test_sequence_longer_than_model_positions_is_refused(ready: Cli) -> None:
    result = ready.run(*QWEN, "--dataset", "wiki", "--seq-len", "65536")

    assert_refused(result, "--seq-len=65536 is more than the 32,768 positions of the model")


def test_help_shows_model_defaults(cli: Cli) -> None:
    general = cli.run("submit", "pretrain", "--help").stdout
    of_model = cli.run("submit", "pretrain", "--model", "qwen3-4b", "--help").stdout

    assert "the model's" in general
    assert "the model's" not in of_model and "9728" in of_model
