"""`scale`, and the kubeconfig for kubectl and torchx."""

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
from tests.jobs.eks.conftest import ROOT, EksCli
from tests.jobs.test_refusals import assert_refused
from tests.support.limits import scaled
from tests.support.schemas import conforms
from trainium_catalogue import contract

GROUP = NodeGroup(status="ACTIVE", desired=2, max_size=4, health_issues=())


def test_scale_up_without_terminal_needs_yes(eks: EksCli) -> None:
    result = eks.run("scale", "--nodes", "3")

    assert result.exit_code == 2
    assert "adding nodes needs confirmation, but standard input is not a terminal; add --yes" in (
        result.stderr
    )
    assert eks.node_group().scaling_config["desiredSize"] == 2


def test_scale_is_limited_by_deployment(eks: EksCli) -> None:
    result = eks.run("scale", "--nodes", "5")

    assert result.exit_code == 2
    assert "scale to 4 or fewer" in result.stderr
    assert "-c trainium:max_nodes=5" in result.stderr


def test_kubeconfig_of_deployment_without_cluster_is_refused(eks: EksCli, tmp_path: Path) -> None:
    eks.cli.parameter(contract.SSM_ORCHESTRATORS, "batch")
    assert_refused(
        eks.run("kubeconfig", "--kubeconfig", str(tmp_path / "config")),
        "-c trainium:orchestrators=batch,eks",
    )


def test_kubectl_connects_with_kubeconfig(eks: EksCli, tmp_path: Path) -> None:
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


def test_other_kubeconfig_entries_are_kept(eks: EksCli, tmp_path: Path) -> None:
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
        f"previous context: other; switch back with: kubectl config --kubeconfig {file} "
        "use-context other"
    ) in result.stderr
    assert "was:" not in again.stderr


def test_linked_kubeconfig_stays_a_link(eks: EksCli, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("contexts: []")
    (tmp_path / "config").symlink_to(kept)
    eks.run("kubeconfig", "--kubeconfig", f":{tmp_path / 'config'}:/other")

    assert (tmp_path / "config").is_symlink()
    assert "trainium-default" in kept.read_text()


def test_invalid_kubeconfig_is_not_overwritten(eks: EksCli, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("- my notes")
    assert_refused(eks.run("kubeconfig", "--kubeconfig", str(file)), "is not a kubeconfig")
    assert file.read_text() == "- my notes"


def test_token_is_presigned_sts_call_for_one_cluster(eks: EksCli) -> None:
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
def torchx(eks: EksCli, tmp_path: Path) -> list[str]:
    """torchx with the deployment's kubeconfig, in the environment of this process."""
    eks.run("kubeconfig", "--kubeconfig", str(tmp_path / "config"))
    return ["env", f"KUBECONFIG={tmp_path / 'config'}", f"{Path(sys.executable).parent}/torchx"]


# The job that TorchX submits: test_volcano_job.py.
@pytest.mark.full
def test_torchx_runs_user_program(eks: EksCli, torchx: list[str]) -> None:
    script = ROOT / "tests" / "programs" / "sample" / "train.py"
    run = [
        *torchx, "run", "-s", "kubernetes", "--workspace", "", "-cfg", "queue=trainium",
        "jobs/torchx_components.py:program", "--nnodes", "2", "--name", "mine",
        "--", "--snapshot-every-s", "5", str(script), "--epochs", "3",
    ]  # fmt: skip
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=scaled(120))
    assert done.stdout.strip().startswith("kubernetes://"), done.stderr

    s3 = eks.cli.client("s3")
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
def test_torchx_splits_arguments_like_torchrun(words: tuple[str, ...], split: object) -> None:
    assert torchx_components._as_torchrun(words) == split


def test_torchx_program_component_refuses_workload_name() -> None:
    with pytest.raises(Refusal, match="specify a file"):
        torchx_components.program("all-reduce")


def test_lost_call_does_not_end_wait_for_nodes() -> None:
    first, last = Progress(ready=0, group=GROUP), Progress(ready=2, group=GROUP)
    answers: Iterator[Progress | HTTPError] = iter([first, HTTPError("lost"), last])

    def read() -> Progress:
        answer = next(answers)
        if isinstance(answer, HTTPError):
            raise answer
        return answer

    seen = wait_for_nodes(read, 2, limit_s=60, now=lambda: 0.0, sleep=lambda _: None)

    assert [progress.ready for progress in seen] == [0, 2]


def test_node_polling_backs_off() -> None:
    pauses_s: list[float] = []
    numbers = iter([0, 0, 0, 0, 0, 0, 2])

    def read() -> Progress:
        return Progress(ready=next(numbers), group=GROUP)

    list(wait_for_nodes(read, 2, limit_s=60, now=lambda: 0.0, sleep=pauses_s.append))

    assert pauses_s == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
