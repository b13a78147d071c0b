"""Complete runs of each family's tiny model: evaluated, masked, resumed, exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.training.llama.conftest import TINY, Laptop, write_dataset
from training.models.llama.export import ExportRequest, export
from training.storage import StorageAccess

STEPS = 4
MODELS = ("llama3-tiny", "qwen3-tiny")


@pytest.fixture(params=MODELS, name="model")
def _model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(name="runs")
def _runs(tmp_path: Path, model: str) -> Laptop:
    """Runs of a model with only the options of TINY that it needs."""
    words = (
        *TINY,
        *(f"--model={model}", "--head-dim=16", "--tensor-parallel=1", "--dataset=words"),
        *(f"--max-steps={STEPS}", "--eval-every=2", "--document-masks", "--save-every=2"),
    )
    laptop = Laptop(tmp_path, workload="pretrain", words=words)
    write_dataset(laptop.objects.at("datasets/words"), validation_tokens=400)
    return laptop


def test_a_run_resumes_exactly_and_its_export_has_the_same_loss(
    runs: Laptop, model: str, tmp_path: Path
) -> None:
    runs.train(run="whole")
    runs.train("--steps-this-run=2", run="pieces")
    # The run stores its full configuration, including the model.
    runs.train(run="pieces", tiny=False)

    losses = runs.losses("whole")
    assert runs.losses("pieces") == losses
    assert losses[-1] < losses[0]
    evaluated = runs.lines("whole", "evaluation")
    assert [line["step"] for line in evaluated] == [2, STEPS]
    assert runs.lines("pieces", "evaluation")[-1]["val_loss"] == evaluated[-1]["val_loss"]

    results = json.loads(runs.file("results/results.json", "whole").read_text())
    assert results["results"]["parameters"]["Model"] == model

    request = ExportRequest(run="whole", step=0, dtype="float32")
    export(request, StorageAccess(root=str(tmp_path)), report=lambda text: None)
    folder = tmp_path / "export" / "whole"
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == ("qwen3" if model == "qwen3-tiny" else "llama")
    assert config["architectures"] == [
        "Qwen3ForCausalLM" if model == "qwen3-tiny" else "LlamaForCausalLM"
    ]
    assert config["tie_word_embeddings"] is True
    assert bool(config.get("rope_scaling")) == (model == "llama3-tiny")

    exported = AutoModelForCausalLM.from_pretrained(folder)
    assert exported.lm_head.weight is exported.model.embed_tokens.weight
    assert evaluated[-1]["val_loss"] == pytest.approx(_held_out(exported, tmp_path), rel=1e-5)


def _held_out(model: torch.nn.Module, root: Path) -> float:
    """Return transformers' loss of the validation split, each document separately."""
    import numpy as np

    ids = np.fromfile(root / "datasets/words/validation-00000.bin", "<u2").astype(np.int64)
    size = 16
    losses = []
    for first in range(0, len(ids) - size, size):
        row = torch.from_numpy(ids[first : first + size + 1])
        ends = [place + 1 for place in range(size - 1) if row[place] == 2]
        with torch.no_grad():
            logits = torch.cat(
                [model(input_ids=part[None]).logits[0] for part in row[:-1].tensor_split(ends)]
            )
        losses.append(float(torch.nn.functional.cross_entropy(logits, row[1:])))
    return sum(losses) / len(losses)


def test_a_new_run_without_a_model_is_refused_with_the_available_models(tmp_path: Path) -> None:
    laptop = Laptop(tmp_path, workload="pretrain", words=(*TINY, "--dataset=words"))
    write_dataset(laptop.objects.at("datasets/words"))

    with pytest.raises(ValueError, match=r"pretrain needs --model; known models: llama3.1-8b"):
        laptop.train()
