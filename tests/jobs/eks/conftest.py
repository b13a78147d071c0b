"""The deployment of tests/jobs, with an emulated cluster that runs pods."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.eks.models import eks_backends
from typer.testing import Result

from jobs.eks import nodes
from node_scaler.cluster import ClusterClient
from node_scaler.group import ManagedNodeGroup
from node_scaler.rounds import Scaler
from tests.emulators.volcano_jobs import BASE, job
from tests.jobs.conftest import ACCOUNT, REGION, Cli
from tests.node_scaler.rules import RULES
from tests.support.limits import scaled
from trainium_catalogue import contract
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.kubernetes import (
    NAMESPACE,
    NODE_REQUEST,
    TAINT,
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
from trainium_emulators.nodes.faults import NodeFault

eks_nodes.install()
INSTANCE_TYPE = find_instance_type("trn1.32xlarge")
ROOT = Path(__file__).parents[3]
NODE_GROUP = "nodes"
OTHER_QUEUE = "gangs"
"""Unlike in the templates, not the namespace's name, to detect any confusion of the two."""
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


PREREQUISITES = (
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
"""Objects that the pods of real jobs require: queue, volume, service accounts and others."""


_faults: list[NodeFault] = []
"""Faults of the next attempts, one each."""


def open_stream(region: str, group: str, name: str) -> CloudWatchStream:
    """Return a log stream of the account."""
    place = AccountRegion(account_id=ACCOUNT, region=region)
    return CloudWatchStream(place=place, group=group, stream=name)


def _take_fault(run: str) -> NodeFault | None:
    return _faults.pop(0) if _faults and _faults[0].run == run else None


def emulated(settings: EmulatorSettings, *more: Mapping[str, Any]) -> Iterator[ClusterEmulator]:
    """A cluster with these objects, without nodes or jobs."""
    running = serve(settings)
    for manifest in (*BASE, *PREREQUISITES, *more):
        running.apply(dict(manifest))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterEmulator]:
    """A cluster without nodes or jobs."""
    yield from emulated(
        EmulatorSettings(
            addresses="127.0.94",
            count_nodes=True,
            take_fault=_take_fault,
            open_stream=open_stream,
        )
    )


@dataclass(slots=True)
class EksCli:
    """The account with a cluster, and the commands."""

    cli: Cli
    cluster: ClusterEmulator

    def run(self, *arguments: str) -> Result:
        """Run `python -m jobs` in this process."""
        return self.cli.run(*arguments)

    def document(self, *arguments: str) -> dict[str, Any]:
        """Return the JSON document of a successful command."""
        result = self.run(*arguments, "--json")
        assert result.exit_code in (0, 1), result.stderr
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    def nodes(self, number: int) -> None:
        """Set the desired size of the node group; its nodes are Ready immediately."""
        group = self.node_group()
        group.scaling_config = {**group.scaling_config, "desiredSize": number}
        self.cluster.scale(NODE_GROUP, INSTANCE_TYPE, number)

    def node_names(self) -> list[str]:
        """Return the names of the nodes."""
        return [node["metadata"]["name"] for node in self.cluster.store.list(NODE)]

    def mark(self, name: str, **annotations: str) -> None:
        """Annotate a node, as the node scaler does."""
        self.cluster.store.update(
            NODE, "", name, lambda node: node["metadata"].update(annotations=annotations)
        )

    def mark_job(self, name: str, **annotations: str) -> None:
        """Annotate a job, as the node scaler does."""

        def add(job: dict[str, Any]) -> None:
            job["metadata"].setdefault("annotations", {}).update(annotations)

        self.cluster.store.update(VOLCANO_JOB, NAMESPACE, name, add)

    def moto_cluster(self) -> Any:
        """Return moto's own object for the cluster."""
        return eks_backends[ACCOUNT][REGION].clusters["cluster"]

    def node_group(self) -> Any:
        """Return moto's own object for the node group."""
        return eks_backends[ACCOUNT][REGION].describe_nodegroup("cluster", NODE_GROUP)

    def has(self, run: str, script: str, *, nodes: int = 2, tolerates: bool = True) -> None:
        """Create a job of shell scripts on the cluster."""
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
        """Arm faults that make the next attempts of a run of two or more nodes fail preflight."""
        _faults.extend([NodeFault(kind="preflight-failure", run=run)] * attempts)

    def job(self, run: str) -> dict[str, Any] | None:
        """Return the job with this name."""
        return self.cluster.store.find(VOLCANO_JOB, NAMESPACE, run)

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods."""
        return self.cluster.store.list(POD)

    def wait(self, run: str, *phases: str) -> None:
        """Wait until the job is in one of the phases."""
        deadline = time.monotonic() + scaled(20)
        while time.monotonic() < deadline:
            phase = (self.job(run) or {}).get("status", {}).get("state", {}).get("phase")
            if phase in phases:
                return
            time.sleep(0.05)
        raise AssertionError(f"{run} is {phase}, not {phases}")


@pytest.fixture
def eks(cli: Cli, cluster: ClusterEmulator) -> Iterator[EksCli]:
    """The deployment `default` with Batch and a cluster of 2 of at most 4 nodes."""
    yield from eks_cli(cli, cluster)


def eks_cli(cli: Cli, cluster: ClusterEmulator) -> Iterator[EksCli]:
    """The commands and a deployment with this cluster, which is restored afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CLUSTER, "_cluster", cluster)
        patch.setattr(nodes, "PAUSE_S", 0.2)
        yield from _eks_cli(cli, cluster)


def _eks_cli(cli: Cli, cluster: ClusterEmulator) -> Iterator[EksCli]:
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
    cli.parameter(contract.SSM_ORCHESTRATORS, "batch,eks")
    for name, value in EKS_PARAMETERS.items():
        cli.parameter(name, value)
    made = EksCli(cli, cluster)
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
def scaler(eks: EksCli, tmp_path: Path) -> Iterator[list[str]]:
    """Run the node scaler's rounds on this cluster and its group; yield its log."""
    (tmp_path / "token").write_text("scaler")
    log: list[str] = []
    running = Scaler(
        cluster=ClusterClient(eks.cluster.endpoint, tmp_path),
        node_groups={
            "": ManagedNodeGroup(
                cluster="cluster",
                name=NODE_GROUP,
                eks=eks.cli.client("eks"),
                autoscaling=eks.cli.client("autoscaling"),
            )
        },
        namespace=NAMESPACE,
        rules=replace(RULES, cordon_time=timedelta(seconds=1)),
        say=log.append,
    )
    stopping = threading.Event()

    def rounds() -> None:
        while not stopping.wait(0.1):
            running.reconcile(datetime.now(UTC))

    thread = threading.Thread(target=rounds)
    thread.start()
    yield log
    stopping.set()
    thread.join()
