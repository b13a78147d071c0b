"""Build a small, reproducible BERT dataset from botocore's API docs, without network access."""

from __future__ import annotations

import hashlib
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from training.datasets.manifest import (
    DataFile,
    DatasetError,
    DatasetManifest,
    find_complete,
    finish_dataset,
    store_file,
)
from training.datasets.prepared.bert_shards import KIND, empty, facts, write_shard
from training.storage import Objects

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_PREDICTED, _MASKED, _REPLACED = 0.15, 0.8, 0.1
"""Share of tokens to predict, and shares of these to mask and to replace with random ones."""

Ids = list[int]
DOCUMENTS = 1000
"""Default number of documents; yields roughly the sequences that bert-tiny's preset needs."""
_SEQ_LEN, _MAX_PREDICTIONS, _VOCAB_SIZE = 128, 20, 4096
_SHARDS = 8
_SEED = 12345


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSequence:
    """A training sequence with masked tokens."""

    ids: Ids
    """Ids of the sequence, with tokens masked or replaced."""
    segments: Ids
    positions: Ids
    """Positions of the predicted tokens, ascending."""
    labels: Ids
    """Ids of the predicted tokens."""
    is_random: bool
    """True if the second part does not follow the first."""


def make_vocabulary(texts: Iterable[str], size: int) -> list[str]:
    """List pieces by id: special tokens, characters, words by frequency, ties alphabetically."""
    normalizer, splitter = BertNormalizer(), BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    characters = sorted({*string.ascii_lowercase, *string.digits, *string.punctuation})
    pieces = [*_SPECIAL, *characters, *(f"##{character}" for character in characters)]
    known = set(pieces)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (pieces + [word for word in ranked if word not in known])[:size]


def make_tokenizer(vocabulary: Sequence[str]) -> Tokenizer:
    """Create an uncased WordPiece tokenizer with this vocabulary."""
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordPiece(ids, unk_token=_SPECIAL[UNKNOWN]))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def to_sentences(tokenizer: Tokenizer, text: str) -> list[Ids]:
    """Encode each non-empty sentence."""
    pieces = [piece for piece in _SENTENCE_END.split(text) if piece.strip()]
    encodings = tokenizer.encode_batch(pieces, add_special_tokens=False)
    return [list(encoding.ids) for encoding in encodings if encoding.ids]


def examples(
    documents: Sequence[list[Ids]],
    *,
    seq_len: int,
    max_predictions: int,
    vocab_size: int,
    seed: int,
) -> Iterator[MaskedSequence]:
    """Yield sequences of at most ``seq_len`` ids, determined by documents and seed."""
    rng = random.Random(seed)
    room = seq_len - 3  # [CLS] first [SEP] second [SEP]
    for number in range(len(documents)):
        for first, second, is_random in _pairs(documents, number, room, rng):
            _shorten(first, second, room, rng)
            ids = [CLS, *first, SEP, *second, SEP]
            segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
            positions, labels = _mask(ids, max_predictions, vocab_size, rng)
            yield MaskedSequence(
                ids=ids,
                segments=segments,
                positions=positions,
                labels=labels,
                is_random=is_random,
            )


def _pairs(
    documents: Sequence[list[Ids]], number: int, room: int, rng: random.Random
) -> Iterator[tuple[Ids, Ids, bool]]:
    """Split groups of about ``room`` ids into pairs; replace about half of the second parts."""
    sentences = documents[number]
    start = 0
    while start < len(sentences):
        stop, length = start, 0
        while stop < len(sentences) and length < room:
            length += len(sentences[stop])
            stop += 1
        cut = start + 1 if stop - start < 2 else rng.randrange(start + 1, stop)
        first = [token for sentence in sentences[start:cut] for token in sentence]
        if cut == stop or rng.random() < 0.5:
            yield first, _other_sentences(documents, number, room - len(first), rng), True
            start = cut  # reuse the sentences after the cut
        else:
            yield first, [token for sentence in sentences[cut:stop] for token in sentence], False
            start = stop


