"""Encode text with the fastest encoder that agrees with the plain tokenizer."""

from __future__ import annotations

import json
import logging
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from training.datasets.text.vocabulary import Vocabulary, load_tokenizer

log = logging.getLogger(__name__)

PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    " leading",
    "trailing ",
    "two  spaces",
    "many          spaces",
    " ",
    "   ",
    "\n",
    "\n\n \n",
    "\t",
    "a\r\nb\rc",
    "tabs\t\tand \t mixed",
    "def f(x):\n    return x  # comment\n",
    "don't, can't, I'LL; \"quoted\" 'single' (x) [y] {z}",
    "3.14159 1,000,000 0x1F 1e-9 2024-02-29",
    "\xe9t\xe9 na\xefve stra\xdfe \u0141\xf3d\u017a",
    "e\u0301 combining",
    "\ufb01 ligature",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u3053\u3093\u306b\u3061\u306f",
    "\uc548\ub155",
    "\u0645\u0631\u062d\u0628\u0627",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7",
    "\xa0non\xa0breaking\u2003em\u3000ideographic",
    "\u200bzero\u200dwidth\ufeff",
    "\u2581 literal \u2581\u2581x y\u2581z",
    "\x00\x01\x1f\x7f control",
    "<s> </s> <unk> [INST] <|endoftext|> <0x0A>",
    "</s>",
    "a</s>b <s>c",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "https://example.com/a/b?c=d&e=%20f#g user@example.com C:\\path\\file.txt",
    "\u0660\u0661\u0662 \xbd \u2167 \xb2",
    "x = {'k': [1, 2, 3]}\n\n\n\ny",
    "CamelCaseAndsnake_case-and-kebab",
)
"""Covers spaces, line breaks, scripts, control and joining characters, and added tokens."""


SPACE = "\u2581"
"""SentencePiece's symbol for a space."""
WORD = f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+"
_LLAMA_NORMALIZERS = (
    {"type": "Prepend", "prepend": SPACE},
    {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
)
_CACHED_WORDS = 2_000_000
"""About 300 MB; a natural-language corpus has fewer distinct recurring words."""
Ids = NDArray[Any]
"""Token ids in the type of the shards."""
_FIRST_BATCH_CHECKS = 32
"""Documents verified in a process's first batch; in each later batch, one is verified."""
_MAX_CHECKED_CHARACTERS = 65_536
"""Verifying a longer document costs more than a fast encoder saves."""


def splits_at_spaces(tokenizer: dict[str, Any]) -> bool:
    """Return whether cutting text before every run of spaces leaves the ids unchanged.

    BPE merges adjacent pieces whose concatenation is in the vocabulary. If no piece has a space
    after another character, nothing merges across such a cut, and the two sides are independent.
    Unknown characters could be fused across the cut, so every byte must be in the vocabulary, which
    makes every character known. ``tokenizer`` is the parsed ``tokenizer.json``.
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
        # A token matched in normalized text could start in the middle of a word.
        and not any(token["normalized"] for token in tokenizer["added_tokens"])
    )


def with_word_split(tokenizer: dict[str, Any]) -> str:
    """Return the tokenizer's JSON with a pre-tokenizer that splits text into words."""
    assert splits_at_spaces(tokenizer)
    split = {
        "type": "Split",
        "pattern": {"Regex": WORD},
        "behavior": "Isolated",
        "invert": False,
    }
    return json.dumps({**tokenizer, "pre_tokenizer": split}, ensure_ascii=False)


class WordIds(dict[str, bytes]):
    """Maps words to the bytes of their ids, encoding new words on demand."""

    def __init__(self, model: Any, dtype: np.dtype[Any]) -> None:
        super().__init__()
        self._model = model
        self._code = {2: "H", 4: "I"}[dtype.itemsize]
        self._find = re.compile(WORD).findall

    def __missing__(self, word: str) -> bytes:
        ids = [token.id for token in self._model.tokenize(word)]
        encoded = self[word] = array(self._code, ids).tobytes()
        return encoded

    def encode(self, text: str) -> bytes:
        """Encode a text without added tokens."""
        if len(self) > _CACHED_WORDS:
            self.clear()
        return b"".join(map(self.__getitem__, self._find(SPACE + text.replace(" ", SPACE))))


class Encoder(Protocol):
    """Encodes documents."""

    @property
    def name(self) -> str:
        """Name for the log."""

    def encode(self, texts: Sequence[str]) -> Ids:
        """Encode all texts, each followed by EOS, into one array."""


class ParityError(Exception):
    """A faster encoder fails, or does not agree with the plain tokenizer."""


class PlainEncoder:
    """Plain ``tokenizers``, the reference for faster encoders."""

    name = "tokenizers"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = load_tokenizer(vocabulary.json)
        self._eos = vocabulary.eos_id
        self._dtype = np.dtype(vocabulary.dtype)

    def encode(self, texts: Sequence[str]) -> Ids:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return np.concatenate([np.array([*e.ids, self._eos], self._dtype) for e in encodings])


class WordEncoder:
    """``tokenizers`` with a cache of encoded words; exact if ``splits_at_spaces``."""

    name = "tokenizers with a word cache"

    def __init__(self, vocabulary: Vocabulary, plain: PlainEncoder) -> None:
        document = json.loads(vocabulary.json)
        if not splits_at_spaces(document):
            raise ParityError("words of this vocabulary are not independent of each other")
        self._plain = plain
        self._dtype = np.dtype(vocabulary.dtype)
        self._words = WordIds(load_tokenizer(vocabulary.json).model, self._dtype)
        self._eos = np.array([vocabulary.eos_id], self._dtype).tobytes()
        self._added = tuple(token["content"] for token in document["added_tokens"])

    def encode(self, texts: Sequence[str]) -> Ids:
        pieces = []
        for text in texts:
            if any(token in text for token in self._added):
                pieces.append(self._plain.encode([text]).tobytes())
            else:
                pieces += (self._words.encode(text), self._eos)
        return np.frombuffer(b"".join(pieces), self._dtype)


class FastEncoder:
    """``fastokens``, which is new and therefore used only inside ``CheckedEncoder``."""

    name = "fastokens"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import fastokens

        document = json.loads(vocabulary.json)
        split = splits_at_spaces(document)
        text = with_word_split(document) if split else vocabulary.json
        self._tokenizer = fastokens.Tokenizer.from_json_str(text)
        self._eos = vocabulary.eos_id
        self._dtype = np.dtype(vocabulary.dtype)

    def encode(self, texts: Sequence[str]) -> Ids:
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts))
        flat = np.frombuffer(ids, "<u4")
        ends = np.frombuffer(offsets, "<u8")[1:]
        return np.insert(flat.astype(self._dtype), ends.astype(np.int64), self._eos)


