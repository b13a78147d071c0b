"""Tiny BERT runs: on one rank in this process, and the shards they train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.llama.conftest import Laptop
from training.datasets.manifest import DatasetManifest, finish_dataset, store_file
from training.datasets.prepared.bert_shards import KIND, empty, facts, write_shard
from training.storage import Objects

SEQ_LEN, PREDICTIONS, VOCABULARY = 16, 3, 64
TINY = (
    *(f"--vocab-size={VOCABULARY}", "--hidden-size=32", "--intermediate-size=64"),
    *(
        "--num-layers=2",
        "--num-heads=2",
        f"--seq-len={SEQ_LEN}",
        f"--max-predictions={PREDICTIONS}",
    ),
    *("--global-batch=8", "--micro-batch=2", "--warmup-steps=2", "--lr=0.01", "--dataset=shards"),
)
"""Shape and batch of every run here, unless a test overrides them."""


def write_shards(
    objects: Objects, scratch: Path, *sizes: int, seed: int = 0, seq_len: int = SEQ_LEN
) -> None:
    """Write a dataset of skewed random words, like prepare's."""
    rng = np.random.default_rng(seed)
    shards = []
    for number, size in enumerate(sizes):
        arrays = empty(size, seq_len=seq_len, max_predictions=PREDICTIONS)
        words = rng.zipf(1.5, (size, seq_len)) % (VOCABULARY - 5) + 5
        positions = np.sort(rng.permuted(np.tile(np.arange(1, seq_len), (size, 1)), axis=1)[:, :2])
        arrays["masked_lm_positions"][:, :2] = positions
        arrays["masked_lm_ids"][:, :2] = np.take_along_axis(words, positions, axis=1)
        np.put_along_axis(words, positions, 4, axis=1)
        arrays["input_ids"][:] = words
        arrays["input_mask"][:] = 1
        arrays["segment_ids"][:, seq_len // 2 :] = 1
        arrays["next_sentence_labels"][:] = rng.integers(2, size=size)
        path = scratch / f"words_training_{number}.hdf5"
        write_shard(path, arrays)
        shards.append(store_file(objects, path, samples=size, on_bytes=lambda count: None))
    numbers = facts(
        seq_len=seq_len, max_predictions=PREDICTIONS, vocab_size=VOCABULARY, samples=sum(sizes)
    )
    finish_dataset(
        objects, DatasetManifest(kind=KIND, source={}, facts=numbers, shards=tuple(shards))
    )


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    """Create a folder with a dataset of three shards; every test names its own run."""
    folder = tmp_path_factory.mktemp("laptop")
    laptop = Laptop(folder, workload="bert-tiny", words=TINY)
    write_shards(laptop.objects.at("datasets/shards"), folder, 30, 17, 23)
    return laptop


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Use one thread: synchronization costs more than such small matrices."""
    torch.set_num_threads(1)
