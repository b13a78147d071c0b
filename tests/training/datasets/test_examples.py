"""Prompts and responses: counted tokens, packing, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.training.datasets.conftest import Tokenize, opened, text_of, write_jsonl
from training.datasets.manifest import COUNTED, DatasetError, PackedManifest

SEQ_LEN = 128


def pair(number: int) -> dict[str, str]:
    words = text_of(number).split()
    return {"prompt": " ".join(words[:5]), "response": " " + " ".join(words[5 : 12 + number % 7])}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Write six files of 20 prompts and responses each, in place of text."""
    return write_jsonl(tmp_path / "corpus", pair)


def made(run_tokenize: Tokenize, **changes: Any) -> PackedManifest:
    manifest = run_tokenize(response_seq_len=SEQ_LEN, **changes)
    assert manifest is not None
    return manifest


def test_complete_examples_are_packed_and_only_responses_count(
    tmp_path: Path, run_tokenize: Tokenize, small_tokenizer: Path
) -> None:
    plain = Tokenizer.from_file(str(small_tokenizer))
    manifest = made(run_tokenize)
    packed = opened(tmp_path)

    assert (manifest.dtype, manifest.seq_len, manifest.documents) == ("uint32", SEQ_LEN, 120)
    assert manifest.num_tokens % SEQ_LEN == 0
    expected = []
    for number in range(120):
        ids = plain.encode(pair(number)["prompt"] + pair(number)["response"]).ids
        expected.append([*ids, manifest.eos_id])
    found: list[list[int]] = []
    counted = 0
    for index in range(packed.num_sequences(SEQ_LEN)):
        row = packed.sequence(index, SEQ_LEN)
        assert len(row) == SEQ_LEN + 1
        assert row[SEQ_LEN] == 0  # no label beyond the sequence
        document: list[int] = []
        for token in row[:SEQ_LEN]:
            counted += int(token >= COUNTED)
            document.append(int(token) & (COUNTED - 1))
            if document == [manifest.eos_id] and token < COUNTED:
                document = []  # padding
            elif document[-1] == manifest.eos_id:
                found.append(document)
                document = []
        assert document == []
    assert found == expected
    assert manifest.response_tokens == counted


def test_a_token_that_starts_in_the_prompt_does_not_count(
    tmp_path: Path, run_tokenize: Tokenize, corpus: Path, small_tokenizer: Path
) -> None:
    for path in corpus.iterdir():
        path.unlink()
    example = pair(3)
    (corpus / "one.jsonl").write_text(json.dumps(example))
    made(run_tokenize)

    row = opened(tmp_path).sequence(0, SEQ_LEN)
    plain = Tokenizer.from_file(str(small_tokenizer))
    encoding = plain.encode(example["prompt"] + example["response"])
    expected = [start >= len(example["prompt"]) for start, _ in encoding.offsets] + [True]
    assert (row >= COUNTED)[: len(expected)].tolist() == expected
    assert not (row >= COUNTED)[len(expected) :].any()
    assert 0 < sum(expected) < len(expected)


def test_without_a_prompt_the_first_token_is_given(
    tmp_path: Path, run_tokenize: Tokenize, corpus: Path
) -> None:
    for path in corpus.iterdir():
        path.unlink()
    (corpus / "one.jsonl").write_text(json.dumps({"prompt": "", "response": text_of(1)[:40]}))
    manifest = made(run_tokenize)

    row = opened(tmp_path).sequence(0, SEQ_LEN)
    assert (row[:2] >= COUNTED).tolist() == [False, True]
    assert manifest.response_tokens == int((row >= COUNTED).sum())


def test_examples_are_held_out_too(tmp_path: Path, run_tokenize: Tokenize) -> None:
    one = made(run_tokenize, dataset="one", validation_fraction=0.2)

    assert one.validation is not None
    assert one.documents + one.validation.documents == 120
    held_out = opened(tmp_path, "one").require_validation(seq_len=SEQ_LEN)
    assert (held_out.sequence(0, SEQ_LEN) >= COUNTED).any()
    again = PackedManifest.from_json(one.to_json(), name="one")
    assert again == one
    assert json.loads(one.to_json())["schema"] == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"not JSON \(.*\); write one object per line"),
        ("[1]", r'"prompt" and "response" must both contain text \(found: no object\); write'),
        ('{"prompt": "a"}', r".*must both contain text \(found: 'prompt'\)"),
        ('{"messages": []}', r"messages need the model's own chat template; apply it and write"),
        ('{"prompt": "a", "response": " "}', r"the response is empty, .*; remove the line"),
        (r'{"prompt": "a", "response": "\ud800"}', r"an unpaired surrogate, U\+D800; write the"),
        (
            json.dumps({"prompt": "a", "response": "long " * 200}),
            r"prompt and response have [\d,]+ tokens, but a sequence has only 128; shorten them",
        ),
    ],
)
def test_a_malformed_example_is_refused_with_its_line_number(
    run_tokenize: Tokenize, corpus: Path, line: str, message: str
) -> None:
    path = corpus / "3.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:7], line, *lines[8:]]) + "\n")

    with pytest.raises(DatasetError, match=rf"3\.jsonl, line 8: {message}"):
        made(run_tokenize)


def test_plain_text_is_not_a_prompt_and_response(run_tokenize: Tokenize, corpus: Path) -> None:
    (corpus / "9.txt").write_text("once upon a time")

    with pytest.raises(
        DatasetError, match=r"9\.txt is not JSONL, the format of prompts and responses"
    ):
        made(run_tokenize)


def test_a_dataset_trains_only_its_own_workload(tmp_path: Path, run_tokenize: Tokenize) -> None:
    made(run_tokenize)
    packed = opened(tmp_path)

    packed.require(vocab_size=1000, seq_len=SEQ_LEN, responses=True)
    with pytest.raises(DatasetError, match=r"has prompts and responses; train with --responses"):
        packed.require(vocab_size=1000, seq_len=SEQ_LEN, responses=False)
    with pytest.raises(DatasetError, match=r"of 128 tokens, but the run has --seq-len 64"):
        packed.require(vocab_size=1000, seq_len=64, responses=True)
    assert np.unique(packed.sequence(0, SEQ_LEN) & (COUNTED - 1)).max() < 1000


def test_plain_text_has_no_responses(tmp_path: Path, run_tokenize: Tokenize, corpus: Path) -> None:
    for path in corpus.iterdir():
        path.write_text(json.dumps({"text": text_of(2)}))
    run_tokenize()

    with pytest.raises(DatasetError, match=r"the dataset is text, but --responses needs prompts"):
        opened(tmp_path).require(vocab_size=1000, seq_len=16, responses=True)
