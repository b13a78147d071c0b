"""Every client-side probe is green if its claim holds, and red otherwise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jobs.eks.usage import NEURON_MONITOR
from jobs.errors import Refusal
from jobs.job import JobKind
from jobs.verify.probes import PROBES, hosts
from tests.jobs.fakes import client_error
from tests.jobs.probes.world import (
    DRIVER,
    EFA,
    NO_GROUP,
    NOT_READY,
    READY,
    ROLES,
    ZONES,
    Case,
    NotFound,
    World,
    addons,
    all_reduce,
    attempts_on,
    bucket,
    cards,
    child,
    client_context,
    console,
    daemon_set,
    described,
    elsewhere,
    endpoint,
    endpoints,
    environment,
    failed_host,
    file_system,
    group,
    host,
    identity,
    index,
    interface,
    job,
    memory,
    mnist,
    monitor,
    node,
    on_cluster,
    pod_streams,
    raises,
    reserved,
    roles,
    saves,
    scaling,
    sees_zones,
    shuts_down,
    started,
    status,
    tagged,
    tar,
    task,
    types,
    without_lustre,
    zones,
)
from trainium_catalogue.probing import State

HOST_SCRIPT = Path(__file__).resolve().parents[3] / "constructs/trainium_constructs/host_setup.sh"
RESERVED = client_context(
    hosts=[host(CapacityReservationId="cr-1", InstanceLifecycle="capacity-block")]
)
CASES: dict[str, tuple[Case, Case | None]] = {
    "instance-figures": (types(), types(zones=ZONES[:1])),
    "dated-ami-parameter": (
        client_context(ssm={"get_parameters": {"Parameters": [{"Value": "ami-1"}]}}),
        client_context(ssm={"get_parameters": {"Parameters": []}}),
    ),
    "vcpu-quota": (
        client_context(service_quotas={"get_service_quota": {"Quota": {"Value": 512.0}}}),
        client_context(service_quotas={"get_service_quota": {"Quota": {"Value": 8.0}}}),
    ),
    "service-linked-roles": (roles(*ROLES), roles(*ROLES[1:])),
    "image-pushed": (
        client_context(ecr={"batch_get_image": {"images": [{}]}}),
        client_context(ecr={"batch_get_image": {"images": []}}),
    ),
    "publishing-role": (
        client_context(ecr={"batch_get_image": {"images": [{}]}}),
        client_context(ecr={"batch_get_image": {"images": []}}),
    ),
    "task-interface-groups": (task(0, 1), task(0, 1, group="nodes")),
    "environment-without-groups": (
        client_context(environment=environment("VALID")),
        client_context(environment=environment("INVALID")),
    ),
    "environment-with-groups": (
        client_context(environment=environment("VALID", "sg-1")),
        client_context(environment=environment("INVALID", "sg-1")),
    ),
    "self-rule-no-duplicate": (group(protocol="tcp"), group()),
    "egress-rule-replaces": (group(out="10.0.0.0/16"), group()),
    "children-start-after-main": (
        client_context(job=job(0, nodes=(started(0, 5), started(1, 60_000)))),
        client_context(job=job(0, nodes=(started(0, 5), started(1, 4)))),
    ),
    "default-group": (group(inside=True), group(inside=False)),
    "endpoint-zones": (endpoints("available"), endpoints("failed")),
    "planned-zones-seen": (sees_zones("usw2-az1", "usw2-az4"), sees_zones("usw2-az1")),
    "ways-out-across-zones": (elsewhere("SUCCEEDED"), elsewhere("FAILED")),
    "lustre-across-zones": (elsewhere("SUCCEEDED"), elsewhere("FAILED")),
    "file-system-goes-last": (without_lustre(), without_lustre("fs-1")),
    "fsx-port-rules-first": (file_system("AVAILABLE"), file_system("FAILED")),
    "bert-tar": (tar(50 * 10**9), tar(None)),
    "secondary-card-device-index": (cards(1), cards(7)),
    "efa-only-interfaces": (
        client_context(hosts=[host(interface(1, 1, InterfaceType="efa-only"))]),
        client_context(
            hosts=[host(interface(1, 1, InterfaceType="efa-only", PrivateIpAddress="10.0.0.1"))]
        ),
    ),
    "task-interface-slot": (task(0, 1), task(1, 0)),
    # There is no red case: a host outside the reservation is a deployment without one.
    "batch-capacity-block": (RESERVED, None),
    "eks-capacity-block": (RESERVED, None),
    "ami-driver": (console(READY), console(DRIVER + READY)),
    "driver-package": (console(DRIVER + READY), console(DRIVER + NOT_READY)),
    "efa-installer": (console(EFA + READY), console(EFA + NOT_READY)),
    "not-ready-host-stays-out": (failed_host(), failed_host(joined=True)),
    "not-ready-host-ends": (failed_host(), failed_host(state="stopped")),
    "child-description": (child(logStreamName="node/default/b"), child()),
    "retry-by-exit-code": (
        client_context(jobs=[job(75, 0), job(1)]),
        client_context(jobs=[job(75), job(0)]),
    ),
    "failure-model-on-device": (
        client_context(
            jobs=[job(1, nodes=tuple(started(n, 0, stopped_ms=n * 5000) for n in (0, 1)))]
        ),
        client_context(
            jobs=[job(1, nodes=tuple(started(n, 0, stopped_ms=n * 999_000) for n in (0, 1)))]
        ),
    ),
    "xla-without-nxd": (
        bucket(["bert-1"], status__json=status("bert", loss=2.5)),
        bucket(["bert-1"], status__json=status("bert", loss=None, state="failed")),
    ),
    "batch-reservation": (reserved("near"), reserved("far")),
    "batch-tags-hosts": (tagged("trainium-default-batch"), tagged("other")),
    "shutdown-terminates": (shuts_down("terminate"), shuts_down("stop")),
    "same-hosts-on-retry": (attempts_on("a", "a"), attempts_on("a", "b")),
    # A job that does not fit never starts, so there is nothing to observe.
    "cpu-container-memory": (client_context(jobs=[job(0, kind=JobKind.CONTAINER)]), None),
    "mnist-accuracy": (mnist(0.95), mnist(0.1)),
    "pass-bar": (all_reduce("met"), all_reduce("below")),
    "bert-large-memory": (
        bucket(["bert-1"], status__json=status("bert")),
        bucket(["bert-1"], status__json=status("bert", state="failed")),
    ),
    "llama-7b-memory": (
        bucket(["llama"], status__json=status("llama2-7b")),
        bucket(["llama"], status__json=status("llama2-7b", step=0)),
    ),
    "throughput": (
        bucket(["llama"], status__json=status("llama2-7b")),
        bucket(["llama"], status__json=status("llama2-7b", mfu=0.2)),
    ),
    "upload-beside-training": (
        saves("save", "saved", "save", "saved"),
        saves("save", "save", "saved", "saved"),
    ),
    "embedded-metrics": (
        client_context(
            runs=["a"], cloudwatch={"list_metrics": {"Metrics": [{"MetricName": "Loss"}]}}
        ),
        client_context(runs=["a"], cloudwatch={"list_metrics": {"Metrics": []}}),
    ),
    "device-plugin-driver": (
        client_context(objects={"nodes": {"items": [node(16)]}}),
        client_context(objects={"nodes": {"items": [node(15)]}}),
    ),
    "device-plugin-without-imds": (
        client_context(objects={"nodes": {"items": [node(16)]}}),
        client_context(objects={"nodes": {"items": [node(0)]}}),
    ),
    "add-ons-at-hop-limit-1": (
        client_context(objects={"daemonsets": {"items": [daemon_set()]}}),
        client_context(objects={"daemonsets": {"items": [daemon_set(ready=1)]}}),
    ),
    "pod-memory-fits": (memory("515000000Ki"), memory("469000Mi")),
    "volcano-chart": (index("volcano-1.15.1.tgz"), index("volcano-1.14.2.tgz")),
    "node-group-version-with-cluster": (
        client_context(eks=described(), node_group={"version": "1.35"}),
        client_context(eks=described(), node_group={"version": "1.34"}),
    ),
    "scale-in-by-instance": (scaling(desired=2), scaling(desired=1)),
    "node-group-tags": (scaling(), scaling(tagged="another")),
    "scaler-gets-pod-identity": (
        client_context(
            objects={"node-scaler": {"spec": {"replicas": 1}, "status": {"readyReplicas": 1}}}
        ),
        client_context(objects={"node-scaler": {"spec": {"replicas": 1}, "status": {}}}),
    ),
    "add-on-versions": (addons("ACTIVE"), addons("DEGRADED")),
    "vpc-cni-addresses": (
        client_context(objects={"daemonsets/aws-node": daemon_set()}),
        client_context(objects={"daemonsets/aws-node": daemon_set(minimum="30")}),
    ),
    "vpc-cni-pod-identity": (identity(associations=1), identity(associations=0)),
    "node-repair": (
        client_context(eks=described(), node_group={"nodeRepairConfig": {"enabled": True}}),
        client_context(eks=described(), node_group={}),
    ),
    "control-plane-logs": (
        client_context(logs={"describe_log_streams": {"logStreams": [{}]}}),
        client_context(logs={"describe_log_streams": {"logStreams": []}}),
    ),
    "node-logs-reach-cloudwatch": (
        client_context(jobs=[on_cluster(job(0))], logs={"describe_log_streams": pod_streams(0, 1)}),
        client_context(jobs=[on_cluster(job(0))], logs={"describe_log_streams": pod_streams(0)}),
    ),
    "second-zone": (zones("usw2-az1", "usw2-az2"), zones("usw2-az1")),
    "kubectl-functions": (
        client_context(objects={"jobs": {"items": []}}),
        client_context(objects={"jobs": NotFound()}),
    ),
    "private-endpoint": (endpoint("v1.35.6"), endpoint(None)),
    "neuron-monitor-driver": (monitor(NEURON_MONITOR), monitor("processes")),
    "top-reads-monitor": (monitor(NEURON_MONITOR), monitor("processes")),
}  # fmt: skip


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(patch=monkeypatch)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (hosts._READY, 'say "ready: ${NEURON_DEVICES} Neuron devices'),
        (hosts._NOT_READY, 'say "HOST NOT READY'),
        (hosts._OTHER_DRIVER, "say \"driver '${loaded}' does not fit Neuron"),
        (hosts._EFA, 'say "installing EFA ${EFA_VERSION}"'),
    ],
)
def test_searched_lines_appear_in_host_scripts(line: re.Pattern[str], said: str) -> None:
    assert said in HOST_SCRIPT.read_text()
    assert 'echo "trainium: $*" >"${CONSOLE}"' in HOST_SCRIPT.read_text()
    assert line.search("trainium: " + said.removeprefix('say "'))


def test_every_probe_has_cases() -> None:
    assert set(CASES) == set(PROBES.by_id)


@pytest.mark.parametrize("name", CASES)
def test_probe_is_green_if_claim_holds(name: str, world: World) -> None:
    seen_from = CASES[name][0](world)
    assert set(PROBES.by_id[name].needs) <= seen_from.met_requirements

    finding = PROBES.run(name, seen_from, seen_from.met_requirements)

    assert finding.state is State.GREEN, finding


@pytest.mark.parametrize("name", [name for name, cases in CASES.items() if cases[1]])
def test_probe_is_red_if_claim_fails(name: str, world: World) -> None:
    case = CASES[name][1]
    assert case is not None

    finding = PROBES.run(name, case(world), PROBES.by_id[name].needs)

    assert finding.state is State.RED, finding
    assert finding.seen and finding.expected
    assert finding.seen != finding.expected


@pytest.mark.parametrize(
    ("name", "case", "seen"),
    [
        (
            "vpc-cni-addresses",
            client_context(objects={"aws-node": NotFound()}),
            "minimum None, warm None",
        ),
        (
            "control-plane-logs",
            client_context(logs={"describe_log_streams": lambda **kwargs: raises(NO_GROUP)}),
            "log group /aws/eks/cluster/cluster does not exist",
        ),
    ],
)
def test_missing_expected_resource_is_red(name: str, case: Case, seen: str, world: World) -> None:
    seen_from = case(world)

    finding = PROBES.run(name, seen_from, seen_from.met_requirements)

    assert (finding.state, finding.seen) == (State.RED, seen)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (
            client_error("AccessDeniedException", operation="GetServiceQuota"),
            "permission for GetServiceQuota",
        ),
        (client_error("ThrottlingException"), "a timely response"),
        (Refusal("no-cluster", "there is no cluster"), "there is no cluster"),
    ],
)
def test_probe_without_access_is_not_run(error: Exception, what: str, world: World) -> None:
    def fail(**kwargs: Any) -> None:
        raise error

    seen_from = client_context(service_quotas={"get_service_quota": fail})(world)

    finding = PROBES.run("vcpu-quota", seen_from, seen_from.met_requirements)

    assert (finding.state, finding.needs) == (State.NOT_RUN, (what,))


def test_unexpected_answer_crashes_only_that_probe(world: World) -> None:
    seen_from = client_context(service_quotas={"get_service_quota": {}})(world)

    finding = PROBES.run("vcpu-quota", seen_from, seen_from.met_requirements)

    assert (finding.state, finding.seen) == (State.CRASHED, "KeyError: 'Quota'")


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("child-description", client_context(job=on_cluster(job(0)))),
        ("children-start-after-main", client_context(job=on_cluster(job(0)))),
        # Volcano terminates the other pods of a restarted gang, which exit with 143.
        ("retry-by-exit-code", client_context(jobs=[on_cluster(job(143, 0))])),
        ("same-hosts-on-retry", client_context(jobs=[on_cluster(job(75, 0))])),
    ],
)
def test_cluster_job_settles_no_batch_claim(name: str, case: Case, world: World) -> None:
    finding = PROBES.run(name, case(world), PROBES.by_id[name].needs)

    assert finding.state is State.NOT_RUN, finding
