"""Packed datasets like tokenize's, of made-up ids."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from training.datasets.manifest import PackedManifest, Shard, Source
from training.storage import Objects


def put_shard(objects: Objects, name: str, ids: np.ndarray[Any, Any]) -> Shard:
    """Store ids in the dataset's type."""
    data = ids.tobytes()
    objects.put(name, data)
    digest = hashlib.sha256(data).hexdigest()
    return Shard(name=name, tokens=ids.size, bytes=len(data), sha256=digest)


def put_manifest(objects: Objects, *shards: Shard, **fields: Any) -> PackedManifest:
    """Complete a dataset of these shards; ``fields`` override the manifest's."""
    common: dict[str, Any] = {
        "dtype": "uint16",
        "vocab_size": 256,
        "eos_id": 2,
        "bos": False,
        "tokenizer": "tokenizer.model",
        "tokenizer_file_sha256": "a" * 64,
        "tokenizer_sha256": "b" * 64,
        "num_tokens": sum(shard.tokens for shard in shards),
        "documents": 1,
        "empty_documents": 0,
        "source": Source(uri="none", files=1, bytes=1, text_field="text"),
    }
    manifest = PackedManifest(shards=shards, **{**common, **fields})
    objects.put("manifest.json", manifest.to_json())
    return manifest
