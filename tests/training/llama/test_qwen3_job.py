"""A tiny Qwen3 on ranks that share it: killed, continued, exported, loaded by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.training.llama.conftest import TINY, Laptop, write_dataset
from tests.training.worker_ranks import run_on_ranks
from training.models.llama.export import ExportOrder, export
from training.storage import StorageAccess

STEPS, SIZE = 12, 16
RUN = "my-qwen"
WORDS = (
    *TINY,
    *("--model=qwen3-tiny", "--head-dim=16", "--dataset=words"),
    *(f"--max-steps={STEPS}", "--save-every=3", f"--eval-every={STEPS}"),
)


def held_out(folder: Path, ids: np.ndarray[Any, Any]) -> float:
    """The mean loss of the validation split's sequences, by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    losses = []
    for first in range(0, len(ids) - SIZE, SIZE):
        row = torch.from_numpy(ids[first : first + SIZE + 1])[None]
        with torch.no_grad():
            losses.append(float(model(input_ids=row, labels=row).loss))
    return float(np.mean(losses))


def test_data_parallel_ranks_have_the_losses_of_one_and_their_export_too(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """FSDP gathers the tied weight that the loss is computed with, after the model's own pass."""
    words = ("--tensor-parallel=1", "--micro-batch=2", "--max-steps=4", "--eval-every=4")
    new = {word.partition("=")[0] for word in words}
    shared = (*(word for word in WORDS if word.partition("=")[0] not in new), *words)
    laptop = Laptop(tmp_path_factory.mktemp("alone"), workload="pretrain", words=WORDS)
    two = Laptop(tmp_path / "build")
    for place in (laptop, two):
        write_dataset(place.objects.at("datasets/words"), validation_tokens=400)
    laptop.train(*words, run="alone")
    output, _ = run_on_ranks(tmp_path, "pretrain", shared, run=RUN, num_ranks=2)

    assert "tensor parallel 1 x data parallel 2" in output
    assert two.losses(RUN) == pytest.approx(laptop.losses("alone"), rel=1e-5)
    (evaluation,) = two.lines(RUN, "evaluation")
    (alone,) = laptop.lines("alone", "evaluation")
    assert evaluation["val_loss"] == pytest.approx(alone["val_loss"], rel=1e-5)
    order = ExportOrder(run=RUN, step=0, dtype="float32")
    export(order, StorageAccess(root=str(two.folder)), report=lambda text: None)
    data = two.folder / "datasets/words/validation-00000.bin"
    ids = np.fromfile(data, "<u2").astype(np.int64)
    loss = held_out(two.folder / "export" / RUN, ids)
    assert evaluation["val_loss"] == pytest.approx(loss, rel=1e-5)
