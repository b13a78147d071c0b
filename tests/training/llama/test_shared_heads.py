"""Several ranks compute the same as one: four that share two key-value heads, and two with FSDP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import AutoModelForCausalLM

from tests.training.llama.conftest import TINY, Laptop, write_dataset
from tests.training.worker_ranks import run_on_ranks
from training.models.llama.export import ExportRequest, export
from training.storage import StorageAccess

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def gradients(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Read AdamW's first moments: after one step, without clipping, a tenth of the gradients."""
    reader = FileSystemReader(checkpoint)
    state = {
        name: torch.zeros(known.size)
        for name, known in reader.read_metadata().state_dict_metadata.items()
        if isinstance(known, TensorStorageMetadata) and ".exp_avg." in name
    }
    load(state, storage_reader=reader, no_dist=True)
    return state


def test_loss_gradients_checkpoint_and_export_are_those_of_one_rank(tmp_path: Path) -> None:
    words = (
        *(*TINY, "--model=qwen3-tiny", "--head-dim=16", "--dataset=words", "--eval-every=2"),
        *("--max-grad-norm=0", "--max-steps=2", "--save-every=1"),
    )
    alone = Laptop(tmp_path / "alone", workload="pretrain", words=(*words, "--tensor-parallel=1"))
    four = Laptop(tmp_path / "four" / "build", workload="pretrain", words=alone.words)
    for place in (alone, four):
        write_dataset(place.objects.at("datasets/words"), validation_tokens=400)
    alone.train()
    run_on_ranks(tmp_path / "four", "pretrain", (*words, "--tensor-parallel=4"), run="tiny")

    assert four.losses() == pytest.approx(alone.losses(), rel=1e-5)
    expected = gradients(alone.file("checkpoints/step-00000001"))
    found = gradients(four.file("checkpoints/step-00000001"))
    assert found.keys() == expected.keys()
    assert any("k_proj" in name for name in found)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() < 1e-4 * gradient.norm(), name

    request = ExportRequest(run="tiny", step=0, dtype="float32")
    export(request, StorageAccess(root=str(four.folder)), report=lambda text: None)
    exported = AutoModelForCausalLM.from_pretrained(four.folder / "export/tiny")
    assert exported.num_parameters() == sum(w.numel() for w in expected.values())

    for place in (alone, four):  # one rank resumes from the checkpoint of four
        place.train("--max-steps=3")
    assert four.losses() == pytest.approx(alone.losses(), rel=1e-5)


def test_data_parallel_ranks_of_a_tied_model_have_the_losses_of_one(tmp_path: Path) -> None:
    """FSDP gathers the loss's tied weight after the model's own pass."""
    words = (
        *(word for word in TINY if "micro" not in word),
        *("--micro-batch=2", "--model=qwen3-tiny", "--head-dim=16", "--dataset=words"),
        *("--tensor-parallel=1", "--max-steps=2"),
    )
    alone = Laptop(tmp_path / "alone", workload="pretrain", words=words)
    two = Laptop(tmp_path / "two" / "build")
    for place in (alone, two):
        write_dataset(place.objects.at("datasets/words"))
    alone.train()
    run_on_ranks(tmp_path / "two", "pretrain", words, run="tiny", num_ranks=2)

    assert two.losses() == pytest.approx(alone.losses(), rel=1e-5)
