"""One deployment that changes its zone and removes its most expensive resources, with the real CLI.

Each step is a user's command; the account after it is compared with the account before it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rehearsal.deployment import cdk
from rehearsal.deployment.aws import ACCOUNT, EmulatedAccount, client_environment
from rehearsal.deployment.server import server_command, start_server
from rehearsal.deployment.state import ROOT, RehearsalFolder
from rehearsal.proofs import leftovers
from rehearsal.proofs.leftovers import AccountResource

# One deployment serves all tests of this file: `make test` gives a file to one worker.
# `make test` covers what check-deploy reports for each change, in tests/jobs/deploy_check.
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

REGION = "us-west-2"
CLUSTER_KEYS = {
    "eks_admin_arns": f"arn:aws:iam::{ACCOUNT}:role/rehearsal",
    "eks_endpoint_cidrs": "192.0.2.0/24",
}
# Resources that are billed by the hour, or hold user data.
LASTING = {"NAT gateway", "VPC", "address", "bucket", "cluster", "endpoint", "file system"}
BASE = ("VPC", "NAT gateway", "subnet", "bucket", "endpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account after a step."""

    items: frozenset[AccountResource]
    nodes_zone: str | None
    """Zone of the subnet where Batch starts nodes."""
    cluster_nodes_zone: str | None
    """Zone of the subnet where the cluster's node group starts nodes."""
    parameters: dict[str, str]

    def ids(self, *kinds: str) -> set[str]:
        return {item.id for item in self.items if item.kind in kinds}

    @property
    def eks_clusters(self) -> list[str]:
        return [item.id for item in self.items if item.service == "eks"]

    @property
    def stacks(self) -> set[str]:
        return {name.removeprefix("trainium-default-") for name in self.ids("stack")}


@dataclass(slots=True)
class Operator:
    """A user with the CDK CLI and a separate emulator."""

    aws: EmulatedAccount
    environment: dict[str, str]
    folder: Path
    """Parent folder of the cloud assemblies."""
    assemblies: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        cli = cdk.executable(Path(sys.executable).parent)
        return subprocess.run(
            [str(cli), *words], cwd=ROOT, env=self.environment, capture_output=True, text=True
        )

    def deploy(self, orchestrators: str, **keys: object) -> None:
        done = self.try_deploy(orchestrators, **keys)
        assert done.returncode == 0, done.stdout + done.stderr

    def try_deploy(self, orchestrators: str, **keys: object) -> subprocess.CompletedProcess[str]:
        words = ("deploy", "--all", "--method=direct", "--require-approval", "never")
        return self.run(*words, "--app", self._synth(orchestrators, keys))

    def bootstrap(self, **keys: object) -> None:
        app = self._synth("both", keys)
        done = self.run("bootstrap", f"aws://{ACCOUNT}/{REGION}", "--app", app)
        assert done.returncode == 0, done.stderr

    def destroy(self, *stacks: str, orchestrators: str) -> None:
        done = self.run("destroy", "--force", *stacks, "--app", self._synth(orchestrators, {}))
        assert done.returncode == 0, done.stdout + done.stderr

    def _synth(self, orchestrators: str, keys: dict[str, object]) -> str:
        """Synthesize each configuration once, because that takes longer than a deployment."""
        name = "-".join([orchestrators, *(f"{key}={value}" for key, value in keys.items())])
        if name not in self.assemblies:
            folder = self.assemblies[name] = str(self.folder / name)
            pairs = self._context(orchestrators, keys)
            done = self.run("synth", "--quiet", "--output", folder, *pairs)
            assert done.returncode == 0, done.stdout + done.stderr
        return self.assemblies[name]

    def _context(self, orchestrators: str, keys: dict[str, object]) -> list[str]:
        given: dict[str, object] = {
            "orchestrators": orchestrators,
            # Build no image, and retain no bucket.
            "image_uri": "example.com/image:1",
            "retain_data": "false",
            # tests/stacks/test_matrix.py applies its rules to the same templates.
            "cdk_preflight": "false",
            **(CLUSTER_KEYS if orchestrators != "batch" else {}),
            **keys,
        }
        return [word for key, value in given.items() for word in ("-c", f"trainium:{key}={value}")]

    def inspect(self) -> Account:
        """Read the account from the services, not from CloudFormation."""
        parameters = {
            entry["Name"].removeprefix("/trainium/default/"): entry["Value"]
            for page in self.aws.client("ssm").get_paginator("get_parameters_by_path").paginate(
                Path="/trainium/default", Recursive=True
            )
            for entry in page["Parameters"]
        }  # fmt: skip
        return Account(
            items=leftovers.take_inventory(self.aws),
            nodes_zone=self._zone(self._nodes_subnets(parameters)),
            cluster_nodes_zone=self._zone(self._group_subnets(parameters)),
            parameters=parameters,
        )

    def _nodes_subnets(self, parameters: dict[str, str]) -> list[str]:
        if "batch/compute-environment" not in parameters:
            return []
        described = self.aws.client("batch").describe_compute_environments(
            computeEnvironments=[parameters["batch/compute-environment"]]
        )["computeEnvironments"]
        return [subnet for each in described for subnet in each["computeResources"]["subnets"]]

    def _group_subnets(self, parameters: dict[str, str]) -> list[str]:
        if "eks/node-group" not in parameters:
            return []
        described = self.aws.client("eks").describe_nodegroup(
            clusterName=parameters["eks/cluster"], nodegroupName=parameters["eks/node-group"]
        )
        return list(described["nodegroup"]["subnets"])

    def _zone(self, subnets: list[str]) -> str | None:
        if not subnets:
            return None
        described = self.aws.client("ec2").describe_subnets(SubnetIds=subnets)["Subnets"]
        (zone,) = {subnet["AvailabilityZoneId"] for subnet in described}
        return str(zone)


