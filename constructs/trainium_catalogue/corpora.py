"""Corpora that ``prepare`` knows."""

from collections.abc import Mapping
from types import MappingProxyType

CORPORA: Mapping[str, str] = MappingProxyType(
    {
        "wikicorpus": "English Wikipedia of 2006, about a billion tokens: the reference's corpus",
        "aws-api-docs": "AWS's own API documentation, from the botocore package: needs no network",
    }
)
"""Name to what it is."""
