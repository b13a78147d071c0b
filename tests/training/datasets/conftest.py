"""Tokenizers, small corpora and storage for datasets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mistral_common
import pytest

from training.datasets.manifest import PackedManifest
from training.datasets.samples.packed import PackedDataset, open_dataset
from training.datasets.text.sources import TokenizeRequest
from training.datasets.text.tokenize import tokenize
from training.datasets.text.vocabulary import Vocabulary, read_vocabulary
from training.storage import LocalObjects, StorageAccess

WORDS = (
    *("the", "node", "reads", "a", "shard", "and", "packs", "every", "token", "of", "each"),
    *("document,", "na\u00efve", "caf\u00e9,", "\u4e16\u754c", "range(10):", "", "two\n\n\tspaces"),
)


def text_of(number: int) -> str:
    """Return a document unique to its number, of 8 to 40 words."""
    words = [
        WORDS[(number * 7 + i * (number % 5 + 1)) % len(WORDS)] for i in range(8 + number % 33)
    ]
    return f"{number}: " + " ".join(words)


@pytest.fixture(scope="session")
def llama_model() -> Path:
    """Return a SentencePiece model of Llama 2's kind and size."""
    return Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"


@pytest.fixture(scope="session")
def llama(llama_model: Path) -> Vocabulary:
    """Return that model, converted to a vocabulary."""
    return read_vocabulary(llama_model)


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a byte-level tokenizer.json with few ids, which loads instantly."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(text_of, range(50)), trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Write six files of 20 documents each."""
    return write_jsonl(tmp_path / "corpus", lambda number: {"text": text_of(number)})


def write_jsonl(folder: Path, line: Callable[[int], dict[str, str]]) -> Path:
    """Write six files of 20 numbered lines each."""
    folder.mkdir()
    for file in range(6):
        lines = [json.dumps(line(file * 20 + n)) for n in range(20)]
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def quiet(text: str) -> None:
    """Discard a report."""


def opened(tmp_path: Path, name: str = "made") -> PackedDataset:
    """Open the dataset of ``run_tokenize`` with this name."""
    source, cache = dataset(tmp_path, name), tmp_path / f"cache-{name}"
    return open_dataset(
        LocalObjects(source), cache, is_leader=True, wait=lambda: None, report=quiet
    )


def dataset(tmp_path: Path, name: str = "made") -> Path:
    """Return the folder of a dataset of ``run_tokenize``."""
    return tmp_path / "bucket" / "datasets" / name


Tokenize = Callable[..., PackedManifest | None]


@pytest.fixture
def run_tokenize(tmp_path: Path, corpus: Path, small_tokenizer: Path) -> Tokenize:
    """Tokenize ``corpus`` into the dataset ``made``; keyword arguments change the request."""

    def run(**changes: object) -> PackedManifest | None:
        values: dict[str, object] = {
            "input": str(corpus),
            "tokenizer": str(small_tokenizer),
            "dataset": "made",
            "text_field": "text",
            "shard_tokens": 1024,
            "validation_fraction": 0.0,
            "processes": 1,
            "accelerate": False,
            "storage": StorageAccess(root=str(tmp_path / "bucket")),
            "array_index": 0,
            "array_size": 1,
        }
        return tokenize(TokenizeRequest(**{**values, **changes}), report=quiet)  # type: ignore[arg-type]

    return run
