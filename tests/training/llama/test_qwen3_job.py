"""A tiny Qwen3 on ranks that share it: killed, continued, exported, loaded by transformers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.training.conftest import Cluster
from tests.training.llama.conftest import TINY, Laptop, write_dataset
from tests.training.worker_ranks import run_on_ranks
from training.models.llama.export import ExportOrder, export
from training.storage import StorageAccess, open_objects

STEPS, SIZE = 12, 16
RUN = "my-qwen"
WORDS = (
    *TINY,
    *("--model=qwen3-tiny", "--head-dim=16", "--dataset=words"),
    *(f"--max-steps={STEPS}", "--save-every=3", f"--eval-every={STEPS}"),
)


@pytest.fixture(name="nodes")
def _nodes(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes of one process, with a folder in the bucket's place."""
    cluster = Cluster(tmp_path, num_nodes=2)
    objects = open_objects(str(tmp_path / "build"), region=None, endpoint_url=None)
    write_dataset(objects.at("datasets/words"), validation_tokens=400)
    yield cluster
    cluster.kill()


def start(nodes: Cluster, attempt: int, *words: str, workload: str = "pretrain") -> None:
    nodes.start(
        *words,
        workload=workload,
        extra={
            "TRAINIUM_RUN": RUN,
            "TRAINIUM_PROCESSES_PER_NODE": "1",
            "AWS_BATCH_JOB_ATTEMPT": str(attempt),
        },
    )


def lines(nodes: Cluster, event: str) -> list[dict[str, Any]]:
    text = (nodes.folder / "build/runs" / RUN / "metrics/train.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["event"] == event]


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


# A killed run is in test_killed_and_resumed.py, and Qwen3's tensor parallelism in
# test_verify_ranks.py.
@pytest.mark.full
def test_a_killed_qwen3_goes_on_and_its_export_gives_the_same_loss(
    nodes: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    words = (*WORDS, "--tensor-parallel=2", "--peer-timeout-s=3")
    start(nodes, 1, *words)
    nodes.wait_for("training: step 5 of", node=0)
    os.kill(nodes.launcher(1), signal.SIGKILL)
    assert nodes.end(within_s=90) == {0: 75, 1: 137}, nodes.all_logs()
    # All that the run is, it remembers.
    start(nodes, 2, "--peer-timeout-s=3")
    assert nodes.end(within_s=120) == {0: 0, 1: 0}, nodes.all_logs()

    (resume,) = lines(nodes, "resume")
    assert 0 < resume["step"] < STEPS
    losses = [line["loss"] for line in lines(nodes, "step")]
    laptop = Laptop(tmp_path_factory.mktemp("alone"), workload="pretrain", words=WORDS)
    write_dataset(laptop.objects.at("datasets/words"), validation_tokens=400)
    laptop.train("--tensor-parallel=1", run="alone")
    assert losses == pytest.approx(laptop.losses("alone"), rel=1e-4)

    start(nodes, 1, f"--run={RUN}", "--dtype=float32", workload="export")
    assert nodes.end(within_s=90)[0] == 0, nodes.all_logs()
    folder = nodes.folder / "build/export" / RUN
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    data = nodes.folder / "build/datasets/words/validation-00000.bin"
    ids = np.fromfile(data, "<u2").astype(np.int64)
    (evaluation,) = lines(nodes, "evaluation")
    assert evaluation["val_loss"] == pytest.approx(held_out(folder, ids), rel=1e-5)


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
