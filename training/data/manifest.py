"""What a packed dataset says about itself: the manifest that is written last."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
TOKENIZER_FILE = "tokenizer.json"
"""The tokenizer that made the ids, in Hugging Face's own format, beside the manifest."""
_HASH_BLOCK_BYTES = 4 * 1024 * 1024


class DatasetError(ValueError):
    """A dataset that cannot be made or read as asked; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of token ids, little-endian, without a header."""

    name: str
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the text came from."""

    uri: str
    files: int
    bytes: int
    text_field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A packed dataset: one stream of ids, cut into shards, every document ended by ``eos_id``."""

    dtype: str
    """``uint16``, or ``uint32`` where the vocabulary is larger than 65,535."""
    vocab_size: int
    eos_id: int
    bos: bool
    """Whether documents begin with a BOS id; never so far."""
    tokenizer: str
    """Name of the file that was uploaded."""
    tokenizer_file_sha256: str
    """Of that file."""
    tokenizer_sha256: str
    """Of the ``tokenizer.json`` beside the manifest: what fixes the ids."""
    num_tokens: int
    documents: int
    empty_documents: int
    """Left out."""
    source: Source
    shards: tuple[Shard, ...]

    def to_json(self) -> bytes:
        """Equal manifests give equal bytes."""
        return f"{json.dumps({'schema': SCHEMA, **asdict(self)}, indent=1)}\n".encode()

    @staticmethod
    def from_json(data: bytes, *, name: str) -> Manifest:
        """Read a manifest; ``DatasetError`` names what ``name`` lacks."""
        try:
            document: dict[str, Any] = json.loads(data)
            schema = document.pop("schema")
            if schema != SCHEMA:
                raise DatasetError(
                    f"{name} has schema {schema}, this release reads {SCHEMA}; tokenize it anew"
                )
            return Manifest(
                **{
                    **document,
                    "source": Source(**document["source"]),
                    "shards": tuple(Shard(**shard) for shard in document["shards"]),
                }
            )
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise DatasetError(
                f"{name} is no manifest of a packed dataset ({type(error).__name__}: {error}); "
                "tokenize it anew"
            ) from None


def sha256_of(path: Path) -> str:
    """Checksum of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
