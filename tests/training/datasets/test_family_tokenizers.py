"""Tokenizers of the kinds that come with Llama 3 and Qwen3: read, packed, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.training.datasets.conftest import Tokenize, text_of
from training.datasets.text.encoders import PROBES, encoders
from training.datasets.text.vocabulary import read_vocabulary
from training.models.llama.export import write_tokenizer

# Digits in groups of up to three (Llama 3), or one by one (Qwen).
SPLIT = r"'s|'t|'re|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
SPECIAL = {
    "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
    "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
}
EOS = {"llama3": "<|end_of_text|>", "qwen3": "<|endoftext|>"}


@pytest.fixture(params=SPECIAL, name="family")
def _family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(name="path")
def _path(family: str, tmp_path: Path) -> Path:
    """Return a tokenizer.json of the family's kind with few ids."""
    tokenizer: Any = Tokenizer(models.BPE(ignore_merges=family == "llama3"))
    if family == "qwen3":
        tokenizer.normalizer = normalizers.NFC()
    digits = SPLIT if family == "llama3" else SPLIT.replace("{1,3}", "")
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # So that `</s>` becomes a text token, as in a vocabulary trained on code.
    texts = [*map(text_of, range(50)), *["</s>"] * 5000]
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(digits), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in SPECIAL[family]])
    processor: Any = processors.ByteLevel(trim_offsets=False)
    if family == "llama3":
        begin = SPECIAL[family][0]
        template = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
        )
        processor = processors.Sequence([processor, template])
    tokenizer.post_processor = processor
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_every_encoder_gives_hugging_faces_ids(path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    vocabulary = read_vocabulary(path)
    plain = PreTrainedTokenizerFast(tokenizer_file=str(path))
    texts = [*PROBES, *map(text_of, range(20))]
    expected = [
        one
        for text in texts
        for one in (*plain(text, add_special_tokens=False).input_ids, vocabulary.eos_id)
    ]

    for encoder in encoders(vocabulary, accelerate=True):
        assert encoder.encode(texts).tolist() == expected, encoder.name


def test_an_unseen_begin_token_is_neither_packed_nor_exported(
    family: str, path: Path, tmp_path: Path, run_tokenize: Tokenize
) -> None:
    from transformers import AutoTokenizer

    manifest = run_tokenize(tokenizer=str(path), dataset=family)
    assert manifest is not None
    assert manifest.vocab_size == Tokenizer.from_file(str(path)).get_vocab_size()
    data = tmp_path / "bucket" / "datasets" / family
    ids = np.fromfile(data / manifest.shards[0].name, manifest.dtype)
    assert int((ids == manifest.eos_id).sum()) > 0

    folder = tmp_path / "export"
    folder.mkdir()
    text = (data / "tokenizer.json").read_text()
    write_tokenizer(
        text, eos_id=manifest.eos_id, bos=manifest.bos, folder=folder, finished=lambda path: None
    )
    exported = AutoTokenizer.from_pretrained(folder)
    sample = text_of(3)
    plain = Tokenizer.from_file(str(path)).encode(sample, add_special_tokens=False).ids
    assert exported(sample).input_ids == plain
    assert exported.eos_token == EOS[family]
    assert exported.decode(plain) == sample
