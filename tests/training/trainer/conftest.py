"""The storage that checkpoints are tested on."""

from tests.training.checkpoint.conftest import (  # noqa: F401 - fixtures
    bucket,
    endpoint,
    faulty_bucket,
    folder,
    objects,
    proxy,
    shared_proxy,
)
