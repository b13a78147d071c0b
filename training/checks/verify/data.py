"""What the tiny models learn: made of integers alone, so the same on every platform."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from training.checks.verify.settings import BERT_SEQ_LEN, PREDICTIONS, SEQ_LEN
from training.models.bert.data import IGNORED

Numbers = NDArray[np.int64]
_KINDS = 32
"""Of tokens that occur; each is a multiple of 16 and a little, so all of the vocabulary's parts."""
_FIRST_WORD, _MASK = 8, 4
_PIXELS, _CLASSES = 784, 10


def _chance(positions: range, count: int) -> Numbers:
    """Numbers as good as random, ``[positions, count]``, of 31 bits."""
    place = np.array(positions, np.uint64)[:, None] * np.uint64(count)
    place = place + np.arange(count, dtype=np.uint64)
    # SplitMix64 (Steele, Lea, Flood 2014): neighbours of a weaker one resemble each other.
    mixed = (place + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(33)).astype(np.int64)


def _chains(chance: Numbers) -> Numbers:
    """Kinds of tokens, seven in eight of which follow from the one before the last.

    A model has to look back by one place, neither more nor less: without positions, or with a
    look ahead, it learns something else.
    """
    kinds = chance // 8 % _KINDS
    for column in range(2, kinds.shape[1]):
        follows = (kinds[:, column - 2] + 1) % _KINDS
        kinds[:, column] = np.where(chance[:, column] % 8 == 0, kinds[:, column], follows)
    return kinds


def tokens(positions: range) -> torch.Tensor:
    """For the Llama: int64 ``[positions, seq_len + 1]``, from 0 to 511."""
    kinds = _chains(_chance(positions, SEQ_LEN + 1))
    return torch.from_numpy(kinds * 16 + kinds % 16)


def sentences(positions: range) -> Mapping[str, torch.Tensor]:
    """For the BERT, as ``training.models.bert.data.Batch``: words of 8 to 255, lengths of 10 to 16.

    Every sequence has as many predictions, so that a mean of means is the mean.
    """
    chance = _chance(positions, BERT_SEQ_LEN + PREDICTIONS + 1)
    words = _chains(chance[:, :BERT_SEQ_LEN]) * 7 + _FIRST_WORD
    lengths = BERT_SEQ_LEN - chance[:, -1:] % 7
    mask = np.arange(BERT_SEQ_LEN) < lengths
    # One position in each part of 3 places: never the first, never one twice, none in the padding.
    places = np.arange(PREDICTIONS) * 3 + 1 + chance[:, BERT_SEQ_LEN:-1] % 3
    labels = np.take_along_axis(words, places, axis=1)
    hidden = words * mask
    np.put_along_axis(hidden, places, _MASK, axis=1)
    arrays = {
        "input_ids": hidden,
        "attention_mask": mask,
        "token_type_ids": (np.arange(BERT_SEQ_LEN) >= BERT_SEQ_LEN // 2) * mask,
        "positions": places,
        "labels": labels,
        "next_sentence_label": words[:, 0] % 2,
    }
    batch = {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}
    # A prediction that is not there, as sequences of a real dataset have: of place 0, ignored.
    absent = torch.zeros(len(lengths), 1, dtype=torch.int64)
    batch["positions"] = torch.cat([batch["positions"], absent], dim=1)
    batch["labels"] = torch.cat([batch["labels"], absent + IGNORED], dim=1)
    return batch


def images(positions: range) -> Mapping[str, torch.Tensor]:
    """For the network of digits: float ``[positions, 784]`` from 0 to 1, with labels."""
    chance = _chance(positions, _PIXELS + 1)
    return {
        "images": torch.from_numpy((chance[:, 1:] % 256).astype(np.float32) / 255),
        "labels": torch.from_numpy(chance[:, 0] % _CLASSES),
    }
