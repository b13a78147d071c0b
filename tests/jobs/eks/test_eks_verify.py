"""`jobs verify` on a deployment with a cluster: what cannot be looked at is said."""

from __future__ import annotations

import json

from jobs.verify.probes import PROBES
from tests.jobs.eks.conftest import EksDesk


def test_a_cluster_with_nodes_and_nothing_else_is_seen_as_that(eks: EksDesk) -> None:
    result = eks.run("verify", "--json")

    found = {entry["id"]: entry for entry in json.loads(result.stdout)["findings"]}
    assert set(found) == set(PROBES.by_id)
    crashed = {name for name, entry in found.items() if entry["state"] == "crashed"}
    # The node group of this test is in a subnet that nobody made.
    assert crashed == {"second-zone"}
    assert found["kubectl-functions"]["state"] == "green"
    assert found["device-plugin-driver"]["seen"].startswith("2 nodes offer all")
