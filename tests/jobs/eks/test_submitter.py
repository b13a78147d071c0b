"""Somebody who submits jobs is no administrator: the cluster allows what the commands call.

The API server decides by the roles that the stack makes, so a right that is missing fails a command
here. And what was asked for is compared with the roles, so a right that nobody needs is seen too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration
from torchx import specs
from torchx.schedulers.kubernetes_scheduler import create_scheduler

from rehearsal.deployment import binaries
from tests.emulators import kubeconfig
from tests.emulators.volcano_jobs import BASE
from tests.jobs.conftest import Desk
from tests.jobs.eks.conftest import BELONGINGS, ROOT, EksDesk, eks_desk, open_stream
from tests.support.limits import scaled
from trainium_catalogue.kubernetes import NAMESPACE, QUEUE, SUBMITTERS
from trainium_constructs.eks.manifests import SUBMITTER, submitters
from trainium_emulators.kubernetes import ClusterEmulator, EmulatorSettings, serve
from trainium_emulators.kubernetes.rbac import ADMIN, Caller
from trainium_emulators.kubernetes.resources import ROLE, ROLE_BINDING
from trainium_emulators.nodes import events

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "trainium", "namespace": NAMESPACE},
    "spec": {"hard": {"persistentvolumeclaims": "4"}},
}
Rule = tuple[str, str, str]
ME = Caller(name="submitter", groups=frozenset({SUBMITTERS}))


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterEmulator]:
    """A cluster whose API server knows the tokens of EKS as a submitter's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "print", lambda *_, **__: None, raising=False)
        running = serve(
            EmulatorSettings(
                addresses="127.0.87",
                count_nodes=True,
                open_stream=open_stream,
                identify=lambda token: ME if token.startswith("k8s-aws-v1.") else ADMIN,
            )
        )
        for manifest in (*BASE, *BELONGINGS, *submitters(), QUOTA):
            running.apply(manifest)
        yield running
        running.stop()


@pytest.fixture
def eks(desk: Desk, cluster: ClusterEmulator) -> Iterator[EksDesk]:
    yield from eks_desk(desk, cluster)


