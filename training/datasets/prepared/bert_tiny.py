"""Makes a small dataset for BERT out of text that a package ships: no network, always the same."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from training.datasets.manifest import DatasetError
from training.datasets.prepared.bert_shards import KIND, empty, facts, write_shard
from training.datasets.prepared.bert_text import (
    Example,
    examples,
    make_tokenizer,
    make_vocabulary,
    to_sentences,
)
from training.datasets.prepared.ready import DataFile, Ready, find_complete, finish, store
from training.storage import Objects

DOCUMENTS = 1000
"""Unless the user says otherwise: about as many sequences as bert-tiny's preset takes."""
_SEQ_LEN, _MAX_PREDICTIONS, _VOCAB_SIZE = 128, 20, 4096
_SHARDS = 8
_SEED = 12345


def prepare_bert_tiny(
    objects: Objects,
    scratch: Path,
    *,
    documents: Iterable[Mapping[str, str]],
    source: Mapping[str, str],
    report: Callable[[str], None],
) -> Ready:
    """Cut ``documents``, each an object with a ``text``, into sequences in eight shards."""
    if (found := find_complete(objects, source, kind=KIND)) is not None:
        return found
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
            f"{len(ids)} documents with text are too few for pairs of sentences; allow more with "
            "--max-documents"
        )
    made = list(
        examples(
            ids,
            seq_len=_SEQ_LEN,
            max_predictions=_MAX_PREDICTIONS,
            vocab_size=len(vocabulary),
            seed=_SEED,
        )
    )
    # Neighbours come from one document.
    random.Random(_SEED).shuffle(made)
    parts = [part for number in range(_SHARDS) if (part := made[number::_SHARDS])]
    shards = tuple(
        _shard(objects, scratch, number, part, report) for number, part in enumerate(parts)
    )
    dataset = Ready(
        kind=KIND,
        source=source,
        facts={
            **facts(
                seq_len=_SEQ_LEN,
                max_predictions=_MAX_PREDICTIONS,
                vocab_size=len(vocabulary),
                samples=len(made),
            ),
            "vocabulary_sha256": hashlib.sha256("\n".join(vocabulary).encode()).hexdigest(),
        },
        shards=shards,
    )
    finish(objects, dataset)
    return dataset


def _shard(
    objects: Objects,
    scratch: Path,
    number: int,
    part: list[Example],
    report: Callable[[str], None],
) -> DataFile:
    arrays = empty(len(part), seq_len=_SEQ_LEN, max_predictions=_MAX_PREDICTIONS)
    for row, one in enumerate(part):
        length, count = len(one.ids), len(one.positions)
        arrays["input_ids"][row, :length] = one.ids
        arrays["input_mask"][row, :length] = 1
        arrays["segment_ids"][row, :length] = one.segments
        arrays["masked_lm_positions"][row, :count] = one.positions
        arrays["masked_lm_ids"][row, :count] = one.labels
        arrays["next_sentence_labels"][row] = one.is_random
    path = scratch / f"api_docs_training_{number:05d}.hdf5"
    write_shard(path, arrays)
    return store(
        objects, path, samples=len(part), on_bytes=lambda count: report(f"uploading {path.name}")
    )
