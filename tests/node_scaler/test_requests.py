"""The node scaler's requests to the emulated API server and Auto Scaling group."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from node_scaler import __main__ as program
from node_scaler.cluster import ClusterClient, ClusterError
from node_scaler.group import ManagedNodeGroup
from node_scaler.model import IN_SERVICE
from node_scaler.rounds import Scaler
from tests.emulators.volcano_jobs import job, serving
from tests.node_scaler.rules import RULES, TYPE, create_node_groups
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.node_use import stamp
from trainium_emulators.aws.cloudformation import eks_nodes
from trainium_emulators.aws.cloudformation.eks_cluster import CLUSTER
from trainium_emulators.kubernetes import ClusterEmulator
from trainium_emulators.kubernetes.nodes import trainium_group
from trainium_emulators.kubernetes.rbac import ADMIN, Caller
from trainium_emulators.kubernetes.resources import EVENT, NODE, POD
from trainium_emulators.kubernetes.scaling_group import CapacityFaults

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
GROUP = "nodes"


@pytest.fixture(scope="module")
def emulator() -> Iterator[ClusterEmulator]:
    def identify(token: str) -> Caller | None:
        return ADMIN if token == "first" else None

    with serving("127.0.98", count_nodes=True, identify=identify) as running:
        yield running


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    """The folder that the kubelet mounts."""
    (tmp_path / "token").write_text("first\n")
    return tmp_path


@pytest.fixture
def cluster(emulator: ClusterEmulator, credentials: Path) -> ClusterClient:
    return ClusterClient(emulator.endpoint, credentials)


@pytest.fixture
def node_group(
    emulator: ClusterEmulator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ManagedNodeGroup]:
    """A group of two nodes, of at most four."""
    monkeypatch.setattr(CLUSTER, "_cluster", emulator)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    eks_nodes.install()
    with mock_aws():
        groups = create_node_groups("system", GROUP, desired=2)
        emulator.scale(GROUP, TYPE, 2)
        yield groups[GROUP]
        emulator.scale(GROUP, TYPE, 0)


def marks(emulator: ClusterEmulator, name: str) -> dict[str, str]:
    found: dict[str, str] = emulator.store.get(NODE, "", name)["metadata"].get("annotations") or {}
    return found


def scaler_of(cluster: ClusterClient, node_group: ManagedNodeGroup, said: list[str]) -> Scaler:
    return Scaler(
        cluster=cluster,
        node_groups={"": node_group},
        namespace=kubernetes.NAMESPACE,
        rules=RULES,
        say=said.append,
    )


def test_patch_changes_named_fields_and_null_removes(
    emulator: ClusterEmulator, cluster: ClusterClient, node_group: ManagedNodeGroup
) -> None:
    """The API server selects the patch type by content type, and refuses application/json."""
    name = emulator.store.list(NODE)[0]["metadata"]["name"]
    cluster.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"a": "1", "b": "2"}}})
    cluster.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"a": None}}})

    assert marks(emulator, name) == {"b": "2"}


def test_environment_proxy_is_ignored(
    emulator: ClusterEmulator, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    assert ClusterClient(emulator.endpoint, credentials).items("/api/v1/namespaces")


def test_token_is_reread_after_rotation(cluster: ClusterClient, credentials: Path) -> None:
    (credentials / "token").write_text("outdated")
    with pytest.raises(ClusterError, match=r"GET /api/v1/nodes: 401 .*Unauthorized"):
        cluster.items("/api/v1/nodes")

    (credentials / "token").write_text("first")
    assert cluster.items("/api/v1/nodes") == []


def test_terminated_instance_is_not_replaced(
    emulator: ClusterEmulator, node_group: ManagedNodeGroup
) -> None:
    first, second = node_group.read().instances
    node_group.terminate(first)
    left = node_group.read()

    assert (left.desired, left.instances) == (1, {second: IN_SERVICE})
    assert len(emulator.store.list(NODE)) == 1


def test_group_is_raised_to_number(emulator: ClusterEmulator, node_group: ManagedNodeGroup) -> None:
    before = node_group.read()
    node_group.resize(before, 3)

    assert (before.desired, before.max_size, before.changing) == (2, 4, False)
    assert node_group.read().desired == len(emulator.store.list(NODE)) == 3


def test_lowered_group_keeps_delivered_instances(
    emulator: ClusterEmulator, node_group: ManagedNodeGroup
) -> None:
    behind = emulator.scaling_group(trainium_group(GROUP, TYPE))
    behind.plant(CapacityFaults(available=3))
    node_group.resize(node_group.read(), 4)
    waiting = node_group.read()

    assert (waiting.desired, len(waiting.instances), waiting.changing) == (4, 3, False)
    assert node_group.lower(waiting, 2) == 3
    assert node_group.read().instances == waiting.instances
    assert behind.failure() == ""
    behind.plant(CapacityFaults())


def test_round_marks_idle_nodes_and_adds_nodes_for_job(
    emulator: ClusterEmulator, cluster: ClusterClient, node_group: ManagedNodeGroup
) -> None:
    gang = job("asks", ["true"], nodes=3)
    gang["metadata"]["annotations"] = {kubernetes.SCALE: "true"}
    gang["spec"]["minAvailable"] = 3
    resources = {"limits": dict(kubernetes.pod_resources(TYPE))}
    for task in gang["spec"]["tasks"]:
        task["template"]["spec"]["containers"][0]["resources"] = resources
    said: list[str] = []
    scaler = scaler_of(cluster, node_group, said)
    assert scaler.reconcile(NOW) == 0, said
    idle = [marks(emulator, each["metadata"]["name"]) for each in emulator.store.list(NODE)]
    assert [each[kubernetes.IDLE_SINCE] for each in idle] == [stamp(NOW)] * 2

    emulator.apply(gang)
    assert scaler.reconcile(NOW) == 0, said
    told = [each["message"] for each in emulator.store.list(EVENT, kubernetes.NAMESPACE)]
    assert "2 -> 3 nodes for asks" in told


def test_node_cordoned_by_user_stays_cordoned(
    emulator: ClusterEmulator, cluster: ClusterClient, node_group: ManagedNodeGroup
) -> None:
    name = emulator.store.list(NODE)[0]["metadata"]["name"]
    idle = {"metadata": {"annotations": {kubernetes.IDLE_SINCE: stamp(NOW)}}}
    cluster.patch(f"/api/v1/nodes/{name}", {**idle, "spec": {"unschedulable": True}})
    spec = {"nodeName": name, "containers": [{"name": "x", "command": ["true"]}]}
    emulator.store.create(POD, "default", {"metadata": {"name": "late"}, "spec": spec})
    scaler_of(cluster, node_group, []).reconcile(NOW)
    emulator.store.delete(POD, "default", "late", grace_s=0)

    assert kubernetes.IDLE_SINCE not in marks(emulator, name)
    assert emulator.store.get(NODE, "", name)["spec"]["unschedulable"] is True


class Stop(BaseException):
    """Ends the program's loop."""