def kubectl(eks: EksDesk, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """kubectl, which sends no token where there is no TLS: it says whom it is to be taken for."""
    config = kubeconfig.write(folder / "config", eks.cluster.endpoint)
    return subprocess.run(
        [binaries.kubectl(), "--as", ME.name, "--as-group", SUBMITTERS, *words],
        env={**os.environ, "KUBECONFIG": str(config)},
        capture_output=True, text=True, timeout=scaled(60),
    )  # fmt: skip


def refused(text: str) -> str:
    """What the cluster forbade, if it did."""
    found = re.search(r"[^\n]*forbidden[^\n]*", text)
    return found[0] if found else ""


def allowed() -> set[Rule]:
    """What the roles allow, one by one."""
    return {
        (verb, group, resource)
        for role in submitters()
        for rule in role.get("rules", ())
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def use_torchx(eks: EksDesk) -> None:
    """What TorchX calls, with the token that it gets from a kubeconfig of `jobs kubeconfig`."""
    api = ApiClient(Configuration(host=eks.cluster.endpoint))
    api.set_default_header("Authorization", "Bearer k8s-aws-v1.torchx")
    torchx: Any = create_scheduler("submitter", client=api)
    role = specs.Role(
        name="node", image="x", num_replicas=1, entrypoint="true",
        resource=specs.Resource(cpu=1, gpu=0, memMB=1024),
    )  # fmt: skip
    app = specs.AppDef(name="by-torchx", roles=[role])
    app_id = torchx.schedule(torchx.submit_dryrun(app, {"queue": QUEUE, "namespace": NAMESPACE}))
    # The component's own job waits for a node without a taint; that of the commands has pods.
    assert torchx.describe(app_id) is not None
    assert torchx.describe(f"{NAMESPACE}:gang").state == specs.AppState.RUNNING
    assert list(torchx.log_iter(f"{NAMESPACE}:gang", "node", 0, should_tail=False)) is not None
    assert app_id in {each.app_id for each in torchx.list({"namespace": NAMESPACE})}
    torchx.cancel(app_id)
    torchx.delete(app_id)


def stop_between_attempts(eks: EksDesk) -> None:
    """A run that fails and is tried again, which takes a change of its phase to stop."""
    eks.has("again", 'test "$TRAINIUM_NODE_INDEX" = 0 && exit 75; trap "" TERM; sleep 4')
    eks.wait("again", "Restarting")
    assert eks.run("stop", "again").exit_code == 0
    eks.wait("again", "Terminated")


def tell_everything(eks: EksDesk, tmp_path: Path) -> None:
    """Every command that calls the API server, and what messages tell a user to call."""
    eks.has("gang", "timeout 60 sh -c 'while :; do sleep 0.1; done'")
    eks.wait("gang", "Running")
    for words in (
        ("list",),
        ("status", "gang"),
        ("logs", "gang", "--node", "0"),
        ("top", "gang"),
        ("scale", "--nodes", "2"),
        ("submit", "all-reduce", "--on", "eks", "--nodes", "2", "--yes", "--name", "waits"),
        ("status", "waits"),
        ("stop", "waits"),
    ):
        done = eks.run(*words)
        assert not refused(done.stderr), (words, done.stderr)
    shell = subprocess.run(
        [sys.executable, "-m", "jobs", "shell", "gang", "--", "echo", "inside"],
        cwd=ROOT, capture_output=True, text=True, timeout=scaled(60),
    )  # fmt: skip
    assert shell.stdout == "inside\n", shell.stderr
    for kubectl_words in (
        ("get", "pods,vcjob"),
        (
            "wait",
            "--for=condition=Ready",
            "pods",
            "-l",
            "trainium/run=gang",
            f"--timeout={scaled(20):.0f}s",
        ),
        (
            "wait",
            "--for=jsonpath={.status.state.phase}=Running",
            "vcjob/gang",
            f"--timeout={scaled(20):.0f}s",
        ),
        ("describe", "resourcequota"),
        ("describe", "queue", "trainium"),
        ("describe", "vcjob", "gang"),
        ("describe", "pod", "gang-node-0-0"),
        ("get", "pods", "--watch", "--request-timeout=1s"),
        ("get", "node", "nodes-0"),
        ("get", "resourcequota", "trainium"),
        ("get", "events", "-o", "name"),
    ):
        done_by_kubectl = kubectl(eks, tmp_path, *kubectl_words)
        assert not refused(done_by_kubectl.stderr), (kubectl_words, done_by_kubectl.stderr)
    use_torchx(eks)
    assert eks.run("stop", "gang").exit_code == 0
    stop_between_attempts(eks)
    # Nodes are ready, and no pod may be placed on them: that is read from the gang.
    eks.has("held", "true", tolerates=False)
    assert "Volcano" in eks.run("status", "held").stdout


def test_a_submitter_needs_every_right_that_the_roles_give_and_no_other(
    eks: EksDesk, scaler: list[str], tmp_path: Path
) -> None:
    tell_everything(eks, tmp_path)
    asked = {(a.verb, a.group, a.resource) for a in eks.cluster.authorizer.asked_by(ME.name)}

    assert asked - allowed() == set()
    assert allowed() - asked == set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("get", "secrets"), 'cannot list resource "secrets" in API group "" in the namespace'),
        (("delete", "node", "nodes-0"), 'cannot delete resource "nodes"'),
        (("-n", "kube-system", "get", "pods"), 'cannot list resource "pods"'),
        (("create", "sa", "mine"), 'cannot create resource "serviceaccounts"'),
    ],
)
def test_a_submitter_may_not_do_what_no_command_does(
    eks: EksDesk, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = kubectl(eks, tmp_path, *words)

    assert done.returncode == 1
    assert said in done.stderr
    assert f'User "{ME.name}"' in done.stderr


def test_a_command_without_the_right_says_which_key_gives_it(eks: EksDesk) -> None:
    eks.cluster.store.delete(ROLE_BINDING, NAMESPACE, SUBMITTER)
    done = eks.run("submit", "all-reduce", "--on", "eks", "--nodes", "2", "--yes")
    for manifest in submitters():
        eks.cluster.apply(manifest)

    assert done.exit_code == 2
    assert 'User "submitter" cannot list resource "pods"' in done.stderr
    assert "trainium:eks_submitter_arns" in done.stderr


def test_before_1_35_a_connection_needed_half_of_the_rights_of_today(
    eks: EksDesk, tmp_path: Path
) -> None:
    """A role of those days is refused by the API server of 1.35 (kubernetes pull 134577)."""
    role = eks.cluster.store.get(ROLE, NAMESPACE, SUBMITTER)
    for rule in role["rules"]:
        if "pods/exec" in rule["resources"]:
            rule["verbs"] = ["get"]
    eks.cluster.apply(role)
    eks.has("gang", "sleep 30")
    eks.wait("gang", "Running")
    done = kubectl(eks, tmp_path, "exec", "gang-node-0-0", "--", "true")
    for manifest in submitters():
        eks.cluster.apply(manifest)

    assert 'cannot create resource "pods/exec"' in done.stderr
