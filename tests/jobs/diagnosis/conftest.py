"""A deployment with a cluster whose objects stay as they are planted: no controller runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulators.volcano_jobs import BASE
from tests.jobs.conftest import Desk
from tests.jobs.eks.conftest import BELONGINGS, EksDesk, eks_desk
from trainium_emulators.kubernetes import ClusterEmulator, EmulatorSettings, serve
from trainium_emulators.kubernetes.resources import EVENT, POD


@pytest.fixture(scope="module")
def api_server() -> Iterator[ClusterEmulator]:
    """An API server without Volcano's controller, so that a planted status stays."""
    running = serve(EmulatorSettings(addresses="127.0.95"))
    for manifest in (*BASE, *BELONGINGS):
        running.apply(manifest)
    running.stop_controller()
    yield running
    running.stop()


@pytest.fixture
def eks(desk: Desk, api_server: ClusterEmulator) -> Iterator[EksDesk]:
    """The deployment `default` with that cluster."""
    for made in eks_desk(desk, api_server):
        yield made
        for kind in (POD, EVENT):
            for entry in api_server.store.list(kind):
                metadata = entry["metadata"]
                api_server.store.remove(kind, metadata["namespace"], metadata["name"])
