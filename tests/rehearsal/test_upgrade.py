"""A new Kubernetes version, then a new AMI, with the real CDK CLI under a running gang."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from rehearsal.deployment.server import wait_until
from rehearsal.deployment.state import RehearsalFolder
from tests.rehearsal.rehearsals import kept_up, run_script, submit_program
from tests.support.limits import scaled
from trainium_catalogue.eks import DEFAULT_KUBERNETES_VERSION
from trainium_catalogue.kubernetes import TAINT

# One deployment serves all tests of this file, in their order. `make test` covers the templates
# (tests/stacks) and what check-deploy reports for such changes (tests/jobs/deploy_check).
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

NEXT = "1.36"
OLDER_IMAGE = f"{NEXT}.2-20260618"
"""Older than the pinned one: a node group takes newer images only."""
# It ends when the test requests it, in any attempt.
WAITS = "import pathlib, time\n\nwhile not pathlib.Path({end!r}).exists():\n    time.sleep(0.2)\n"
ASK = """\
import boto3, json, urllib.request
eks = boto3.client("eks")
(name,) = eks.list_clusters()["clusters"]
found = eks.describe_cluster(name=name)["cluster"]
with urllib.request.urlopen(found["endpoint"] + "/api/v1/nodes") as answer:
    nodes = json.load(answer)["items"]
groups = [eks.describe_nodegroup(clusterName=name, nodegroupName=each)["nodegroup"]
          for each in eks.list_nodegroups(clusterName=name)["nodegroups"]]
print(json.dumps({"version": found["version"], "nodes": nodes,
                  "images": [group["releaseVersion"] for group in groups]}))
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RehearsalFolder]:
    """A deployment on EKS with a gang that runs on two nodes."""
    folder = RehearsalFolder(tmp_path_factory.mktemp("up"))
    words = ("--orchestrators", "eks", "--addresses", "127.0.53")
    with kept_up(folder, *words):
        (folder.path / "ask.py").write_text(ASK)
        program = WAITS.format(end=str(folder.path / "end"))
        submit_program(folder, program, "--nodes", "2", "--name", "gang", "--scale")
        assert wait_until(lambda: runs_in_attempt(folder) == 1, limit_s=scaled(60)), gang(folder)
        yield folder


def gang(folder: RehearsalFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_script(folder, "python -m jobs status gang --json")[1])
    return found


def runs_in_attempt(folder: RehearsalFolder) -> int:
    """Number of the attempt that runs on both nodes; 0 if none does."""
    found = gang(folder)
    running = [node for node in found["nodes"] if node["status"] == "RUNNING"]
    return len(found["attempts"]) + 1 if len(running) == 2 else 0


def ask(folder: RehearsalFolder) -> dict[str, Any]:
    code, output = run_script(folder, f"python {folder.path / 'ask.py'}")
    assert code == 0, output
    found: dict[str, Any] = json.loads(output)
    return found


def trainium_nodes(found: dict[str, Any]) -> dict[str, str]:
    """Kubelet versions by node uid."""
    return {
        node["metadata"]["uid"]: node["status"]["nodeInfo"]["kubeletVersion"].rpartition(".")[0]
        for node in found["nodes"]
        if TAINT in {taint["key"] for taint in node["spec"].get("taints", ())}
    }


def deploy(folder: RehearsalFolder, *keys: str) -> None:
    """The command of docs/upgrading.md, with the context of the deployment."""
    pairs = " ".join(f"-c trainium:{key}" for key in keys)
    deploying = f"CDK_DOCKER={folder.docker} rehearsal_deploy"
    code, output = run_script(folder, f"{{ rehearsal_synth {pairs} && {deploying}; }} 2>&1")
    assert code == 0, output


def test_version_upgrade_restarts_gang_on_new_nodes(
    up: RehearsalFolder,
) -> None:
    before = ask(up)

    deploy(up, f"kubernetes_version={NEXT}", f"eks_node_image={OLDER_IMAGE}")
    after = ask(up)

    assert (before["version"], after["version"]) == (DEFAULT_KUBERNETES_VERSION, NEXT)
    assert wait_until(lambda: runs_in_attempt(up) == 2, limit_s=scaled(90)), gang(up)
    assert set(trainium_nodes(before).values()) == {f"v{DEFAULT_KUBERNETES_VERSION}"}
    assert set(trainium_nodes(ask(up)).values()) == {f"v{NEXT}"}
    assert not trainium_nodes(before).keys() & trainium_nodes(ask(up)).keys()
    assert all(image.startswith(f"{NEXT}.") for image in after["images"])


def test_image_upgrade_keeps_control_plane(
    up: RehearsalFolder,
) -> None:
    before = ask(up)

    deploy(up, f"kubernetes_version={NEXT}")
    after = ask(up)

    assert OLDER_IMAGE in before["images"] and OLDER_IMAGE not in after["images"]
    assert wait_until(lambda: runs_in_attempt(up) == 3, limit_s=scaled(90)), gang(up)
    assert before["version"] == after["version"]


def test_gang_completes_after_two_upgrades(up: RehearsalFolder) -> None:
    (up.path / "end").touch()

    assert wait_until(lambda: gang(up)["status"] == "SUCCEEDED", limit_s=scaled(60)), gang(up)


def test_skipping_version_is_refused_without_change(up: RehearsalFolder) -> None:
    code, output = run_script(
        up, "{ rehearsal_synth -c trainium:kubernetes_version=1.34 && rehearsal_deploy; } 2>&1"
    )

    assert code != 0
    assert re.search(r"TrainingCluster\w+: Unsupported Kubernetes minor version update", output), (
        output
    )
    assert ask(up)["version"] == NEXT
