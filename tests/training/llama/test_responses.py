"""Training on responses only: transformers' loss, on any ranks and micro-batches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from tests.training.datasets.packed import put_manifest, put_shard
from tests.training.llama import fake_nxd
from training.backends.base import WEIGHTS
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.datasets.manifest import COUNTED, PackedManifest, Validation
from training.datasets.samples.packed import PackedDataset
from training.models.llama.data import packed_batches
from training.models.llama.huggingface import decoder_config, initial_weight
from training.models.llama.task import LlamaTask
from training.storage import Objects
from training.trainer.task import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.training.llama.conftest import Laptop

SEQ_LEN, EOS = 16, 2
SEQUENCES, HELD_OUT = 40, 13
WORDS = ("--dataset=chats", "--responses", "--max-steps=3", "--eval-every=2", "--max-grad-norm=0")


def examples(random: np.random.Generator, count: int) -> NDArray[np.uint32]:
    """Build sequences of two examples each, with very different counted parts."""
    rows = random.integers(3, 256, (count, SEQ_LEN)).astype(np.uint32)
    for number, row in enumerate(rows):
        cut = 3 + number % 9
        for first, end in ((0, cut), (cut, SEQ_LEN - number % 3)):
            row[end - 1] = EOS
            row[max(first + 1, end - 1 - number % 5) : end] |= COUNTED
        row[SEQ_LEN - number % 3 :] = EOS
    return rows


def write_chats(objects: Objects) -> None:
    """Write a dataset of prompts and responses, like tokenize's."""
    random = np.random.default_rng(0)
    rows, others = (examples(random, count) for count in (SEQUENCES, HELD_OUT))
    held_out = put_shard(objects, "validation-00000-000.bin", others)
    put_manifest(
        objects,
        put_shard(objects, "shard-00000-000.bin", rows),
        dtype="uint32",
        documents=2 * SEQUENCES,
        validation=Validation(
            fraction=0.2, num_tokens=held_out.tokens, documents=1, shards=(held_out,)
        ),
        seq_len=SEQ_LEN,
        response_tokens=int((rows >= COUNTED).sum()),
    )


@pytest.fixture(scope="module")
def chats(laptop: Laptop) -> Laptop:
    write_chats(laptop.objects.at("datasets/chats"))
    laptop.train(*WORDS, run="chats")
    return laptop


def config_of(laptop: Laptop, run: str, *, num_ranks: int = 1) -> TrainConfig:
    record = json.loads(laptop.file("run.json", run).read_text())
    return TrainConfig.from_values(record["values"], num_ranks)


def theirs(laptop: Laptop, positions: range, *, split: str = "train") -> Any:
    """Return transformers' loss, with labels of -100 for uncounted tokens."""
    config = config_of(laptop, "chats")
    dataset = dataset_at(laptop)
    stream = dataset if split == "train" else dataset.require_validation(seq_len=SEQ_LEN)
    seed = config.seed if split == "train" else 0
    batch: Any = packed_batches(stream, seed=seed, seq_len=SEQ_LEN, group=len(positions))(positions)
    model = LlamaForCausalLM(decoder_config(config.shape, seq_len=SEQ_LEN))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_weight(name, parameter.size(), seed=config.seed))
    tokens = batch["tokens"]
    labels = tokens.clone()
    labels[:, 1:][batch[WEIGHTS] == 0] = -100
    return model(input_ids=tokens, labels=labels).loss, model


def dataset_at(laptop: Laptop) -> PackedDataset:
    folder = laptop.folder / "datasets/chats"
    data = (folder / "manifest.json").read_bytes()
    return PackedDataset(folder, PackedManifest.from_json(data, name="chats"))


def test_loss_and_gradients_are_those_of_transformers(chats: Laptop) -> None:
    loss, model = theirs(chats, range(8))
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])

    first = chats.lines("chats", "step")[0]
    assert first["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert first["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_the_validation_loss_equals_transformers(chats: Laptop) -> None:
    words = ("--dataset=chats", "--responses", "--lr=0", "--max-steps=1", "--eval-every=1")
    chats.train(*words, run="untrained")

    loss, _ = theirs(chats, range(HELD_OUT), split="validation")
    (line,) = chats.lines("untrained", "evaluation")
    assert line["val_loss"] == pytest.approx(loss.item(), abs=1e-6)


def figures(laptop: Laptop, run: str) -> list[float]:
    steps = [value for line in laptop.lines(run, "step") for value in (line["loss"],)]
    return steps + [line["val_loss"] for line in laptop.lines(run, "evaluation")]


def test_any_accumulation_gives_the_same(chats: Laptop) -> None:
    chats.train(*WORDS, "--micro-batch=1", run="chats-1")

    assert figures(chats, "chats-1") == pytest.approx(figures(chats, "chats"), abs=1e-5)


def test_all_tokens_of_a_step_have_the_same_weight_on_every_rank(chats: Laptop) -> None:
    config = config_of(chats, "chats", num_ranks=2)
    dataset = Dataset(samples=SEQUENCES, facts={}, tokenizer_sha256=None, content=dataset_at(chats))
    batch = LlamaTask().batches(config, dataset, None)

    weights = torch.cat([batch(config.positions(0, 0, rank))[WEIGHTS] for rank in range(2)])
    assert len(weights) == config.plan.global_batch
    assert len({*weights[weights > 0].tolist()}) == 1


def test_document_masks_apply_to_responses(chats: Laptop) -> None:
    chats.train(*WORDS, "--document-masks", run="apart")

    assert figures(chats, "apart") != pytest.approx(figures(chats, "chats"), abs=1e-5)


def test_nxd_computes_the_same(chats: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nxd.install(monkeypatch)
    chats.train(*WORDS, run="chats-nxd", kind=DeviceKind.XLA)

    assert figures(chats, "chats-nxd") == pytest.approx(figures(chats, "chats"), rel=4e-3)


def test_its_graphs_are_compiled_without_a_dataset(chats: Laptop) -> None:
    chats.train("--compile-only", "--responses", "--eval-every=2", run="compiles")

    assert not chats.file("", "compiles").exists()
