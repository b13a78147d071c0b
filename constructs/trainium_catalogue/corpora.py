"""Corpora that ``prepare`` knows, and the files of text that ``tokenize`` reads."""

from collections.abc import Mapping
from types import MappingProxyType

CORPORA: Mapping[str, str] = MappingProxyType(
    {
        "wikicorpus": "English Wikipedia of 2006, about a billion tokens: the reference's corpus",
        "aws-api-docs": "AWS's own API documentation, from the botocore package: needs no network",
    }
)
"""Name to what it is."""

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson", ".json", ".parquet")
"""Ends of the names of files; ``.gz`` may follow all but Parquet's, which compresses by itself."""
