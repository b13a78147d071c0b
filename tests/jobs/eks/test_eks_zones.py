"""Several zones on EKS: how commands show and request them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from moto.eks.models import eks_backends

from tests.emulators.volcano_jobs import job, pods, wait
from tests.jobs.conftest import ACCOUNT, REGION
from tests.jobs.eks.conftest import INSTANCE_TYPE, NODE_GROUP, ROLE, EksCli
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.node_use import stamp

OTHER = "nodes-b"
ALL_REDUCE = ("submit", "all-reduce", "--on", "eks", "--nodes", "2", "--dry-run")


@pytest.fixture
def zones(eks: EksCli) -> Iterator[EksCli]:
    """Two nodes in the first zone, and one in the second."""
    eks_backends[ACCOUNT][REGION].create_nodegroup(
        cluster_name="cluster",
        node_role=ROLE,
        nodegroup_name=OTHER,
        subnets=["subnet-2"],
        scaling_config={"minSize": 0, "desiredSize": 1, "maxSize": 4},
        instance_types=[INSTANCE_TYPE.name],
    )
    eks.cluster.scale(OTHER, INSTANCE_TYPE, 1)
    eks.cli.parameter(contract.SSM_EKS_NODE_GROUP, f"usw2-az4={NODE_GROUP},usw2-az1={OTHER}")
    settings = {"orchestrators": "eks", "zone_ids": "usw2-az4,usw2-az1"}
    eks.cli.parameter(contract.SSM_SETTINGS, json.dumps(settings))
    yield eks
    eks.cluster.scale(OTHER, INSTANCE_TYPE, 0)


def waits(zones: EksCli, **notes: str) -> None:
    """A gang that is too large for the nodes of either zone."""
    zones.has("gang", "true", nodes=3)
    zones.mark_job("gang", **{kubernetes.SCALE: "true", **notes})
    zones.wait("gang", "Pending")


def test_scaling_job_has_zone_patience_and_run_node_selector(
    zones: EksCli,
) -> None:
    def payload(*words: str) -> dict[str, dict[str, str]]:
        job = zones.document(*ALL_REDUCE, "--name", "r", *words)["payload"]
        spec = job["spec"]["tasks"][0]["template"]["spec"]
        return {"notes": job["metadata"].get("annotations", {}), "selects": spec["nodeSelector"]}

    assert payload("--scale")["notes"][kubernetes.ZONE_PATIENCE] == "20"
    assert payload("--scale", "--zone-patience", "5")["notes"][kubernetes.ZONE_PATIENCE] == "5"
    assert kubernetes.ZONE_PATIENCE not in payload()["notes"]
    assert payload()["selects"][kubernetes.LABEL_RUN] == "r"


def test_zone_patience_without_scale_is_refused(zones: EksCli) -> None:
    result = zones.run(*ALL_REDUCE, "--zone-patience", "5")

    assert result.exit_code == 2
    assert "--zone-patience 5: the node scaler adds no nodes for this job" in result.stderr
    assert "submit with --scale" in " ".join(result.stderr.split())


def test_ready_nodes_of_two_zones_are_not_added_up(zones: EksCli) -> None:
    result = zones.run("submit", "all-reduce", "--on", "eks", "--nodes", "3")
    said = " ".join(result.stderr.split())

    assert "the cluster has 2 ready nodes of trn1.32xlarge in one zone" in said


def test_scale_shows_and_counts_nodes_of_all_zones(zones: EksCli) -> None:
    said = zones.run("scale").stdout

    assert "3 requested of at most 4, 3 ready" in said
    assert said.count(", usw2-az4): unused") == 2
    assert said.count(", usw2-az1): unused") == 1


def test_status_shows_zone_of_waiting_gang_and_time_of_move(zones: EksCli) -> None:
    since = datetime.now(UTC).replace(microsecond=0)
    waits(zones, **{kubernetes.SHORT_SINCE: stamp(since), kubernetes.ZONE_PATIENCE: "7"})
    document = zones.document("status", "gang")

    assert document["zone"] == {
        "zone": "usw2-az4",
        "next_zone": "usw2-az1",
        "moves_after_ms": 1000 * int((since + timedelta(minutes=7)).timestamp()),
    }
    assert (
        "zone usw2-az4; without capacity it moves to usw2-az1" in zones.run("status", "gang").stdout
    )


def test_gang_in_last_zone_stays(zones: EksCli) -> None:
    waits(zones, **{kubernetes.ZONE: "usw2-az1", kubernetes.ZONES_TRIED: "usw2-az4"})

    assert zones.document("status", "gang")["zone"]["next_zone"] is None
    assert [run["zone"] for run in zones.document("list")["runs"]] == ["usw2-az1"]
    assert "zone usw2-az1" in zones.run("explain", "gang").stdout


def test_status_names_run_admitted_without_nodes(zones: EksCli) -> None:
    limits = {"limits": kubernetes.pod_resources(INSTANCE_TYPE)}
    for run in ("first", "second"):
        selected = {kubernetes.LABEL_RUN: run}
        zones.cluster.apply(job(run, ["true"], resources=limits, nodeSelector=selected))
        wait(lambda: pods(zones.cluster, "first"))
    wait(lambda: "Volcano does not admit the job" in zones.run("status", "second").stdout)
    said = " ".join(zones.run("status", "second").stdout.split())

    assert "run first was admitted first, and has too few nodes" in said
    assert "stop it with `python -m jobs stop first`" in said


def test_explain_reads_group_of_every_zone(zones: EksCli) -> None:
    waits(zones)
    causes = zones.document("explain", "gang")["causes"]
    said = [fact["text"] for cause in causes for fact in cause["evidence"]]

    assert "the job needs 3 nodes; the cluster has 2 ready in one zone" in said


def test_explain_counts_nodes_of_runs_in_all_zones(zones: EksCli) -> None:
    zones.has("ahead", "sleep 600")
    zones.wait("ahead", "Running")
    waits(zones, **{kubernetes.ZONE: "usw2-az1"})
    causes = zones.document("explain", "gang")["causes"]
    said = [fact["text"] for cause in causes for fact in cause["evidence"]]

    assert "ahead (RUNNING, 2): 2 of at most 4 nodes" in said
