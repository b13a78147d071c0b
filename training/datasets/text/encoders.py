"""Text to ids, by the fastest way that gives the ids of the plain tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from training.datasets.text.probes import PROBES
from training.datasets.text.vocabulary import Vocabulary, load_tokenizer
from training.datasets.text.words import WordIds, splits_at_spaces, with_word_split

Ids = NDArray[Any]
"""Token ids in the type of the shards."""

_CHECKED_AT_FIRST = 32
"""Documents of a process's first batch that are encoded twice; of every later batch it is one."""
_LONGEST_CHECKED = 65_536
"""Characters; a longer document would make its check take longer than what it saves."""


class Encoder(Protocol):
    """Encodes documents."""

    @property
    def name(self) -> str:
        """For the log."""

    def encode(self, texts: Sequence[str]) -> Ids:
        """Ids of each text, every one followed by EOS, as one array."""


class ParityError(Exception):
    """A faster encoder gave other ids than the plain tokenizer."""


class PlainEncoder:
    """``tokenizers`` as it is: what the others must agree with."""

    name = "tokenizers"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = load_tokenizer(vocabulary.json)
        self._eos = vocabulary.eos_id
        self._dtype = np.dtype(vocabulary.dtype)

    def encode(self, texts: Sequence[str]) -> Ids:
        """Ids of each text, every one followed by EOS, as one array."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return np.concatenate([np.array([*e.ids, self._eos], self._dtype) for e in encodings])


class WordEncoder:
    """``tokenizers`` for each word that is new, a table for all others; exact by its check."""

    name = "tokenizers, words remembered"

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
        """Ids of each text, every one followed by EOS, as one array."""
        pieces = []
        for text in texts:
            if any(token in text for token in self._added):
                pieces.append(self._plain.encode([text]).tobytes())
            else:
                pieces += (self._words.encode(text), self._eos)
        return np.frombuffer(b"".join(pieces), self._dtype)


class FastEncoder:
    """``fastokens``, which is young: only inside ``Checked``."""

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
        """Ids of each text, every one followed by EOS, as one array."""
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts))
        flat = np.frombuffer(ids, "<u4")
        ends = np.frombuffer(offsets, "<u8")[1:]
        return np.insert(flat.astype(self._dtype), ends.astype(np.int64), self._eos)


class Checked:
    """An encoder whose ids are compared with the plain tokenizer's, now and then."""

    def __init__(self, encoder: Encoder, plain: PlainEncoder) -> None:
        self._encoder, self._plain = encoder, plain
        self._at_first = _CHECKED_AT_FIRST
        self.name = encoder.name
        self._compare(PROBES)

    def encode(self, texts: Sequence[str]) -> Ids:
        """Ids of each text, every one followed by EOS; ``ParityError`` when any compared differ."""
        some = [text for text in texts if len(text) <= _LONGEST_CHECKED]
        self._compare(some[: self._at_first])
        self._at_first = 1
        return self._ids(texts)

    def _ids(self, texts: Sequence[str]) -> Ids:
        try:
            return self._encoder.encode(texts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception (pyo3)
            raise ParityError(f"{self.name} fails: {type(error).__name__}: {error}") from None

    def _compare(self, texts: Sequence[str]) -> None:
        for text in texts:
            if not np.array_equal(self._ids([text]), self._plain.encode([text])):
                raise ParityError(f"{self.name} gives other ids than tokenizers for {text[:40]!r}")


def encoders(vocabulary: Vocabulary, *, accelerate: bool) -> Iterator[Encoder]:
    """What can encode with this vocabulary, fastest first; the last one is plain.

    Each is made when it is asked for, because loading a vocabulary takes a while.
    """
    plain = PlainEncoder(vocabulary)
    if accelerate and (fast := _fast_encoder(vocabulary, plain)):
        yield fast
    if words := _word_encoder(vocabulary, plain):
        yield words
    yield plain


def _fast_encoder(vocabulary: Vocabulary, plain: PlainEncoder) -> Encoder | None:
    try:
        return Checked(FastEncoder(vocabulary), plain)
    # Not installed, a kind of tokenizer it does not know, or other ids.
    except Exception as error:
        print(f"fastokens is not used: {type(error).__name__}: {error}", flush=True)
        return None


def _word_encoder(vocabulary: Vocabulary, plain: PlainEncoder) -> Encoder | None:
    try:
        return Checked(WordEncoder(vocabulary, plain), plain)
    except ParityError:
        return None  # most vocabularies, and those split text into words by themselves
