"""What ``prepare`` knows: corpora for ``tokenize``, and datasets to train on as they are."""

from collections.abc import Mapping
from types import MappingProxyType

CORPORA: Mapping[str, str] = MappingProxyType(
    {
        "wikicorpus": "English Wikipedia of 2006, about a billion tokens: the reference's corpus",
        "aws-api-docs": "AWS's own API documentation, from the botocore package: needs no network",
    }
)
"""Name to what it is: text, below ``corpora/``."""

DATASETS: Mapping[str, str] = MappingProxyType(
    {
        "mnist": "60,000 + 10,000 handwritten digits, for mnist: the reference's",
        "digits": "1,797 handwritten digits that scikit-learn ships, for mnist: needs no network",
        "bert-wikicorpus": "AWS's shards of sequences of 128 from Wikipedia, for bert: 50 GB",
        "bert-tiny": "the same from AWS's API documentation, for bert-tiny: needs no network",
    }
)
"""Name to what it is: ready to train on, below ``datasets/``."""

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson", ".json", ".parquet")
"""Ends of the names of files; ``.gz`` may follow all but Parquet's, which compresses by itself."""
