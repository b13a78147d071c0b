"""AWS, the cluster and the job as seen by each client-side probe, if its claim holds and if not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest

from jobs.deployment import EksTarget
from jobs.eks.usage import NEURON_MONITOR, Usage
from jobs.job import Job, JobKind, Node, Shape
from jobs.orchestrators import Services
from jobs.verify.probes import ClientContext, account, cluster
from tests.jobs.fakes import client_error
from tests.jobs.samples import ATTEMPT, DEPLOYMENT, JOB, NODE
from trainium_catalogue.contract import Orchestrator

TYPE = DEPLOYMENT.instance_type
ZONES = TYPE.zone_ids["us-west-2"]
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/images:abc"
TARGET = replace(
    DEPLOYMENT,
    orchestrators=(Orchestrator.BATCH, Orchestrator.EKS),
    job_definition="verify:1",
    eks=EksTarget(
        cluster="cluster",
        namespace="trainium",
        queue="trainium",
        node_group="cluster/trn1",
        image=IMAGE,
        job_time_limit_hours=24,
        lustre_claim=None,
    ),
)
Answer = Any
Case = Callable[[pytest.MonkeyPatch], ClientContext]


class Client:
    """A client that supports only the calls defined by a case."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = self._answers[name]
        return lambda *args, **kwargs: answer(**kwargs) if callable(answer) else answer

    def get_paginator(self, name: str) -> Client:
        return Client({"paginate": [self._answers[name]]})


@dataclass
class FakeAws:
    """AWS with fixed responses by service and call."""

    answers: Mapping[str, Mapping[str, Answer]] = field(default_factory=dict)
    is_emulated: bool = False

    def client(self, service: str) -> Client:
        return Client(self.answers[service])

    def ecr(self, region: str) -> Client:
        assert region == "us-west-2"
        return self.client("ecr")


