"""The data's complete path through a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.datasets.conftest import Tokenize
from tests.training.s3_server import REGION, s3_client, s3_server
from training.datasets.manifest import DatasetError
from training.datasets.samples.packed import open_dataset
from training.storage import StorageAccess


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Return an emulated S3 with the bucket ``data``."""
    with s3_server("data") as url:
        yield url


def test_an_array_job_writes_the_same_dataset_as_a_single_job(
    endpoint: str, tmp_path: Path, corpus: Path, run_tokenize: Tokenize, small_tokenizer: Path
) -> None:
    s3 = s3_client(endpoint)
    for path in corpus.iterdir():
        s3.upload_file(str(path), "data", f"corpora/mine/{path.name}")
    s3.upload_file(str(small_tokenizer), "data", "tokenizers/tokenizer.json")
    place = StorageAccess(root="s3://data", region=REGION, endpoint_url=endpoint)
    names = {
        "input": "mine",
        "tokenizer": "tokenizer.json",
        "storage": place,
        "shard_tokens": 4096,
    }
    local = run_tokenize(shard_tokens=4096)
    assert local is not None

    first = run_tokenize(**names, array_index=0, array_size=2, processes=2)
    second = run_tokenize(**names, array_index=1, array_size=2)
    objects = place.open("s3://data/datasets/made")
    packed = open_dataset(
        objects, tmp_path / "cache", is_leader=True, wait=lambda: None, report=lambda text: None
    )

    assert first is None
    assert second == packed.manifest
    assert packed.manifest.shards == local.shards
    assert packed.sequence(0, 100).shape == (101,)
    with pytest.raises(DatasetError, match=r"no tokenizer llama.model; known: tokenizer.json"):
        run_tokenize(**{**names, "tokenizer": "llama.model"})
    one = run_tokenize(**{**names, "input": "s3://data/corpora/mine/0.jsonl"}, dataset="one")
    assert one is not None and one.documents == 20
