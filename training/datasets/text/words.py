"""An exact short cut for SentencePiece vocabularies: words are encoded once and remembered."""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

import numpy as np

SPACE = "\u2581"
"""What SentencePiece writes for a space."""
WORD = f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+"
_LLAMA_NORMALIZERS = (
    {"type": "Prepend", "prepend": SPACE},
    {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
)
_CACHED_WORDS = 2_000_000
"""About 300 MB; more words than a natural-language corpus repeats."""


def splits_at_spaces(tokenizer: dict[str, Any]) -> bool:
    """Whether cutting text before every run of spaces cannot change its ids.

    BPE joins neighbours whose concatenation is in the vocabulary. Where no piece has a space after
    another character, nothing is ever joined across such a place, and the two sides do not see
    each other. Unknown characters would be fused across it, so every byte must be in the
    vocabulary, which leaves none unknown. ``tokenizer`` is the document ``tokenizer.json``.
    """
    model = tokenizer["model"]
    if model["type"] != "BPE" or tokenizer.get("pre_tokenizer") is not None:
        return False
    plain = not any(
        model.get(key)
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
    )
    normalizer = tokenizer.get("normalizer") or {}
    steps = normalizer.get("normalizers", [])
    vocabulary = model["vocab"]
    return (
        plain
        and normalizer.get("type") == "Sequence"
        and tuple(steps) == _LLAMA_NORMALIZERS
        and bool(model.get("byte_fallback"))
        and SPACE in vocabulary
        and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        and not any(SPACE in piece.lstrip(SPACE) for piece in vocabulary)
        # One that is searched in normalised text could begin in the middle of a word.
        and not any(token["normalized"] for token in tokenizer["added_tokens"])
    )


def with_word_split(tokenizer: dict[str, Any]) -> str:
    """The same tokenizer, cutting text into words before it looks for pieces."""
    assert splits_at_spaces(tokenizer)
    split = {
        "type": "Split",
        "pattern": {"Regex": WORD},
        "behavior": "Isolated",
        "invert": False,
    }
    return json.dumps({**tokenizer, "pre_tokenizer": split}, ensure_ascii=False)


class WordIds(dict[str, bytes]):
    """Word to the bytes of its ids; a word that is new is looked up."""

    def __init__(self, model: Any, dtype: np.dtype[Any]) -> None:
        super().__init__()
        self._model = model
        self._code = {2: "H", 4: "I"}[dtype.itemsize]
        self._find = re.compile(WORD).findall

    def __missing__(self, word: str) -> bytes:
        ids = [token.id for token in self._model.tokenize(word)]
        found = self[word] = array(self._code, ids).tobytes()
        return found

    def encode(self, text: str) -> bytes:
        """Ids of a text without added tokens."""
        if len(self) > _CACHED_WORDS:
            self.clear()
        return b"".join(map(self.__getitem__, self._find(SPACE + text.replace(" ", SPACE))))
