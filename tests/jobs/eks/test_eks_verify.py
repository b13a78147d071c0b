"""`jobs verify` on a deployment with a cluster."""

from __future__ import annotations

import json

from jobs.verify.probes import PROBES
from tests.jobs.eks.conftest import EksCli


def test_cluster_with_only_nodes_is_verified(eks: EksCli) -> None:
    result = eks.run("verify", "--json")

    found = {entry["id"]: entry for entry in json.loads(result.stdout)["findings"]}
    assert set(found) == set(PROBES.by_id)
    crashed = {name for name, entry in found.items() if entry["state"] == "crashed"}
    # The node group of this test is in a subnet that does not exist.
    assert crashed == {"second-zone"}
    assert found["kubectl-functions"]["state"] == "green"
    assert found["device-plugin-driver"]["seen"].startswith("all devices advertised by 2 nodes")
