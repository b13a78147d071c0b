"""A deployment with a cluster in which no controller changes the objects that tests create."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobs.conftest import Cli
from tests.jobs.eks.conftest import EksCli, eks_cli, emulated
from trainium_emulators.kubernetes import ClusterEmulator, EmulatorSettings
from trainium_emulators.kubernetes.resources import EVENT, POD


@pytest.fixture(scope="module")
def api_server() -> Iterator[ClusterEmulator]:
    """An API server without controllers, so that a status that a test writes remains."""
    for running in emulated(EmulatorSettings(addresses="127.0.95")):
        running._volcano.stop()
        running._deployments.stop()
        yield running


@pytest.fixture
def eks(cli: Cli, api_server: ClusterEmulator) -> Iterator[EksCli]:
    """The deployment `default` with this cluster."""
    for made in eks_cli(cli, api_server):
        yield made
        for kind in (POD, EVENT):
            for entry in api_server.store.list(kind):
                metadata = entry["metadata"]
                api_server.store.remove(kind, metadata["namespace"], metadata["name"])