class Api:
    """The cluster's API: objects by path suffix."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects

    def get(self, path: str, **query: str) -> Any:
        for end, found in self._objects.items():
            if path.endswith(end):
                if isinstance(found, Exception):
                    raise found
                return found
        raise AssertionError(path)

    def items(self, path: str, **query: str) -> Any:
        return self.get(path)["items"]


def client_context(
    *, job: Job | None = None, objects: Mapping[str, Any] | None = None, **answers: Any
) -> Case:
    """Return a context with ``answers`` by service and preset facts."""
    facts = {name: answers.pop(name) for name in FACTS if name in answers}

    def case(patch: pytest.MonkeyPatch) -> ClientContext:
        services = {name.replace("_", "-"): calls for name, calls in answers.items()}
        made = ClientContext(
            aws=FakeAws(services),  # type: ignore[arg-type]
            target=TARGET,
            services=Services(services=(), note=print),
            job=job,
        )
        made.__dict__.update(facts)
        if objects is not None:
            made.__dict__["cluster"] = Api(objects)
        return made

    return case


FACTS = ("hosts", "consoles", "jobs", "runs", "subnets", "environment", "node_group")


def types(*, memory: int = TYPE.memory_mib, zones: tuple[str, ...] = ZONES) -> Case:
    found = {
        "VCpuInfo": {"DefaultVCpus": 128},
        "MemoryInfo": {"SizeInMiB": memory},
        "NetworkInfo": {"MaximumNetworkCards": 8, "EfaInfo": {"MaximumEfaInterfaces": 8}},
    }
    return client_context(
        ec2={
            "describe_instance_types": {"InstanceTypes": [found]},
            "describe_instance_type_offerings": {
                "InstanceTypeOfferings": [{"Location": zone} for zone in zones]
            },
        }
    )


def interface(card: int, index: int, **more: Any) -> dict[str, Any]:
    return {"Attachment": {"NetworkCardIndex": card, "DeviceIndex": index}, **more}


def host(*interfaces: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "InstanceId": "i-1",
        "State": {"Name": "running"},
        "LaunchTime": "2026-11-22T04:00",
        "NetworkInterfaces": list(interfaces),
        **more,
    }


def cards(index: int) -> Case:
    secondary = [interface(card, 1) for card in range(1, 7)]
    return client_context(hosts=[host(interface(0, 0), *secondary, interface(7, index))])


def task(card: int, index: int, *, group: str = "default") -> Case:
    own = {
        "Description": "arn:aws:ecs:us-west-2:1:attachment/2",
        "Groups": [{"GroupName": group, "GroupId": "sg-1"}],
    }
    return client_context(
        hosts=[host(interface(0, 0), interface(card, index, **own))],
        environment=environment("VALID"),
    )


def environment(status: str, *groups: str) -> dict[str, Any]:
    return {"status": status, "computeResources": {"securityGroupIds": list(groups)}}


READY = "trainium: ready: 16 Neuron devices, 8 EFA interfaces, driver 2.28.0.0\n"
NOT_READY = "trainium: HOST NOT READY, the ECS agent stays stopped: the EFA installer failed;\n"
DRIVER = "trainium: driver '2.27.1' does not fit Neuron 2.28.0, installing 2.28.0.0\n"
EFA = "trainium: installing EFA 1.47.0\n"


def console(text: str) -> Case:
    return client_context(hosts=[host()], consoles={"i-1": text})


def failed_host(*, joined: bool = False, state: str = "terminated") -> Case:
    instances = [{"ec2InstanceId": "i-1" if joined else "i-2"}]
    return client_context(
        hosts=[host(State={"Name": state})],
        consoles={"i-1": NOT_READY},
        environment={"ecsClusterArn": "cluster"},
        ecs={
            "list_container_instances": {"containerInstanceArns": ["arn"]},
            "describe_container_instances": {"containerInstances": instances},
        },
    )


def group(*, inside: bool = True, protocol: str = "-1", out: str = "0.0.0.0/0") -> Case:
    itself = {
        "IpProtocol": protocol, "FromPort": 0, "ToPort": 65535,
        "UserIdGroupPairs": [{"GroupId": "sg-1"}],
    }  # fmt: skip
    anywhere = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": out}]}
    found = {
        "GroupId": "sg-1",
        "IpPermissions": [itself] if inside else [],
        "IpPermissionsEgress": [anywhere],
    }
    return client_context(
        subnets=[{"VpcId": "vpc-1"}],
        ec2={"describe_security_groups": {"SecurityGroups": [found]}},
    )


def endpoints(state: str) -> Case:
    found = [{"ServiceName": "com.amazonaws.us-west-2.ecr.dkr", "State": state}]
    return client_context(
        subnets=[{"VpcId": "vpc-1"}], ec2={"describe_vpc_endpoints": {"VpcEndpoints": found}}
    )


def roles(*names: str) -> Case:
    return client_context(iam={"list_roles": {"Roles": [{"RoleName": name} for name in names]}})


ROLES = tuple((account._ROLES | account._EKS_ROLES).values())


TAG = {"Key": "aws:cloudformation:stack-name", "Value": "trainium-default-lustre"}


def file_system(state: str, **more: Any) -> Case:
    found = [{"FileSystemId": "fs-1", "Lifecycle": state, "Tags": [TAG]}]
    return client_context(fsx={"describe_file_systems": {"FileSystems": found}}, **more)


def sees_zones(*names: str) -> Case:
    found = [{"ZoneId": name} for name in names]
    return client_context(ec2={"describe_availability_zones": {"AvailabilityZones": found}})


def elsewhere(status: str) -> Case:
    return file_system(
        "AVAILABLE",
        subnets=[{"AvailabilityZoneId": "usw2-az1"}],
        job=replace(job(0), status=status),
    )


def without_lustre(*left: str) -> Case:
    systems = [{"FileSystemId": name, "Tags": [TAG]} for name in left]
    return client_context(
        ssm={"get_parameters": {"Parameters": [{"Value": "none"}]}},
        fsx={"describe_file_systems": {"FileSystems": systems}},
    )


def tar(size: int | None) -> Case:
    def case(patch: pytest.MonkeyPatch) -> ClientContext:
        patch.setattr(account, "size_of", lambda url: size)
        return client_context()(patch)

    return case


def job(*codes: int | None, kind: JobKind = JobKind.NODES, nodes: tuple[Node, ...] = ()) -> Job:
    attempts = tuple(
        replace(ATTEMPT, number=number, exit_code=code)
        for number, code in enumerate(codes, start=1)
    )
    return replace(
        JOB,
        job_id="job",
        status="SUCCEEDED",
        started_at_ms=1,
        shape=Shape(kind=kind, size=2),
        attempts=attempts,
        nodes=nodes,
    )


def started(index: int, at_ms: int, *, stopped_ms: int | None = None) -> Node:
    attempt = replace(ATTEMPT, exit_code=0, started_at_ms=at_ms, stopped_at_ms=stopped_ms)
    return replace(NODE, index=index, status="SUCCEEDED", attempts=(attempt,))


def on_cluster(job: Job) -> Job:
    return replace(job, orchestrator=Orchestrator.EKS)


def pod_streams(*nodes: int) -> dict[str, Any]:
    """Return the log streams of ``on_cluster(job())``."""
    names = [f"pod/job-node-{node}-0/uid" for node in nodes]
    return {"logStreams": [{"logStreamName": name, "creationTime": 1} for name in names]}


def child(**container: str) -> Case:
    return client_context(
        job=job(0), batch={"describe_jobs": {"jobs": [{"jobId": "job#1", "container": container}]}}
    )


def attempts_on(*hosts: str) -> Case:
    node = {"attempts": [{"container": {"containerInstanceArn": name}} for name in hosts]}
    return client_context(jobs=[job(75, 0)], batch={"describe_jobs": {"jobs": [node]}})


def bucket(runs: list[str], **documents: Any) -> Case:
    """Return objects by key suffix, with ``__`` for a dot."""

    class Body:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def read(self) -> bytes:
            return self.data

    def get_object(*, Bucket: str, Key: str) -> dict[str, Any]:
        name = Key.rpartition("/")[2].replace(".", "__").replace("-", "_")
        if name not in documents:
            raise client_error("NoSuchKey", operation="GetObject")
        found = documents[name]
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        return {"Body": Body(data)}

    return client_context(runs=runs, s3={"get_object": get_object})


def status(workload: str, **more: Any) -> dict[str, Any]:
    return {
        "workload": workload, "step": 10, "state": "finished", "mfu": 0.31,
        "last_checkpoint_step": 10, **more,
    }  # fmt: skip


def mnist(accuracy: float) -> Case:
    metrics = [{"MetricName": "Test accuracy", "MeasuredValue": accuracy}]
    return bucket(
        ["digits"],
        status__json=status("mnist"),
        results__json={"results": {"metrics": metrics}},
    )


def all_reduce(state: str) -> Case:
    bar = {"status": state, "busbw_gib_per_s": 40.0, "published_gib_per_s": 47.09}
    return bucket(["sums"], all_reduce__json={"device": "xla", "bar": bar})


def saves(*events: str) -> Case:
    lines = "\n".join(json.dumps({"event": event, "step": 1}) for event in events)
    return bucket(["llama"], status__json=status("llama2-7b"), train__jsonl=lines.encode())


def daemon_set(*, ready: int = 2, minimum: str = "12") -> dict[str, Any]:
    env = [
        {"name": "MINIMUM_IP_TARGET", "value": minimum},
        {"name": "WARM_IP_TARGET", "value": "2"},
    ]
    return {
        "metadata": {"name": "aws-node"},
        "spec": {"template": {"spec": {"containers": [{"env": env}]}}},
        "status": {"numberReady": ready, "desiredNumberScheduled": 2},
    }


def node(chips: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "ip-10-0-0-4"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"aws.amazon.com/neuron": str(chips), "vpc.amazonaws.com/efa": "8"},
        },
    }


def memory(offered: str) -> Case:
    offering = {"metadata": {"name": "node-1"}, "status": {"allocatable": {"memory": offered}}}
    other = {
        "metadata": {"namespace": "kube-system"},
        "spec": {"containers": [{"resources": {"requests": {"memory": "1Gi"}}}]},
    }
    return client_context(objects={"nodes": {"items": [offering]}, "pods": {"items": [other]}})


def index(text: str) -> Case:
    def case(patch: pytest.MonkeyPatch) -> ClientContext:
        patch.setattr(cluster, "index_of", lambda url: text)
        return client_context()(patch)

    return case


def identity(*, associations: int) -> Case:
    found: dict[str, Any] = {"associations": [{}] * associations}
    return client_context(
        eks={"list_pod_identity_associations": found},
        objects={"daemonsets/aws-node": daemon_set()},
    )


def scaling(*, desired: int = 2, tagged: str = "cluster") -> Case:
    tags = [
        {"Key": "eks:cluster-name", "Value": tagged},
        {"Key": "eks:nodegroup-name", "Value": "trn1"},
    ]
    return client_context(
        node_group={
            "nodegroupName": "trn1",
            "scalingConfig": {"desiredSize": 2},
            "resources": {"autoScalingGroups": [{"name": "eks-trn1"}]},
        },
        autoscaling={
            "describe_auto_scaling_groups": {
                "AutoScalingGroups": [{"DesiredCapacity": desired, "Tags": tags}]
            }
        },
    )


def addons(state: str) -> Case:
    addon = {"addonVersion": "v1.20", "status": state}
    return client_context(
        eks={"list_addons": {"addons": ["vpc-cni"]}, "describe_addon": {"addon": addon}}
    )


def described(**found: Any) -> dict[str, Any]:
    return {"describe_cluster": {"cluster": {"version": "1.35", **found}}}


def zones(*names: str) -> Case:
    subnets = [{"AvailabilityZoneId": name} for name in names]
    return client_context(
        eks=described(resourcesVpcConfig={"subnetIds": ["a", "b"]}),
        ec2={"describe_subnets": {"Subnets": subnets}},
    )


class NotFound(Exception):
    status = 404


def endpoint(version: str | None) -> Case:
    return client_context(
        eks=described(resourcesVpcConfig={"endpointPublicAccess": False}),
        objects={"/version": {"gitVersion": version}},
    )


def monitor(measured_by: Literal["neuron-monitor", "processes"]) -> Case:
    def case(patch: pytest.MonkeyPatch) -> ClientContext:
        usage = Usage(measured_by=measured_by)
        patch.setattr("jobs.eks.usage.usage_of", lambda cluster, pod: usage)
        return client_context(job=job(nodes=(replace(NODE, name="pod-0"),)), objects={})(patch)

    return case


NO_GROUP = client_error("ResourceNotFoundException", operation="DescribeLogStreams")


def raises(error: Exception) -> None:
    raise error


def reserved(group: str) -> Case:
    return client_context(
        hosts=[host(CapacityReservationId="cr-1", Placement={"GroupName": group})],
        environment={"computeResources": {"placementGroup": "near"}},
    )


def tagged(name: str) -> Case:
    tags = {"Name": "trainium-default-batch", "trainium:deployment": "default"}
    found = [{"Key": key, "Value": value} for key, value in {**tags, "Name": name}.items()]
    return client_context(
        hosts=[host(Tags=found)], environment={"computeResources": {"tags": tags}}
    )


def shuts_down(value: str) -> Case:
    answer = {"InstanceInitiatedShutdownBehavior": {"Value": value}}
    return client_context(hosts=[host()], ec2={"describe_instance_attribute": answer})


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
