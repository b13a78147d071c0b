"""Models: uploaded, and validated before a job starts from one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.conftest import Cli
from tests.jobs.test_commands import checked
from tests.jobs.test_refusals import assert_refused
from tests.jobs.test_submit_training import command, existing_run, payloads
from training.models.llama.huggingface import decoder_config
from trainium_catalogue.models.in_bucket import workload_of
from trainium_catalogue.models.presets import LLAMA_PRESETS, MODELS, ModelShape

TRAIN = ("submit", "llama2-7b", "--nodes", "4", "--name", "my-run", "--yes", "--dataset", "wiki")
SHAPE = LLAMA_PRESETS["llama2-7b"].shape
CONFIG = {
    "model_type": "llama",
    "vocab_size": SHAPE.vocab_size,
    "hidden_size": SHAPE.hidden_size,
    "intermediate_size": SHAPE.intermediate_size,
    "num_hidden_layers": SHAPE.num_hidden_layers,
    # Llama-2-7B's own config omits the number of key-value heads.
    "num_attention_heads": SHAPE.num_attention_heads,
}
SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LLAMA_31 = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "rope_theta": 500000.0, "rope_scaling": SCALING,
}  # fmt: skip
INDEX = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


@pytest.fixture
def ready(cli: Cli) -> Cli:
    """A deployment with a dataset and a model."""
    cli.put("datasets/wiki/manifest.json", {"vocab_size": 32000, "num_tokens": 1_000_000_000})
    cli.put("models/llama/config.json", CONFIG)
    cli.put("models/llama/model.safetensors.index.json", INDEX)
    cli.put("models/llama/model-1.safetensors")
    cli.put("models/llama/model-2.safetensors")
    return cli


def test_missing_model_is_refused_with_existing_ones(ready: Cli) -> None:
    ready.put("export/first/config.json", CONFIG)

    assert_refused(
        ready.run(*TRAIN, "--init-from", "nothing"),
        "there is no model 'nothing' (models in the bucket: llama, export/first)",
        "python -m jobs upload FOLDER",
    )
    assert_refused(ready.run(*TRAIN, "--init-from", "lama"), "did you mean 'llama'?")


@pytest.mark.parametrize("key", ["config.json", "model-2.safetensors"])
def test_incomplete_model_is_refused(ready: Cli, key: str) -> None:
    ready.client("s3").delete_object(Bucket="bucket", Key=f"models/llama/{key}")

    assert_refused(
        ready.run(*TRAIN, "--init-from", "llama"),
        f"model 'llama' lacks {key}; upload its folder again",
    )


@pytest.mark.parametrize(
    ("index", "exit_code"),
    [({"weight_map": ["model-1.safetensors"]}, 0), ({"weight_map": {"a": {}}}, 2), ({}, 0)],
)
def test_malformed_index_does_not_crash_submission(
    ready: Cli, index: dict[str, object], exit_code: int
) -> None:
    ready.put("models/llama/model.safetensors.index.json", index)

    assert ready.run(*TRAIN, "--init-from", "llama", "--dry-run").exit_code == exit_code


def test_model_of_other_size_is_refused_with_options(ready: Cli) -> None:
    ready.put("models/llama/config.json", {**CONFIG, "num_hidden_layers": 16, "vocab_size": 32256})

    assert_refused(
        ready.run(*TRAIN, "--init-from", "llama"),
        "model 'llama' has different sizes: --vocab-size 32256 (the run has 32000), "
        "--num-layers 16 (the run has 32)",
    )


@pytest.mark.parametrize(("adapters", "rank"), [((), "0"), (("--lora-rank", "16"), "16")])
def test_compile_job_needs_weights_only_for_adapters_with_base(
    ready: Cli, adapters: tuple[str, ...], rank: str
) -> None:
    words = (*TRAIN, "--init-from", "llama", *adapters, "--compile", "--dry-run")
    compiled, trained = (command(one) for one in payloads(ready.run(*words)))

    assert compiled[compiled.index("--lora-rank") + 1] == rank
    assert ("--init-from" in compiled) == bool(adapters)
    assert "--init-from" in trained


def test_model_of_other_family_is_refused_regardless_of_size(ready: Cli) -> None:
    ready.put("models/llama/config.json", {**CONFIG, "model_type": "qwen3"})

    assert_refused(
        ready.run(*TRAIN, "--init-from", "llama"),
        "model 'llama' is from a different family: model_type qwen3 (the run has llama)",
        "`submit pretrain --model` accepts llama3.1-8b",
    )
    ready.put("models/llama/config.json", CONFIG)
    assert_refused(
        ready.run("submit", "pretrain", "--model", "qwen3-4b", *TRAIN[2:], "--init-from", "llama"),
        "model_type llama (the run has qwen3)",
    )


def test_run_with_checkpoint_no_longer_needs_initial_weights(ready: Cli) -> None:
    existing_run(ready, 100, values={"init-from": "gone"})
    assert ready.run(*TRAIN).exit_code == 0

    assert_refused(
        ready.run(*TRAIN, "--init-from", "llama"),
        "run my-run cannot continue with init-from=llama (the run has gone)",
    )


def write_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(b"\x08" + bytes(15))
    (folder / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    (folder / "pytorch_model.bin").write_bytes(b"the same once more")
    return folder


def test_model_folder_is_uploaded(cli: Cli, tmp_path: Path) -> None:
    document = checked(
        cli.run("upload", str(write_model(tmp_path / "Llama-2-7b-hf")), "--json"),
        "upload",
    )

    assert (document["kind"], document["name"]) == ("model", "Llama-2-7b-hf")
    assert document["left_out"] == ["pytorch_model.bin"]
    assert sorted(file["key"] for file in document["files"]) == [
        f"models/Llama-2-7b-hf/{name}"
        for name in ("config.json", "model.safetensors", "tokenizer.json")
    ]
    said = cli.run("upload", str(tmp_path / "Llama-2-7b-hf"))
    assert "--init-from Llama-2-7b-hf" in said.stderr
    assert "skipped, not part of a model: pytorch_model.bin" in said.stderr


@pytest.mark.parametrize(
    ("document", "workload"),
    [
        (CONFIG, "llama2-7b"),
        ({**CONFIG, "model_type": "qwen3"}, "WORKLOAD"),
        ({**CONFIG, "head_dim": 64}, "WORKLOAD"),
        ({**CONFIG, "rms_norm_eps": 1e-6}, "WORKLOAD"),
        ({**CONFIG, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "WORKLOAD"),
        ({"model_type": "llama", "text_config": CONFIG}, "WORKLOAD"),
        ({**LLAMA_31, "rope_scaling": None}, "WORKLOAD"),  # Llama 3
        (
            {**LLAMA_31, "rope_scaling": None, "rope_theta": None,
             "rope_parameters": {**SCALING, "rope_theta": 500000.0}},
            "pretrain --model llama3.1-8b",
        ),
        (
            {"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
             "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8},
            "pretrain --model qwen3-0.6b",
        ),
    ],
)  # fmt: skip
def test_workload_of_model_is_detected(document: dict[str, Any], workload: str) -> None:
    assert workload_of(document) == workload


def test_models_of_same_size_are_distinguished() -> None:
    """Exports describe models like this."""
    for name, preset in {**LLAMA_PRESETS, **MODELS}.items():
        shape = preset.shape
        assert isinstance(shape, ModelShape)
        document = decoder_config(shape, seq_len=8).to_dict()
        assert workload_of(document).split()[-1] == name


def test_weights_without_config_are_refused(cli: Cli, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "config.json").unlink()

    assert_refused(
        cli.run("upload", str(folder)),
        "has weights (model.safetensors) but no config.json with a model_type",
    )


def test_model_without_weights_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert_refused(cli.run("upload", str(folder)), "is a Git LFS pointer; download the file itself")

    (folder / "model.safetensors").unlink()
    assert_refused(cli.run("upload", str(folder)), "has no *.safetensors; download the model's")


def test_responses_option_must_match_dataset(ready: Cli) -> None:
    ready.put(
        "datasets/chats/manifest.json",
        {"vocab_size": 32000, "num_tokens": 4096 * 100, "seq_len": 4096, "response_tokens": 9},
    )
    chats = (*TRAIN[:-1], "chats")

    assert_refused(ready.run(*TRAIN, "--responses"), "dataset wiki is text, but --responses needs")
    assert_refused(ready.run(*chats), "dataset chats has prompts and responses; submit with --resp")
    assert_refused(
        ready.run(*chats, "--responses", "--seq-len", "2048"),
        "dataset chats has a sequence length of 4096, but the run has --seq-len 2048",
    )
    assert ready.run(*chats, "--responses").exit_code == 0


def test_adapters_without_base_weights_are_refused(ready: Cli) -> None:
    assert_refused(
        ready.run(*TRAIN, "--lora-rank", "16"), "lora-rank=16 without init-from", "--init-from"
    )
    assert_refused(
        ready.run(*TRAIN, "--lora-rank", "16", "--lora-targets", "w_proj"),
        "lora-targets=w_proj is not valid; it must be one or more of q_proj",
    )