@pytest.mark.parametrize(
    ("clock", "idle_s", "groups", "named"),
    [
        (None, 1800, "--node-group g", {"": ("c", "g")}),
        (
            "600",
            3,
            "--node-group usw2-az4=g --node-group usw2-az1=h",
            {"usw2-az4": ("c", "g"), "usw2-az1": ("c", "h")},
        ),
    ],
)
def test_program_parses_times_and_names(
    monkeypatch: pytest.MonkeyPatch,
    credentials: Path,
    clock: str | None,
    idle_s: float,
    groups: str,
    named: dict[str, tuple[str, str]],
) -> None:
    made: dict[str, Any] = {}
    pauses: list[float] = []

    class Recorder:
        def __init__(self, **given: Any) -> None:
            made.update(given)

        def reconcile(self, now: datetime) -> int:
            return 0

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        raise Stop

    monkeypatch.setattr(program, "Scaler", Recorder)
    monkeypatch.setattr("node_scaler.__main__.time.sleep", pause)
    environment = {contract.ENV_REGION: "us-west-2"}
    if clock is not None:
        environment[contract.ENV_IDLE_CLOCK] = clock
    words = (
        f"--cluster c {groups} --namespace n --instance-type trn1.32xlarge --idle-minutes 30 "
        "--hold-minutes 60 --api http://a"
    )
    with pytest.raises(Stop):
        program.main([*words.split(), "--credentials", str(credentials)], environment)

    rules = made["rules"]
    assert rules.idle == timedelta(seconds=idle_s)
    assert rules.hold == 2 * rules.idle
    assert rules.devices == RULES.devices
    found = {zone: (each.cluster, each.name) for zone, each in made["node_groups"].items()}
    assert (made["namespace"], found) == ("n", named)
    # It observes a node several times before removal, and a cordon one period later.
    assert timedelta(seconds=pauses[0]) < rules.idle
