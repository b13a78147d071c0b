"""Submitters are not administrators: the cluster allows exactly the calls of the commands.

The API server authorizes by the roles that the stack creates, so a missing permission fails a
command here. Calls are also compared with the roles, to detect unneeded permissions.
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
from tests.jobs.eks.conftest import ROOT, EksCli, emulated, open_stream
from tests.support.limits import scaled
from trainium_catalogue.kubernetes import NAMESPACE, QUEUE, SUBMITTERS
from trainium_constructs.eks.manifests import SUBMITTER, submitters
from trainium_emulators.kubernetes import ClusterEmulator, EmulatorSettings
from trainium_emulators.kubernetes.rbac import ADMIN, Access, Authorizer, Caller
from trainium_emulators.kubernetes.resources import ROLE_BINDING

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
    """A cluster whose API server maps EKS tokens to a submitter."""
    settings = EmulatorSettings(
        addresses="127.0.87",
        count_nodes=True,
        open_stream=open_stream,
        identify=lambda token: ME if token.startswith("k8s-aws-v1.") else ADMIN,
    )
    yield from emulated(settings, *submitters(), QUOTA)


def kubectl(eks: EksCli, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl, which sends no token without TLS and therefore impersonates the submitter."""
    config = kubeconfig.write(folder / "config", eks.cluster.endpoint)
    return subprocess.run(
        [binaries.kubectl(), "--as", ME.name, "--as-group", SUBMITTERS, *words],
        env={**os.environ, "KUBECONFIG": str(config)},
        capture_output=True, text=True, timeout=scaled(60),
    )  # fmt: skip


def refused(text: str) -> str:
    """Return the cluster's refusal, if any."""
    found = re.search(r"[^\n]*forbidden[^\n]*", text)
    return found[0] if found else ""


def allowed() -> set[Rule]:
    """Return the roles' permissions, one by one."""
    return {
        (verb, group, resource)
        for role in submitters()
        for rule in role.get("rules", ())
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def use_torchx(eks: EksCli) -> None:
    """Use TorchX with the token from a kubeconfig written by `jobs kubeconfig`."""
    api = ApiClient(Configuration(host=eks.cluster.endpoint))
    api.set_default_header("Authorization", "Bearer k8s-aws-v1.torchx")
    torchx: Any = create_scheduler("submitter", client=api)
    role = specs.Role(
        name="node", image="x", num_replicas=1, entrypoint="true",
        resource=specs.Resource(cpu=1, gpu=0, memMB=1024),
    )  # fmt: skip
    app = specs.AppDef(name="by-torchx", roles=[role])
    app_id = torchx.schedule(torchx.submit_dryrun(app, {"queue": QUEUE, "namespace": NAMESPACE}))
    # The component's job waits for an untainted node; the job of the commands has pods.
    assert torchx.describe(app_id) is not None
    assert torchx.describe(f"{NAMESPACE}:gang").state == specs.AppState.RUNNING
    assert list(torchx.log_iter(f"{NAMESPACE}:gang", "node", 0, should_tail=False)) is not None
    assert app_id in {each.app_id for each in torchx.list({"namespace": NAMESPACE})}
    torchx.cancel(app_id)
    torchx.delete(app_id)


def stop_between_attempts(eks: EksCli) -> None:
    """Stop a failed run before its retry, which requires a change of its phase."""
    eks.has("again", 'test "$TRAINIUM_NODE_INDEX" = 0 && exit 75; trap "" TERM; sleep 4')
    eks.wait("again", "Restarting")
    assert eks.run("stop", "again").exit_code == 0
    eks.wait("again", "Terminated")


def tell_everything(eks: EksCli, tmp_path: Path) -> None:
    """Run every command that calls the API server, and the commands suggested by messages."""
    eks.has("gang", "timeout 600 sh -c 'while :; do sleep 0.1; done'")
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
    # Nodes are ready but accept no pods: the reason is read from the gang.
    eks.has("held", "true", tolerates=False)
    assert "Volcano" in eks.run("status", "held").stdout


def test_submitter_roles_match_calls_exactly(
    eks: EksCli, scaler: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[Rule] = set()
    check = Authorizer.check

    def record(authorizer: Authorizer, caller: Caller, accesses: tuple[Access, ...]) -> None:
        if caller.name == ME.name:
            asked.update((each.verb, each.group, each.resource) for each in accesses)
        check(authorizer, caller, accesses)

    monkeypatch.setattr(Authorizer, "check", record)
    tell_everything(eks, tmp_path)

    assert asked - allowed() == set()
    assert allowed() - asked == set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("delete", "node", "nodes-0"), 'cannot delete resource "nodes"'),
        (("-n", "kube-system", "get", "pods"), 'cannot list resource "pods"'),
    ],
)
def test_submitter_cannot_exceed_commands(
    eks: EksCli, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = kubectl(eks, tmp_path, *words)

    assert done.returncode == 1
    assert said in done.stderr
    assert f'User "{ME.name}"' in done.stderr


def test_missing_permission_names_its_setting(eks: EksCli) -> None:
    eks.cluster.store.delete(ROLE_BINDING, NAMESPACE, SUBMITTER)
    done = eks.run("submit", "all-reduce", "--on", "eks", "--nodes", "2", "--yes")
    for manifest in submitters():
        eks.cluster.apply(manifest)

    assert done.exit_code == 2
    assert 'User "submitter" cannot list resource "pods"' in done.stderr
    assert "trainium:eks_submitter_arns" in done.stderr
