"""Runs of many nodes on a cluster need no more calls than small ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from botocore.client import BaseClient

from jobs.eks.cluster import Cluster
from tests.emulators.volcano_jobs import job
from tests.jobs.eks.conftest import EksCli, emulated
from trainium_catalogue import kubernetes
from trainium_catalogue.kubernetes import NAMESPACE
from trainium_emulators.kubernetes import ClusterEmulator, EmulatorSettings
from trainium_emulators.kubernetes.resources import POD, VOLCANO_JOB

TIME = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterEmulator]:
    """A cluster whose pods are set by the test."""
    for running in emulated(EmulatorSettings(addresses="127.0.98")):
        running._volcano.stop()
        yield running


def plant(cluster: ClusterEmulator, run: str, num_nodes: int) -> None:
    """Add a job running on this many nodes to the cluster."""
    cluster.store.create(VOLCANO_JOB, NAMESPACE, job(run, ["true"], nodes=num_nodes))
    status = {"state": {"phase": "Running", "lastTransitionTime": TIME}}
    cluster.store.set_status(VOLCANO_JOB, NAMESPACE, run, status)
    state = {"running": {"startedAt": TIME}}
    for index in range(num_nodes):
        name = f"{run}-{kubernetes.TASK}-{index}-0"
        metadata = {"name": name, "labels": {"volcano.sh/job-name": run}}
        spec = {"nodeName": f"node-{index}", "containers": [{"name": "node", "image": "image"}]}
        cluster.store.create(POD, NAMESPACE, {"metadata": metadata, "spec": spec})
        shown = {"phase": "Running", "containerStatuses": [{"name": "node", "state": state}]}
        cluster.store.update(POD, NAMESPACE, name, partial(dict.update, status=shown))


def test_number_of_calls_is_independent_of_number_of_nodes(
    eks: EksCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(of: type, name: str) -> None:
        original = getattr(of, name)

        def count(self: Any, *given: Any, **named: Any) -> Any:
            calls.append(str(given[:2]))
            return original(self, *given, **named)

        monkeypatch.setattr(of, name, count)

    counted(Cluster, "open")
    counted(BaseClient, "_make_api_call")

    def calls_of(*command: str) -> list[str]:
        calls.clear()
        assert eks.run(*command).exit_code == 0
        return [*calls]

    plant(eks.cluster, "few", 4)
    few = len(calls_of("list")), len(calls_of("status", "few"))
    plant(eks.cluster, "many", 64)
    many = len(calls_of("list")), len(calls_of("status", "many"))

    assert min(few) > 1
    assert many == few
    # No controller deletes the pods, which the fixture waits for.
    for pod in eks.cluster.store.list(POD):
        eks.cluster.store.remove(POD, NAMESPACE, pod["metadata"]["name"])
