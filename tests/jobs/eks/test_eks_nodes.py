"""`scale`, and the kubeconfig with which kubectl and torchx come in."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest
import yaml
from urllib3.exceptions import HTTPError

from jobs import torchx_components
from jobs.eks.nodes import NodeGroup, Progress, wait_for_nodes
from jobs.errors import Refusal
from rehearsal.deployment import binaries
from tests.jobs.eks.conftest import ROOT, EksDesk
from tests.support.limits import scaled
from tests.support.schemas import conforms
from trainium_catalogue import contract

GROUP = NodeGroup(status="ACTIVE", wanted=2, most=4, troubles=())


@pytest.mark.usefixtures("scaler")
def test_scale_tells_the_price_first(eks: EksDesk) -> None:
    eks.nodes(0)

    assert "0 -> 2 nodes of trn1.32xlarge, about $43.00 an hour" in (
        eks.run("scale", "--nodes", "2", "--yes").stderr
    )


def test_nodes_are_not_added_when_nobody_can_be_asked(eks: EksDesk) -> None:
    result = eks.run("scale", "--nodes", "3")

    assert result.exit_code == 2
    assert "adding nodes is asked about, and standard input is not a terminal; add --yes" in (
        result.stderr
    )
    assert eks.node_group().scaling_config["desiredSize"] == 2


def test_scale_goes_as_far_as_the_deployment(eks: EksDesk) -> None:
    result = eks.run("scale", "--nodes", "5")

    assert result.exit_code == 2
    assert "scale to 4 or fewer" in result.stderr
    assert "-c trainium:max_nodes=5" in result.stderr


def test_a_deployment_without_a_cluster_has_no_kubeconfig(eks: EksDesk, tmp_path: Path) -> None:
    eks.desk.parameter(contract.SSM_ORCHESTRATORS, "batch")
    result = eks.run("kubeconfig", "--kubeconfig", str(tmp_path / "config"))

    assert result.exit_code == 2
    assert "-c trainium:orchestrators=batch,eks" in result.stderr


def test_kubectl_comes_in_with_the_kubeconfig(eks: EksDesk, tmp_path: Path) -> None:
    file = tmp_path / "config"
    document = eks.document("kubeconfig", "--kubeconfig", str(file))
    kubectl = subprocess.run(
        [binaries.kubectl(), "get", "nodes", "-o", "name"],
        env={**os.environ, "KUBECONFIG": str(file)},
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )

    conforms("jobs-kubeconfig", document)
    assert kubectl.stdout.split() == ["node/nodes-0", "node/nodes-1"], kubectl.stderr


def test_what_else_is_in_the_kubeconfig_stays(eks: EksDesk, tmp_path: Path) -> None:
    file = tmp_path / "config"
    other = {"name": "other", "context": {"cluster": "other", "user": "other"}}
    stale = {"name": "trainium-default", "context": {"cluster": "gone", "user": "gone"}}
    file.write_text(yaml.safe_dump({"contexts": [other, stale], "current-context": "other"}))
    result = eks.run("kubeconfig", "--kubeconfig", str(file))
    again = eks.run("kubeconfig", "--kubeconfig", str(file))
    written = yaml.safe_load(file.read_text())

    assert [item["name"] for item in written["contexts"]] == ["other", "trainium-default"]
    assert written["contexts"][1]["context"]["namespace"] == "trainium"
    assert written["current-context"] == "trainium-default"
    assert file.stat().st_mode & 0o077 == 0
    assert (
        f"current context was: other; go back to it with: kubectl config --kubeconfig {file} "
        "use-context other"
    ) in result.stderr
    assert "was:" not in again.stderr


def test_a_kubeconfig_that_is_a_link_stays_one(eks: EksDesk, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("contexts: []")
    (tmp_path / "config").symlink_to(kept)
    eks.run("kubeconfig", "--kubeconfig", f":{tmp_path / 'config'}:/other")

    assert (tmp_path / "config").is_symlink()
    assert "trainium-default" in kept.read_text()


def test_a_file_that_is_no_kubeconfig_is_not_overwritten(eks: EksDesk, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("- my notes")
    result = eks.run("kubeconfig", "--kubeconfig", str(file))

    assert result.exit_code == 2
    assert "is no kubeconfig" in result.stderr
    assert file.read_text() == "- my notes"


def test_a_token_is_a_signed_call_of_sts_for_one_cluster(eks: EksDesk) -> None:
    result = eks.run("token", "cluster-7")
    status = json.loads(result.stdout)["status"]
    kind, _, text = status["token"].partition(".")
    url = urlparse(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
    query = parse_qs(url.query)

    assert kind == "k8s-aws-v1"
    assert query["Action"] == ["GetCallerIdentity"]
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]
    assert query["X-Amz-Expires"] == ["60"]


@pytest.fixture
def torchx(eks: EksDesk, tmp_path: Path) -> list[str]:
    """torchx with the deployment's kubeconfig; its environment is this process's."""
    eks.run("kubeconfig", "--kubeconfig", str(tmp_path / "config"))
    return ["env", f"KUBECONFIG={tmp_path / 'config'}", f"{Path(sys.executable).parent}/torchx"]


def test_torchx_runs_a_component_by_itself(eks: EksDesk, torchx: list[str]) -> None:
    run = [
        *torchx, "run", "-s", "kubernetes", "--workspace", "",
        "-cfg", "queue=trainium",  # the namespace is in .torchxconfig
        "jobs/torchx_components.py:all_reduce", "--nnodes", "2", "--name", "by-torchx",
        "--", "--max-bytes", "1024",
    ]  # fmt: skip
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=scaled(120))
    handle = done.stdout.strip()
    runs = eks.document("list")["runs"]

    assert handle.startswith("kubernetes://"), done.stderr
    assert [(item["run"], item["num_nodes"]) for item in runs] == [("by-torchx", 2)]


def test_torchx_runs_a_program_of_the_users(eks: EksDesk, torchx: list[str]) -> None:
    script = ROOT / "tests" / "programs" / "sample" / "train.py"
    run = [
        *torchx, "run", "-s", "kubernetes", "--workspace", "", "-cfg", "queue=trainium",
        "jobs/torchx_components.py:program", "--nnodes", "2", "--name", "mine",
        "--", "--snapshot-every-s", "5", str(script), "--epochs", "3",
    ]  # fmt: skip
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=scaled(120))
    assert done.stdout.strip().startswith("kubernetes://"), done.stderr

    s3 = eks.desk.client("s3")
    text = s3.get_object(Bucket="bucket", Key="runs/mine/program.json")["Body"].read()
    record = json.loads(text)["submissions"][-1]
    assert (record["script"], record["argv"]) == ("train.py", ["--epochs", "3"])
    assert s3.head_object(Bucket="bucket", Key=contract.bundle_key("mine", record["code"]))


@pytest.mark.parametrize(
    ("words", "split"),
    [
        (("./train.py", "--lr", "1"), ([], "./train.py", None, ("--lr", "1"))),
        (("-m", "mine.train", "-m"), ([], None, "mine.train", ("-m",))),
        (
            ("--aws-credentials", "--dataset=wiki", "--snapshot-every-s", "5", "./train.py"),
            (["--aws-credentials", "--dataset=wiki", "--snapshot-every-s", "5"], "./train.py",
             None, ()),
        ),
        ((), ([], None, None, ())),
    ],
)  # fmt: skip
def test_torchx_takes_words_as_torchrun_does(words: tuple[str, ...], split: object) -> None:
    assert torchx_components._as_torchrun(words) == split


def test_torchx_is_told_which_component_a_workload_has() -> None:
    with pytest.raises(Refusal, match="name a file"):
        torchx_components.program("all-reduce")


def test_a_lost_call_does_not_end_the_waiting() -> None:
    first, last = Progress(ready=0, group=GROUP), Progress(ready=2, group=GROUP)
    answers: Iterator[Progress | HTTPError] = iter([first, HTTPError("lost"), last])

    def read() -> Progress:
        answer = next(answers)
        if isinstance(answer, HTTPError):
            raise answer
        return answer

    seen = wait_for_nodes(read, 2, limit_s=60, now=lambda: 0.0, sleep=lambda _: None)

    assert [progress.ready for progress in seen] == [0, 2]
