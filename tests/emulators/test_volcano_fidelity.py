"""Refusals of the emulated Volcano and API server that match those of a real cluster."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from tests.emulators.volcano_jobs import BASE, job
from trainium_catalogue.kubernetes import NAMESPACE
from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.admission import ADMISSIONS
from trainium_emulators.kubernetes.resources import (
    CLAIM,
    CONFIG_MAP,
    POD,
    SERVICE,
    VOLCANO_JOB,
    ApiResource,
)
from trainium_emulators.kubernetes.resources import NAMESPACE as NAMESPACE_KIND
from trainium_emulators.kubernetes.store import Store
from trainium_emulators.kubernetes.volcano_rules import Counts, admit, next_phase
from trainium_emulators.kubernetes.volcano_scheduler import ClusterUsage, QueueUsage, refusal

Json = dict[str, Any]
CHIP = "aws.amazon.com/neuron"


def amounts(**given: int) -> dict[str, Fraction]:
    return {CHIP if name == "chips" else name: Fraction(count) for name, count in given.items()}


def nodes(chips: int, *, used: int = 0, waiting: int = 0) -> ClusterUsage:
    return ClusterUsage(
        allocatable=amounts(chips=chips), used=amounts(chips=used), waiting=amounts(chips=waiting)
    )


def queue(chips: int, *, used: int = 0, waiting: int = 0) -> QueueUsage:
    return QueueUsage(
        capability=amounts(chips=chips), used=amounts(chips=used), waiting=amounts(chips=waiting)
    )


@pytest.mark.parametrize(
    ("wanted", "of_queue", "of_nodes", "words"),
    [
        (32, queue(64), nodes(32), None),
        # overcommit admits a fifth more than the capacity, proportion does not.
        (96, queue(128), nodes(80), "queue resource quota insufficient"),
        (32, queue(64), nodes(32, used=32), "resource in cluster is overused"),
        (32, queue(64), nodes(32, waiting=32), "resource in cluster is overused"),
        (32, queue(64, used=48), None, "queue resource quota insufficient"),
        (32, queue(64, waiting=48), None, "queue resource quota insufficient"),
        (32, queue(64, used=32), None, None),
    ],
)
def test_gang_is_admitted_when_queue_and_nodes_have_room(
    wanted: int, of_queue: QueueUsage, of_nodes: ClusterUsage | None, words: str | None
) -> None:
    why = refusal(amounts(chips=wanted), queue=of_queue, nodes=of_nodes)

    assert (why or "").partition(":")[0] == (words or "")


def store(*more: Json) -> Store:
    made = Store(ADMISSIONS)
    for manifest in (*BASE, *more):
        kind = made.find_kind(manifest["apiVersion"], manifest["kind"])
        made.create(kind, NAMESPACE if kind.namespaced else "", manifest)
    return made


def pod(name: str = "a", *, resources: Json | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "x", "resources": resources or {}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


QUOTA: Json = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "most"},
    "spec": {"hard": {"requests.cpu": "4", f"requests.{CHIP}": "16", "services.nodeports": "0"}},
}


def test_cpu_quota_requires_cpu_requests() -> None:
    with pytest.raises(errors.ApiError, match=r"must specify requests\.cpu for: main"):
        store(QUOTA).create(POD, NAMESPACE, pod())


@pytest.mark.parametrize("kind", [CONFIG_MAP, SERVICE, VOLCANO_JOB], ids=lambda kind: kind.plural)
def test_cpu_quota_ignores_other_objects(kind: ApiResource) -> None:
    made = job("a", ["true"]) if kind == VOLCANO_JOB else {"metadata": {"name": "a"}, "spec": {}}

    assert store(QUOTA).create(kind, NAMESPACE, made)["metadata"]["name"] == "a"


def test_pods_above_quota_are_refused_until_others_end() -> None:
    there = store(QUOTA)
    wanted = {"limits": {"cpu": "3", CHIP: "16"}}
    there.create(POD, NAMESPACE, pod("first", resources=wanted))

    with pytest.raises(errors.ApiError) as refused:
        there.create(POD, NAMESPACE, pod("second", resources=wanted))
    assert str(refused.value).endswith(
        f"exceeded quota: most, requested: requests.{CHIP}=16,requests.cpu=3, "
        f"used: requests.{CHIP}=16,requests.cpu=3, limited: requests.{CHIP}=16,requests.cpu=4"
    )
    there.set_status(POD, NAMESPACE, "first", {"phase": "Failed"})
    there.create(POD, NAMESPACE, pod("second", resources=wanted))


def test_pod_needs_its_service_account() -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "job-mnist"}}
    there = store(account)
    there.create(POD, NAMESPACE, pod("known", serviceAccountName="job-mnist"))

    with pytest.raises(errors.ApiError, match='serviceaccount "job-bert" not found'):
        there.create(POD, NAMESPACE, pod("unknown", serviceAccountName="job-bert"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}]}, "hostPath volumes"),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "sysctls"),
        ({"capability": "IPC_LOCK"}, "non-default capabilities"),
        ({"privileged": True}, "privileged"),
    ],
)
def test_pod_security_of_namespace_is_enforced(spec: Json, words: str) -> None:
    there = store()
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    there.update(
        NAMESPACE_KIND, "", NAMESPACE,
        lambda old: {**old, "metadata": {**old["metadata"], "labels": labels}},
    )  # fmt: skip
    made = pod("strict", **{k: v for k, v in spec.items() if k not in ("capability", "privileged")})
    made["spec"]["containers"][0]["securityContext"] = {
        "privileged": spec.get("privileged", False),
        "capabilities": {"add": [spec["capability"]] if "capability" in spec else []},
    }

    with pytest.raises(errors.ApiError, match=f"violates PodSecurity: .*{words}"):
        there.create(POD, NAMESPACE, made)


def test_job_whose_pods_would_have_too_long_names_is_refused() -> None:
    admit(store(), job("x" * 54, ["true"]))

    with pytest.raises(errors.ApiError, match="no more than 63 characters"):
        admit(store(), job("x" * 55, ["true"]))


def test_running_job_with_new_pod_is_pending_again() -> None:
    running = {**job("again", ["true"]), "status": {"state": {"phase": "Running"}}}

    assert next_phase(running, Counts(running=1, pending=1)) == "Pending"
    assert next_phase(running, Counts(running=1, succeeded=1)) == "Running"


def service(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}, {"port": 81}], **spec}}


@pytest.mark.parametrize(
    ("hard", "spec", "said"),
    [
        ({"count/services": "1"}, {}, "requested: count/services=1, used: count/services=1"),
        (
            {"services.nodeports": "1"},
            {"type": "NodePort"},
            "requested: services.nodeports=2, used: services.nodeports=0, limited: services.nod",
        ),
        (
            {"services.loadbalancers": "0"},
            {"type": "LoadBalancer"},
            "requested: services.loadbalancers=1, used: services.loadbalancers=0, limited: serv",
        ),
    ],
)
def test_quota_counts_services(hard: Json, spec: Json, said: str) -> None:
    there = store({**QUOTA, "spec": {"hard": hard}})
    there.create(SERVICE, NAMESPACE, service("first"))

    with pytest.raises(errors.ApiError) as refused:
        there.create(SERVICE, NAMESPACE, service("second", **spec))
    assert str(refused.value).startswith('services "second" is forbidden: exceeded quota: most, ')
    assert said in str(refused.value)


@pytest.mark.parametrize("kind", [CLAIM, CONFIG_MAP, VOLCANO_JOB], ids=lambda kind: kind.plural)
def test_quota_counts_other_objects_too(kind: ApiResource) -> None:
    there = store({**QUOTA, "spec": {"hard": {f"count/{kind.reference}": "0"}}})
    made = job("a", ["true"]) if kind == VOLCANO_JOB else {"metadata": {"name": "a"}, "spec": {}}

    with pytest.raises(errors.ApiError, match=f"limited: count/{kind.reference}=0"):
        there.create(kind, NAMESPACE, made)
