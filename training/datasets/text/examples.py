"""Encode prompts and responses, and pack them into sequences.

A sequence contains whole examples, each followed by EOS, and is padded with EOS outside the loss.
Ids use 31 bits; the highest bit marks a token that counts in the loss. Shards of examples are
therefore written, stored, checked and mapped like any others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.datasets.manifest import COUNTED, DatasetError
from training.datasets.text.readers import parse_json, read_lines
from training.datasets.text.sources import Piece, TextFormat
from training.datasets.text.vocabulary import Vocabulary, load_tokenizer
from training.storage import Objects

EXAMPLE_DTYPE = "uint32"
_FIELDS = ("prompt", "response")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt with its response."""

    text: str
    """Prompt and response; their hash determines the split."""
    ids: NDArray[np.uint32]
    """Token ids; the response and EOS are marked as counting in the loss."""


class ExampleReader:
    """Reads and encodes the lines of a piece; raises ``DatasetError`` with file and line."""

    def __init__(self, vocabulary: Vocabulary, *, seq_len: int) -> None:
        self._tokenizer = load_tokenizer(vocabulary.json)
        self._eos, self._seq_len = vocabulary.eos_id, seq_len

    def read(self, objects: Objects, piece: Piece) -> Iterator[Example]:
        """Yield the examples of a piece, in order."""
        if piece.file.kind is not TextFormat.JSONL:
            raise DatasetError(
                f"{objects.uri}/{piece.file.key} is not JSONL, the format of prompts and "
                'responses; write one {"prompt": "...", "response": "..."} per line'
            )
        yield from read_lines(objects, piece, self._parse)

    def _parse(self, line: bytes) -> Example:
        """Encode a line; raise ``ValueError`` if it is invalid."""
        prompt, response = _fields(line)
        encoding = self._tokenizer.encode(prompt + response, add_special_tokens=False)
        ids = np.array([*encoding.ids, self._eos], np.uint32)
        if len(ids) > self._seq_len:
            raise ValueError(
                f"prompt and response have {len(ids):,} tokens, but a sequence has only "
                f"{self._seq_len:,}; shorten them, or tokenize with a larger --response-seq-len"
            )
        # A token that starts in the prompt does not count.
        counts = np.array([*(start >= len(prompt) for start, _ in encoding.offsets), True])
        # An example's first token has no context to predict it from.
        counts[0] = False
        return Example(
            text=f"{prompt}\0{response}", ids=ids | np.where(counts, COUNTED, 0).astype(np.uint32)
        )


def _fields(line: bytes) -> tuple[str, str]:
    document = parse_json(line)
    if isinstance(document, dict) and "messages" in document and "prompt" not in document:
        raise ValueError(
            "messages need the model's own chat template; apply it and write the result "
            "as prompt and response (see apply_chat_template in transformers)"
        )
    if not isinstance(document, dict) or not all(
        isinstance(document.get(name), str) for name in _FIELDS
    ):
        found = ", ".join(map(repr, document)) if isinstance(document, dict) else "no object"
        raise ValueError(
            f'"prompt" and "response" must both contain text (found: {found or "nothing"}); write '
            '{"prompt": "...", "response": "..."}'
        )
    prompt, response = (document[name] for name in _FIELDS)
    if not response.strip():
        raise ValueError("the response is empty, so there is nothing to learn; remove the line")
    try:
        (prompt + response).encode()
    except UnicodeEncodeError as error:  # JSON can contain an unpaired surrogate: "\\ud800"
        half = ord((prompt + response)[error.start])
        raise ValueError(
            f"an unpaired surrogate, U+{half:X}; write the full pair or U+FFFD"
        ) from None
    return prompt, response


class Packer:
    """Packs whole examples into sequences, in order."""

    def __init__(self, *, seq_len: int, eos_id: int) -> None:
        self._seq_len, self._eos = seq_len, eos_id
        self._used = 0
        """Tokens in the current sequence."""
        self.counted = 0
        """Number of tokens so far that count in the loss."""

    def add(self, ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the ids to write: padding if a new sequence is started, then the example."""
        assert 0 < len(ids) <= self._seq_len, len(ids)
        padding = self.close() if self._used + len(ids) > self._seq_len else _NO_IDS
        self._used += len(ids)
        self.counted += int((ids >= COUNTED).sum())
        return np.concatenate([padding, ids])

    def close(self) -> NDArray[np.uint32]:
        """Return the padding that completes the current sequence."""
        num_missing = self._seq_len - self._used if self._used else 0
        self._used = 0
        return np.full(num_missing, self._eos, np.uint32)


_NO_IDS = np.empty(0, np.uint32)