@contextmanager
def started_operator(folder: RehearsalFolder, *, addresses: str) -> Iterator[Operator]:
    """Start an emulator with an empty account."""
    tools: dict[str, Any] = {
        "docker": folder.docker, "bin_folder": Path(sys.executable).parent
    }  # fmt: skip
    server = start_server(
        server_command(processes_per_node=1, addresses=addresses),
        folder=folder,
        environment=client_environment(os.environ, aws=None, **tools),
        on_event=lambda event: None,
    )
    try:
        aws = EmulatedAccount(endpoint=server.wait_ready(folder), region=REGION)
        yield Operator(aws, client_environment(os.environ, aws=aws, **tools), folder.path)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A user with an empty account."""
    folder = RehearsalFolder(tmp_path_factory.mktemp("transitions"))
    with started_operator(folder, addresses="127.0.51") as made:
        yield made


@pytest.fixture(scope="module")
def steps(operator: Operator) -> dict[str, Account]:
    """The account after each step, in order."""
    seen = {"empty": operator.inspect()}
    operator.bootstrap()

    operator.deploy("both")
    seen["both"] = operator.inspect()
    operator.deploy("both", availability_zone_id="usw2-az1")
    seen["other zone"] = operator.inspect()
    operator.deploy("both", lustre_gib=0)
    seen["no file system"] = operator.inspect()
    operator.destroy("--exclusively", "trainium-default-eks", orchestrators="both")
    operator.deploy("batch")
    seen["batch"] = operator.inspect()
    operator.deploy("both")
    seen["both again"] = operator.inspect()
    refused = operator.try_deploy("batch")
    operator.outputs["cluster left behind"] = refused.stdout + refused.stderr
    seen["cluster left behind"] = operator.inspect()
    operator.destroy("--exclusively", "trainium-default-batch", orchestrators="both")
    operator.deploy("eks")
    seen["eks"] = operator.inspect()
    operator.destroy("--all", orchestrators="eks")
    seen["end"] = operator.inspect()
    return seen


def test_zone_change_moves_nodes_of_both_orchestrators(steps: dict[str, Account]) -> None:
    before, after = steps["both"], steps["other zone"]

    assert (before.nodes_zone, before.cluster_nodes_zone) == ("usw2-az4", "usw2-az4")
    assert (after.nodes_zone, after.cluster_nodes_zone) == ("usw2-az1", "usw2-az1")


def test_zone_change_replaces_only_cluster_node_group(
    steps: dict[str, Account],
) -> None:
    before, after = steps["both"], steps["other zone"]
    changed = {
        name
        for name in before.parameters.keys() | after.parameters.keys()
        if before.parameters.get(name) != after.parameters.get(name)
    }

    # Behind the node group is an Auto Scaling group, which is deleted with it.
    replaced = {item.kind for item in after.items ^ before.items}
    assert replaced == {"Auto Scaling group"}
    assert changed == {"eks/node-group", "settings"}


def test_redeployment_removes_file_system_but_no_other_durable_resource(
    steps: dict[str, Account],
) -> None:
    before, after = steps["other zone"], steps["no file system"]

    gone = {item for item in before.items - after.items if item.kind in LASTING}

    assert {item.kind for item in gone} == {"file system"}
    assert after.ids("file system") == set()
    assert after.parameters["lustre"] == "none"


def test_deployment_changes_from_both_to_batch(steps: dict[str, Account]) -> None:
    before, after = steps["no file system"], steps["batch"]

    assert "eks" not in after.stacks
    assert after.eks_clusters == []
    assert after.parameters["orchestrators"] == "batch"
    assert (
        after.parameters["batch/compute-environment"]
        == before.parameters["batch/compute-environment"]
    )
    assert after.ids(*BASE) == before.ids(*BASE)


def test_cluster_and_file_system_are_added_again(steps: dict[str, Account]) -> None:
    after = steps["both again"]

    assert len(after.ids("file system")) == 1
    assert after.parameters["lustre"] in after.ids("file system")
    assert after.eks_clusters == [after.parameters["eks/cluster"]]


def test_file_system_mounted_by_remaining_cluster_is_kept(
    operator: Operator, steps: dict[str, Account]
) -> None:
    before, after = steps["both again"], steps["cluster left behind"]

    assert (
        "cannot be deleted as it is in use by trainium-default-eks"
        in (operator.outputs["cluster left behind"])
    )
    assert after.ids("file system") == before.ids("file system")


def test_deployment_changes_from_both_to_eks(steps: dict[str, Account]) -> None:
    before, after = steps["both again"], steps["eks"]

    assert "batch" not in after.stacks
    assert "batch/compute-environment" not in after.parameters
    assert after.parameters["orchestrators"] == "eks"
    assert after.ids("file system", *BASE) == before.ids("file system", *BASE)
    assert after.parameters["eks/cluster"] == before.parameters["eks/cluster"]


def test_data_jobs_run_on_the_same_queue_throughout(steps: dict[str, Account]) -> None:
    queues = {
        account.parameters.get("batch/cpu-job-queue")
        for name, account in steps.items()
        if name not in ("empty", "end")
    }

    assert len(queues) == 1


def test_nothing_remains(operator: Operator, steps: dict[str, Account]) -> None:
    _, left = leftovers.compare(
        before=steps["empty"].items,
        after=steps["end"].items,
        toolkit=leftovers.toolkit_resources(operator.aws),
    )

    assert left == []