class CheckedEncoder:
    """An encoder whose ids are spot-checked against the plain tokenizer."""

    def __init__(self, encoder: Encoder, plain: PlainEncoder) -> None:
        self._encoder, self._plain = encoder, plain
        self._num_checked = _FIRST_BATCH_CHECKS
        self.name = encoder.name
        self._compare(PROBES)

    def encode(self, texts: Sequence[str]) -> Ids:
        """Encode all texts, each followed by EOS; raise ``ParityError`` if checked ids differ."""
        candidates = [text for text in texts if len(text) <= _MAX_CHECKED_CHARACTERS]
        self._compare(candidates[: self._num_checked])
        self._num_checked = 1
        return self._ids(texts)

    def _ids(self, texts: Sequence[str]) -> Ids:
        try:
            return self._encoder.encode(texts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # pyo3's panics are not Exceptions
            raise ParityError(f"{self.name} failed: {type(error).__name__}: {error}") from None

    def _compare(self, texts: Sequence[str]) -> None:
        for text in texts:
            if not np.array_equal(self._ids([text]), self._plain.encode([text])):
                raise ParityError(
                    f"{self.name} and tokenizers give different IDs for {text[:40]!r}"
                )


def encoders(vocabulary: Vocabulary, *, accelerate: bool) -> Iterator[Encoder]:
    """Yield the encoders for this vocabulary, fastest first; the last is the plain one.

    Each is created on demand, because loading a vocabulary is slow.
    """
    plain = PlainEncoder(vocabulary)
    if accelerate and (fast := _fast_encoder(vocabulary, plain)):
        yield fast
    if words := _word_encoder(vocabulary, plain):
        yield words
    yield plain


def _fast_encoder(vocabulary: Vocabulary, plain: PlainEncoder) -> Encoder | None:
    try:
        return CheckedEncoder(FastEncoder(vocabulary), plain)
    # Not installed, unsupported tokenizer, or different ids.
    except Exception as error:
        log.info("fastokens is not used; encoding is slower: %s: %s", type(error).__name__, error)
        return None


def _word_encoder(vocabulary: Vocabulary, plain: PlainEncoder) -> Encoder | None:
    try:
        return CheckedEncoder(WordEncoder(vocabulary, plain), plain)
    except ParityError:
        return None  # most vocabularies: they already split text into words
