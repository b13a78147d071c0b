"""The deployment of the other tests with a cluster beside Batch: an API server that runs pods."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.eks.models import eks_backends
from typer.testing import Result

from jobs.eks import nodes
from node_scaler.cluster import ClusterClient
from node_scaler.group import ManagedNodeGroup
from node_scaler.plan import Rules
from node_scaler.rounds import Scaler
from tests.emulators.volcano_jobs import BASE, job
from tests.jobs.conftest import ACCOUNT, REGION, Desk
from tests.support.limits import scaled
from trainium_catalogue import contract
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.kubernetes import (
    NAMESPACE,
    NODE_REQUEST,
    TAINT,
    device_resources,
    pod_resources,
    service_account,
)
from trainium_constructs.eks.manifests import lustre_claim, lustre_name, lustre_volume, node_request
from trainium_constructs.eks.node_logs import AGENT, node_logs
from trainium_constructs.lustre import LustreMount
from trainium_emulators.aws.batch.gang import CloudWatchStream
from trainium_emulators.aws.cloudformation import eks_nodes
from trainium_emulators.aws.cloudformation.contributions import AccountRegion
from trainium_emulators.aws.cloudformation.eks_cluster import CLUSTER
from trainium_emulators.kubernetes import ClusterEmulator, EmulatorSettings, serve
from trainium_emulators.kubernetes.resources import CONFIG_MAP, NODE, POD, VOLCANO_JOB
from trainium_emulators.nodes import events
from trainium_emulators.nodes.faults import NodeFault

eks_nodes.install()
INSTANCE_TYPE = find_instance_type("trn1.32xlarge")
ROOT = Path(__file__).parents[3]
NODE_GROUP = "nodes"
OTHER_QUEUE = "gangs"
"""Not the namespace's name, as in the templates: reading one for the other must show."""
ROLE = f"arn:aws:iam::{ACCOUNT}:role/eks"


def _named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": NAMESPACE}


LUSTRE = LustreMount(file_system_id="fs-0", dns_name="fs-0.example.com", mount_name="fsx")
EKS_PARAMETERS: Mapping[str, str] = {
    contract.SSM_EKS_CLUSTER: "cluster",
    contract.SSM_EKS_NAMESPACE: NAMESPACE,
    contract.SSM_EKS_QUEUE: OTHER_QUEUE,
    contract.SSM_EKS_NODE_GROUP: NODE_GROUP,
    contract.SSM_EKS_IMAGE: "123456789012.dkr.ecr.us-west-2.amazonaws.com/training:1",
    contract.SSM_EKS_JOB_TIME_LIMIT_HOURS: "12",
    contract.SSM_EKS_LUSTRE_CLAIM: lustre_name(LUSTRE),
    contract.SSM_EKS_IDLE_MINUTES: "30",
}


BELONGINGS = (
    *({**each, "metadata": {"name": OTHER_QUEUE}} for each in BASE if each["kind"] == "Queue"),
    lustre_volume(LUSTRE),
    lustre_claim(LUSTRE),
    node_request(),
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": AGENT}},
    *node_logs(instance_type=INSTANCE_TYPE.name, log_group="log-group", region=REGION),
    *(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _named(service_account(name))}
        for name in ("all-reduce", "llama-tiny", "program")
    ),
)
"""What pods of real jobs want in their namespace."""


_faults: list[NodeFault] = []
"""Of the next attempts, one each."""


def open_stream(region: str, group: str, name: str) -> CloudWatchStream:
    """A log stream of the account."""
    place = AccountRegion(account_id=ACCOUNT, region=region)
    return CloudWatchStream(place=place, group=group, stream=name)


def _take_fault(run: str) -> NodeFault | None:
    return _faults.pop(0) if _faults and _faults[0].run == run else None


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterEmulator]:
    """A cluster without nodes and jobs."""
    with pytest.MonkeyPatch.context() as patch:
        # It tells what happens on standard output, which belongs to the commands here.
        patch.setattr(events, "print", lambda *_, **__: None, raising=False)
        settings = EmulatorSettings(
            addresses="127.0.94",
            count_nodes=True,
            take_fault=_take_fault,
            open_stream=open_stream,
        )
        running = serve(settings)
        for manifest in (*BASE, *BELONGINGS):
            running.apply(manifest)
        yield running
        running.stop()


