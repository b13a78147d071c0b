"""Tokenizers: read without a network, with Hugging Face's ids, including faster encoders."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.datasets.manifest import DatasetError
from training.datasets.text.encoders import (
    PROBES,
    CheckedEncoder,
    Encoder,
    FastEncoder,
    Ids,
    ParityError,
    PlainEncoder,
    WordEncoder,
    encoders,
    splits_at_spaces,
)
from training.datasets.text.vocabulary import Vocabulary, read_vocabulary


@pytest.fixture(scope="session")
def hugging_face(llama_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Write the folder that the reference's script loads: tokenizer.model and config.json."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("model")
    shutil.copyfile(llama_model, folder / "tokenizer.model")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


Ways = tuple[Encoder, ...]
"""The plain tokenizer first."""


@pytest.fixture(scope="session")
def ways(llama: Vocabulary) -> Ways:
    """Return all encoders of Llama's vocabulary, unchecked."""
    plain = PlainEncoder(llama)
    return plain, WordEncoder(llama, plain), FastEncoder(llama)


def test_every_encoder_fastest_first_gives_hugging_faces_ids(
    hugging_face: Any, llama: Vocabulary
) -> None:
    expected = [
        [*hugging_face(text, add_special_tokens=False).input_ids, llama.eos_id] for text in PROBES
    ]

    assert llama.size == 32_000 == len(hugging_face)
    assert llama.dtype == "uint16"
    found = {
        encoder.name: [encoder.encode([text]).tolist() for text in PROBES]
        for encoder in encoders(llama, accelerate=True)
    }
    assert list(found) == ["fastokens", "tokenizers with a word cache", "tokenizers"]
    for name, ids in found.items():
        assert ids == expected, name


def test_without_acceleration_only_exact_encoders_remain(llama: Vocabulary) -> None:
    names = [encoder.name for encoder in encoders(llama, accelerate=False)]

    assert names == ["tokenizers with a word cache", "tokenizers"]


TEXTS = st.text(
    alphabet=st.one_of(
        st.sampled_from(" \n\t\u2581<s>/ueThe"),
        st.characters(exclude_categories=["Cs"]),
    ),
    min_size=1,
    max_size=60,
)


@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
@settings(max_examples=200)
def test_every_encoder_yields_the_plain_tokenizers_ids_for_any_text(
    ways: Ways, texts: list[str]
) -> None:
    plain, *faster = ways
    expected = plain.encode(texts).tolist()

    for encoder in faster:
        assert encoder.encode(texts).tolist() == expected, encoder.name


def document_of(vocabulary: Vocabulary) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(vocabulary.json)
    return document


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["model"]["vocab"].update({"of\u2581the": 32000}),
        lambda d: d["model"]["vocab"].pop("<0x80>"),
        lambda d: d["model"].update(dropout=0.1),
        lambda d: d["model"].update(ignore_merges=True),
        lambda d: d["model"].update(byte_fallback=False),
        lambda d: d["model"].update(type="Unigram"),
        lambda d: d.update(pre_tokenizer={"type": "Whitespace"}),
        lambda d: d.update(normalizer=None),
        lambda d: d["added_tokens"][0].update(normalized=True),
    ],
)
def test_a_vocabulary_with_dependent_words_is_not_split(llama: Vocabulary, change: Any) -> None:
    document = document_of(llama)
    change(document)

    assert not splits_at_spaces(document)


class Wrong:
    """An accelerator that errs from a given document on."""

    name = "wrong"

    def __init__(self, plain: PlainEncoder, *, right: int) -> None:
        self._plain, self._right = plain, right

    def encode(self, texts: Sequence[str]) -> Ids:
        self._right -= len(texts)
        ids = self._plain.encode(texts)
        return ids if self._right >= 0 else ids[1:]


def test_an_accelerator_with_other_ids_is_refused_before_it_is_used(llama: Vocabulary) -> None:
    plain = PlainEncoder(llama)

    with pytest.raises(ParityError, match="wrong and tokenizers give different IDs for 'The quick"):
        CheckedEncoder(Wrong(plain, right=0), plain)


def test_an_accelerator_with_a_late_error_is_noticed(llama: Vocabulary) -> None:
    plain = PlainEncoder(llama)
    checked = CheckedEncoder(Wrong(plain, right=len(PROBES) + 45), plain)
    checked.encode(["some words"] * 5)  # five compared, five encoded

    with pytest.raises(ParityError, match="for 'other words'"):
        for _ in range(100):
            checked.encode(["other words"] * 3)


def test_padding_and_truncation_do_not_reach_the_ids(tmp_path: Path, small_tokenizer: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(small_tokenizer))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    # Nor does the form of the document.
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), indent=4))

    assert (
        read_vocabulary(tmp_path / "tokenizer.json").json == read_vocabulary(small_tokenizer).json
    )


def test_a_vocabulary_above_65535_ids_uses_four_bytes(
    tmp_path: Path, small_tokenizer: Path
) -> None:
    document = json.loads(small_tokenizer.read_text())
    document["model"]["vocab"]["last"] = 65_534
    (tmp_path / "a.json").write_text(json.dumps(document))
    document["model"]["vocab"]["last"] = 65_535
    (tmp_path / "b.json").write_text(json.dumps(document))

    assert read_vocabulary(tmp_path / "a.json").dtype == "uint16"
    assert read_vocabulary(tmp_path / "b.json").dtype == "uint32"


def test_four_byte_ids_survive_every_encoder(llama: Vocabulary) -> None:
    for encoder in encoders(replace(llama, size=70_000), accelerate=True):
        assert encoder.encode(["two words"]).dtype == np.uint32


def sentencepiece_model(**options: Any) -> bytes:
    """Train a tiny model."""
    import sentencepiece

    words = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmnop"]
    random.Random(0).shuffle(words)
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words)] * 3), model_writer=file, minloglevel=2, **options
    )
    return file.getvalue()


def without_end_of_document() -> bytes:
    from tokenizers import Tokenizer, models

    return str(Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).to_str()).encode()


NEITHER = "neither a SentencePiece model nor a tokenizer.json"
NO_MODEL = "not a tokenizer.json: it has no model"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"", NEITHER),
        (lambda: b"just text", NEITHER),
        (lambda: b"{", NO_MODEL),
        (lambda: b'{"bos_token": "<s>"}', NO_MODEL),
        (lambda: b'{"model": 3}', NO_MODEL),
        (lambda: b'{"model": {"type": "BPE"}}', "not a usable tokenizer.json: "),
        (without_end_of_document, "no end-of-document token; add one of </s>"),
        (
            lambda: sentencepiece_model(model_type="unigram", vocab_size=25),
            "of type unigram, but only models of type bpe",
        ),
        (
            lambda: sentencepiece_model(model_type="bpe", vocab_size=60),
            "rewrites text before splitting it .normalizer nmt_nfkc",
        ),
    ],
)
def test_an_unusable_tokenizer_is_refused_with_its_reason(
    tmp_path: Path, make: Callable[[], bytes], reason: str
) -> None:
    (tmp_path / "tokenizer").write_bytes(make())

    with pytest.raises(DatasetError, match=reason):
        read_vocabulary(tmp_path / "tokenizer")


def test_transformers_5_is_refused_because_its_ids_differ(
    llama_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    monkeypatch.setattr(transformers, "__version__", "5.0.0")

    with pytest.raises(
        DatasetError, match=r"transformers 5.0.0 encodes text for Llama differently from version 4"
    ):
        read_vocabulary(llama_model)
