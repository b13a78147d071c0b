"""What a packed dataset says about itself: the manifest that is written last."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCHEMA = 2
_WITHOUT_VALIDATION = 1
"""Schema of a dataset without a validation split, which earlier releases write and read."""
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
class Validation:
    """The documents that training does not see: a stream of its own, in shards of its own."""

    fraction: float
    """Of the documents, as it was asked for."""
    num_tokens: int
    documents: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A packed dataset: one stream of ids, cut into shards, every document ended by ``eos_id``.

    Tokens, documents and shards are those to train on; what is held out is in ``validation``.
    """

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
    validation: Validation | None = None
    """None: nothing was held out."""

    @property
    def files(self) -> tuple[Shard, ...]:
        """Every shard, of both splits."""
        return self.shards + (self.validation.shards if self.validation is not None else ())

    def to_json(self) -> bytes:
        """Equal manifests give equal bytes."""
        document = {"schema": SCHEMA, **asdict(self)}
        if self.validation is None:
            document["schema"] = _WITHOUT_VALIDATION
            del document["validation"]
        return f"{json.dumps(document, indent=1)}\n".encode()

    @staticmethod
    def from_json(data: bytes, *, name: str) -> Manifest:
        """Read a manifest; ``DatasetError`` names what ``name`` lacks."""
        try:
            document: dict[str, Any] = json.loads(data)
            schema = document.pop("schema")
            if schema not in (_WITHOUT_VALIDATION, SCHEMA):
                raise DatasetError(
                    f"{name} has schema {schema}, this release reads {SCHEMA}; tokenize it anew"
                )
            if schema == SCHEMA:
                document["validation"] = Validation(**_with_shards(document["validation"]))
            return Manifest(**{**_with_shards(document), "source": Source(**document["source"])})
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise DatasetError(
                f"{name} is no manifest of a packed dataset ({type(error).__name__}: {error}); "
                "tokenize it anew"
            ) from None


def _with_shards(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "shards": tuple(Shard(**shard) for shard in document["shards"])}


def sha256_of(path: Path) -> str:
    """Checksum of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