def _other_sentences(
    documents: Sequence[list[Ids]], number: int, length: int, rng: random.Random
) -> Ids:
    """Pick one or more sentences of another document, about ``length`` ids in total."""
    other = rng.randrange(len(documents) - 1)
    sentences = documents[other + (other >= number)]
    ids: Ids = []
    for sentence in sentences[rng.randrange(len(sentences)) :]:
        ids += sentence
        if len(ids) >= length:
            break
    return ids


def _shorten(first: Ids, second: Ids, room: int, rng: random.Random) -> None:
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if rng.random() < 0.5 else -1)


def _mask(ids: Ids, max_predictions: int, vocab_size: int, rng: random.Random) -> tuple[Ids, Ids]:
    candidates = [position for position, token in enumerate(ids) if token not in (CLS, SEP)]
    count = min(max_predictions, max(1, round(len(candidates) * _PREDICTED)))
    positions = sorted(rng.sample(candidates, count))
    labels = [ids[position] for position in positions]
    for position in positions:
        draw = rng.random()
        if draw < _MASKED:
            ids[position] = MASK
        elif draw < _MASKED + _REPLACED:
            ids[position] = rng.randrange(len(_SPECIAL), vocab_size)
    return positions, labels


def prepare_bert_tiny(
    objects: Objects,
    scratch: Path,
    *,
    documents: Iterable[Mapping[str, str]],
    source: Mapping[str, str],
    report: Callable[[str], None],
) -> DatasetManifest:
    """Convert ``documents``, each with a ``text``, to sequences in eight shards."""
    if (existing := find_complete(objects, source, kind=KIND)) is not None:
        return existing
    report("reading text")
    texts = [document["text"] for document in documents]
    vocabulary = make_vocabulary(texts, _VOCAB_SIZE)
    tokenizer = make_tokenizer(vocabulary)
    ids = []
    for number, text in enumerate(texts):
        report(f"document {number} of {len(texts)}")
        if sentences := to_sentences(tokenizer, text):
            ids.append(sentences)
    if len(ids) < 2:
        raise DatasetError(
            f"sentence pairs need at least 2 documents with text, not {len(ids)}; increase "
            "--max-documents"
        )
    sequences = list(
        examples(
            ids,
            seq_len=_SEQ_LEN,
            max_predictions=_MAX_PREDICTIONS,
            vocab_size=len(vocabulary),
            seed=_SEED,
        )
    )
    # Shuffle, since adjacent sequences come from the same document.
    random.Random(_SEED).shuffle(sequences)
    parts = [part for number in range(_SHARDS) if (part := sequences[number::_SHARDS])]
    shards = tuple(
        _shard(objects, scratch, number, part, report) for number, part in enumerate(parts)
    )
    dataset = DatasetManifest(
        kind=KIND,
        source=source,
        facts={
            **facts(
                seq_len=_SEQ_LEN,
                max_predictions=_MAX_PREDICTIONS,
                vocab_size=len(vocabulary),
                samples=len(sequences),
            ),
            "vocabulary_sha256": hashlib.sha256("\n".join(vocabulary).encode()).hexdigest(),
        },
        shards=shards,
    )
    finish_dataset(objects, dataset)
    return dataset


def _shard(
    objects: Objects,
    scratch: Path,
    number: int,
    part: list[MaskedSequence],
    report: Callable[[str], None],
) -> DataFile:
    arrays = empty(len(part), seq_len=_SEQ_LEN, max_predictions=_MAX_PREDICTIONS)
    for row, sequence in enumerate(part):
        length, count = len(sequence.ids), len(sequence.positions)
        arrays["input_ids"][row, :length] = sequence.ids
        arrays["input_mask"][row, :length] = 1
        arrays["segment_ids"][row, :length] = sequence.segments
        arrays["masked_lm_positions"][row, :count] = sequence.positions
        arrays["masked_lm_ids"][row, :count] = sequence.labels
        arrays["next_sentence_labels"][row] = sequence.is_random
    path = scratch / f"api_docs_training_{number:05d}.hdf5"
    write_shard(path, arrays)
    return store_file(
        objects, path, samples=len(part), on_bytes=lambda count: report(f"uploading {path.name}")
    )
