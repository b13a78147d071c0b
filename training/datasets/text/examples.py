"""Prompts and responses: encoded with a mark on what counts, packed whole into sequences.

A sequence holds whole examples, each ended by EOS, and EOS that nobody learns up to its end. Ids
take 31 bits; the highest one marks a token that counts in the loss, so shards of examples are
written, stored, checked and mapped like all others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.datasets.manifest import COUNTED, DatasetError
from training.datasets.text.readers import read_lines
from training.datasets.text.sources import Piece, TextFormat
from training.datasets.text.vocabulary import Vocabulary, load_tokenizer
from training.storage import Objects

EXAMPLE_DTYPE = "uint32"
_FIELDS = ("prompt", "response")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt with its response."""

    text: str
    """Both, to tell equal examples."""
    ids: NDArray[np.uint32]
    """With the mark on those that count: the response's and EOS."""


class ExampleReader:
    """Reads and encodes the lines of a part; ``DatasetError`` names file and line."""

    def __init__(self, vocabulary: Vocabulary, *, seq_len: int) -> None:
        self._tokenizer = load_tokenizer(vocabulary.json)
        self._eos, self._seq_len = vocabulary.eos_id, seq_len

    def read(self, objects: Objects, piece: Piece) -> Iterator[Example]:
        """Yield the examples of a piece, in order."""
        if piece.file.kind is not TextFormat.JSONL:
            raise DatasetError(
                f"{objects.uri}/{piece.file.key} is no JSONL, and prompts and responses are; write "
                'one {"prompt": "...", "response": "..."} a line'
            )
        yield from read_lines(objects, piece, self._parse)

    def _parse(self, line: bytes) -> Example:
        """Encode a line; ``ValueError`` says what is wrong with it."""
        prompt, response = _fields(line)
        encoding = self._tokenizer.encode(prompt + response, add_special_tokens=False)
        ids = np.array([*encoding.ids, self._eos], np.uint32)
        if len(ids) > self._seq_len:
            raise ValueError(
                f"prompt and response are {len(ids):,} tokens and a sequence has "
                f"{self._seq_len:,}; shorten them, or tokenize with a larger --response-seq-len"
            )
        # A token that begins in the prompt is not what the model has to say.
        counts = np.array([*(start >= len(prompt) for start, _ in encoding.offsets), True])
        # Nothing comes before the first token of an example, from which it could follow.
        counts[0] = False
        return Example(
            text=f"{prompt}\0{response}", ids=ids | np.where(counts, COUNTED, 0).astype(np.uint32)
        )


def _fields(line: bytes) -> tuple[str, str]:
    try:
        document: Any = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("no UTF-8 text; convert the file (iconv -t UTF-8)") from None
    except ValueError as error:
        raise ValueError(f"no JSON ({error}); write one object a line") from None
    if isinstance(document, dict) and "messages" in document and "prompt" not in document:
        raise ValueError(
            "messages need the model's own chat template; write what it makes of them "
            "(transformers' apply_chat_template) as prompt and response"
        )
    if not isinstance(document, dict) or not all(
        isinstance(document.get(name), str) for name in _FIELDS
    ):
        has = ", ".join(map(repr, document)) if isinstance(document, dict) else "no object"
        raise ValueError(
            f'no text in both "prompt" and "response" (there is {has or "nothing"}); write '
            '{"prompt": "...", "response": "..."}'
        )
    prompt, response = (document[name] for name in _FIELDS)
    if not response.strip():
        raise ValueError("the response is empty, and it is what is learnt; remove the line")
    try:
        (prompt + response).encode()
    except UnicodeEncodeError as error:  # JSON can contain half a character: "\\ud800"
        half = ord((prompt + response)[error.start])
        raise ValueError(f"half a character, U+{half:X}; write the pair or U+FFFD") from None
    return prompt, response


class Packer:
    """Puts whole examples into sequences, in their order."""

    def __init__(self, *, seq_len: int, eos_id: int) -> None:
        self._seq_len, self._eos = seq_len, eos_id
        self._used = 0
        """Tokens of the sequence that is being filled."""
        self.counted = 0
        """Tokens so far that count in the loss."""

    def add(self, ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return what to write: the example, after the rest of a sequence it does not fit into."""
        assert 0 < len(ids) <= self._seq_len, len(ids)
        rest = self.close() if self._used + len(ids) > self._seq_len else _NOTHING
        self._used += len(ids)
        self.counted += int((ids >= COUNTED).sum())
        return np.concatenate([rest, ids])

    def close(self) -> NDArray[np.uint32]:
        """Return the rest of the sequence, which nobody learns."""
        rest = self._seq_len - self._used if self._used else 0
        self._used = 0
        return np.full(rest, self._eos, np.uint32)


_NOTHING = np.empty(0, np.uint32)
