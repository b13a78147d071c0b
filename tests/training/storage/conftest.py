"""The storage fixtures of the checkpoint tests."""

from tests.training.checkpoint.conftest import (
    bucket,
    endpoint,
    faulty_bucket,
    folder,
    objects,
    proxy,
    shared_proxy,
    small_parts,
)

__all__ = [
    "bucket",
    "endpoint",
    "faulty_bucket",
    "folder",
    "objects",
    "proxy",
    "shared_proxy",
    "small_parts",
]