@dataclass(slots=True)
class EksDesk:
    """The account with a cluster, and the commands."""

    desk: Desk
    cluster: ClusterEmulator

    def run(self, *arguments: str) -> Result:
        """Call `python -m jobs` in this process."""
        return self.desk.run(*arguments)

    def document(self, *arguments: str) -> dict[str, Any]:
        """The document of a command that does not refuse."""
        result = self.run(*arguments, "--json")
        assert result.exit_code in (0, 1), result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def nodes(self, number: int) -> None:
        """Have so many ready nodes, as the group wants."""
        group = self.node_group()
        group.scaling_config = {**group.scaling_config, "desiredSize": number}
        self.cluster.scale(NODE_GROUP, INSTANCE_TYPE, number)

    def node_names(self) -> list[str]:
        """Names of the nodes there are."""
        return [node["metadata"]["name"] for node in self.cluster.store.list(NODE)]

    def mark(self, name: str, **annotations: str) -> None:
        """Annotate a node, as the node scaler does."""
        self.cluster.store.update(
            NODE, "", name, lambda node: node["metadata"].update(annotations=annotations)
        )

    def moto_cluster(self) -> Any:
        """moto's own object."""
        return eks_backends[ACCOUNT][REGION].clusters["cluster"]

    def node_group(self) -> Any:
        """moto's own object."""
        return eks_backends[ACCOUNT][REGION].describe_nodegroup("cluster", NODE_GROUP)

    def has(self, run: str, script: str, *, nodes: int = 2, tolerates: bool = True) -> None:
        """Put a job of shell scripts on the cluster."""
        resources = {"limits": pod_resources(INSTANCE_TYPE)}
        self.cluster.apply(
            job(
                run,
                ["sh", "-c", script],
                nodes=nodes,
                resources=resources,
                tolerations=[{"key": TAINT, "operator": "Exists"}] if tolerates else [],
            )
        )

    def fails_preflight(self, run: str, *, attempts: int) -> None:
        """Let a job of two nodes or more end soon and badly: node 1 may open too few files."""
        _faults.extend([NodeFault(kind="preflight-failure", run=run)] * attempts)

    def job(self, run: str) -> dict[str, Any] | None:
        """The job of that name."""
        return self.cluster.store.find(VOLCANO_JOB, NAMESPACE, run)

    def pods(self) -> list[dict[str, Any]]:
        """All pods."""
        return self.cluster.store.list(POD)

    def wait(self, run: str, *phases: str) -> None:
        """Until the job is in one of the phases."""
        deadline = time.monotonic() + scaled(20)
        while time.monotonic() < deadline:
            found = (self.job(run) or {}).get("status", {}).get("state", {}).get("phase")
            if found in phases:
                return
            time.sleep(0.05)
        raise AssertionError(f"{run} is {found}, not {phases}")


@pytest.fixture
def eks(desk: Desk, cluster: ClusterEmulator) -> Iterator[EksDesk]:
    """The deployment `default`, with Batch and a cluster with 2 of at most 4 nodes."""
    yield from eks_desk(desk, cluster)


def eks_desk(desk: Desk, cluster: ClusterEmulator) -> Iterator[EksDesk]:
    """The desk of a deployment with this cluster; leaves the cluster as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CLUSTER, "_cluster", cluster)
        patch.setattr(nodes, "PAUSE_S", 0.2)
        yield from _eks_desk(desk, cluster)


def _eks_desk(desk: Desk, cluster: ClusterEmulator) -> Iterator[EksDesk]:
    backend = eks_backends[ACCOUNT][REGION]
    backend.create_cluster(
        name="cluster",
        role_arn=ROLE,
        resources_vpc_config={"subnetIds": ["subnet-1"], "securityGroupIds": []},
    )
    backend.clusters["cluster"].endpoint = cluster.endpoint
    backend.create_nodegroup(
        cluster_name="cluster",
        node_role=ROLE,
        nodegroup_name=NODE_GROUP,
        subnets=["subnet-1"],
        scaling_config={"minSize": 0, "desiredSize": 0, "maxSize": 4},
        instance_types=[INSTANCE_TYPE.name],
        taints=[{"key": TAINT, "value": "present", "effect": "NO_SCHEDULE"}],
    )
    desk.parameter(contract.SSM_ORCHESTRATORS, "batch,eks")
    for name, value in EKS_PARAMETERS.items():
        desk.parameter(name, value)
    made = EksDesk(desk, cluster)
    made.nodes(2)
    yield made
    _faults.clear()
    cluster.store.update(CONFIG_MAP, NAMESPACE, NODE_REQUEST, lambda each: {**each, "data": {}})
    for entry in cluster.store.list(VOLCANO_JOB):
        cluster.store.delete(VOLCANO_JOB, NAMESPACE, entry["metadata"]["name"])
    cluster.scale(NODE_GROUP, INSTANCE_TYPE, 0)
    deadline = time.monotonic() + scaled(20)
    while cluster.store.list(POD) and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.fixture
def scaler(eks: EksDesk, tmp_path: Path) -> Iterator[list[str]]:
    """The node scaler's own rounds on this cluster and its group; yields its log."""
    (tmp_path / "token").write_text("scaler")
    log: list[str] = []
    running = Scaler(
        cluster=ClusterClient(eks.cluster.endpoint, tmp_path),
        node_group=ManagedNodeGroup(
            cluster="cluster",
            name=NODE_GROUP,
            eks=eks.desk.client("eks"),
            autoscaling=eks.desk.client("autoscaling"),
        ),
        namespace=NAMESPACE,
        rules=Rules(
            idle=timedelta(minutes=30),
            hold=timedelta(minutes=60),
            unusable=timedelta(minutes=10),
            join=timedelta(minutes=20),
            cordon_time=timedelta(seconds=1),
            devices=device_resources(INSTANCE_TYPE),
        ),
        say=log.append,
    )
    ends = threading.Event()

    def rounds() -> None:
        while not ends.wait(0.1):
            running.round(datetime.now(UTC))

    thread = threading.Thread(target=rounds)
    thread.start()
    yield log
    ends.set()
    thread.join()
