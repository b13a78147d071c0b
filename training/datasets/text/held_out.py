"""Which documents training does not see: a function of a document's text alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_DIGEST_BYTES = 8


def split_documents(texts: Iterable[str], fraction: float) -> tuple[list[str], list[str]]:
    """Documents to train on and those held out, each in their order.

    By a hash of the text: the split depends neither on processes nor on jobs, equal documents are
    on one side, and a document stays on its side when a corpus grows.
    """
    train: list[str] = []
    held_out: list[str] = []
    for text in texts:
        (held_out if _is_held_out(text, fraction) else train).append(text)
    return train, held_out


def _is_held_out(text: str, fraction: float) -> bool:
    if fraction == 0:
        return False
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "little") < fraction * float(2 ** (8 * _DIGEST_BYTES))
