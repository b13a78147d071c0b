"""A deployment in two zones: jobs without capacity in the first run in the second."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rehearsal.deployment.server import wait_until
from rehearsal.deployment.state import ROOT, RehearsalFolder
from tests.rehearsal.test_transitions import Operator, started_operator
from tests.support.limits import scaled
from trainium_emulators.aws.batch.scheduler import FULL_ZONES
from trainium_emulators.aws.cloudformation.eks_nodes import CAPACITY_FAULTS

# One deployment serves both tests. `make test` covers the function without its package
# in tests/emulators/test_zone_moves.py, and the node scaler in tests/node_scaler/test_zones.py.
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

FIRST, SECOND = "usw2-az4", "usw2-az1"
SMALL = (
    *("all-reduce", "--nodes", "2", "--zone-patience", "0", "--yes"),
    *("--set", "max-bytes=1024", "--set", "iterations=2", "--set", "seconds-per-size=1"),
)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A deployment in two zones, of which the first has too few instances for two nodes."""
    folder = RehearsalFolder(tmp_path_factory.mktemp("zones"))
    with started_operator(folder, addresses="127.0.57") as made:
        made.bootstrap(zone_ids=f"{FIRST},{SECOND}")
        made.deploy("both", zone_ids=f"{FIRST},{SECOND}")
        yield made


def jobs(operator: Operator, *words: str) -> str:
    """Return the output of a successful command."""
    command = [sys.executable, "-m", "jobs", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=operator.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plant(operator: Operator, name: str, value: str) -> None:
    operator.aws.client("ssm").put_parameter(Name=name, Value=value, Type="String")


def call_function(operator: Operator) -> None:
    """Call the deployed function as its schedule does."""
    stack = operator.aws.client("cloudformation").describe_stack_resources(
        StackName="trainium-default-batch"
    )
    (function,) = [
        each["PhysicalResourceId"]
        for each in stack["StackResources"]
        if each["ResourceType"] == "AWS::Lambda::Function"
    ]
    answer = operator.aws.client("lambda").invoke(FunctionName=function, Payload=b"{}")
    assert "FunctionError" not in answer, answer["Payload"].read()


def parameter(operator: Operator, name: str) -> str:
    found = operator.aws.client("ssm").get_parameter(Name=f"/trainium/default/{name}")
    return str(found["Parameter"]["Value"])


def num_wanted(operator: Operator) -> dict[str, int]:
    """Desired number of nodes of each zone's group."""
    cluster, eks = parameter(operator, "eks/cluster"), operator.aws.client("eks")
    return {
        zone: eks.describe_nodegroup(clusterName=cluster, nodegroupName=group)["nodegroup"][
            "scalingConfig"
        ]["desiredSize"]
        for zone, group in node_groups(operator).items()
    }


def node_groups(operator: Operator) -> dict[str, str]:
    """Names of the node groups by zone."""
    return dict(each.split("=") for each in parameter(operator, "eks/node-group").split(","))


def test_batch_job_is_moved_once_by_deployed_function_and_finishes(operator: Operator) -> None:
    plant(operator, FULL_ZONES, FIRST)
    jobs(operator, "submit", *SMALL, "--on", "batch", "--name", "moved")
    assert wait_until(lambda: "CAPACITY" in jobs(operator, "status", "moved"), limit_s=scaled(30))

    call_function(operator)
    jobs(operator, "logs", "moved", "--follow")
    call_function(operator)

    listed = json.loads(jobs(operator, "list", "--json"))["runs"]
    assert [(each["zone"], each["status"]) for each in listed if each["run"] == "moved"] == [
        (SECOND, "SUCCEEDED"),
        (FIRST, "FAILED"),
    ]


def test_eks_gang_is_moved_by_node_scaler_without_leftover_nodes(operator: Operator) -> None:
    plant(
        operator, f"{CAPACITY_FAULTS}/{node_groups(operator)[FIRST]}", json.dumps({"available": 1})
    )
    jobs(operator, "submit", *SMALL, "--on", "eks", "--scale", "--name", "gang")
    jobs(operator, "logs", "gang", "--follow")

    status = json.loads(jobs(operator, "status", "gang", "--json"))
    assert (status["status"], status["zone"]["zone"]) == ("SUCCEEDED", SECOND)
    wanted = {FIRST: 0, SECOND: 2}
    assert wait_until(lambda: num_wanted(operator) == wanted, limit_s=scaled(60)), num_wanted(
        operator
    )
