"""The storage fixtures of the checkpoint tests."""

from tests.training.checkpoint.conftest import (  # noqa: F401 - fixtures
    bucket,
    endpoint,
    faulty_bucket,
    folder,
    objects,
    proxy,
    shared_proxy,
)
