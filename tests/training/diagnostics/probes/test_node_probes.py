"""Every node probe is green where its claim holds, and red elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.training.diagnostics.probes.conftest import MakeNode, write
from training.core.contract import DeviceKind
from training.core.host import Host
from training.diagnostics.probes import PROBES, ProbedNode, VerifyResult, container
from training.storage import StorageRefused
from trainium_catalogue.contract import RESERVED_PORTS
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.probing import State

TYPE = INSTANCE_TYPES["trn1.32xlarge"]
BATCH = {
    "AWS_BATCH_CE_NAME": "environment",
    "AWS_BATCH_JQ_NAME": "queue",
    "AWS_BATCH_JOB_ID": "job",
    "AWS_BATCH_JOB_ATTEMPT": "1",
    "AWS_BATCH_JOB_NODE_INDEX": "0",
    "AWS_BATCH_JOB_NUM_NODES": "2",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
}
CHILD = {
    **BATCH,
    "AWS_BATCH_JOB_NODE_INDEX": "1",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.4",
}
EKS = {"TRAINIUM_JOB_ID": "job", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1"}
POD = {**EKS, "TRAINIUM_MAIN_HOST_FROM": "VC_HOSTS", "VC_HOSTS": "localhost,other"}
GOOD, BAD = (
    VerifyResult(ok=True, detail="good", seconds=5),
    VerifyResult(ok=False, detail="bad", seconds=9999),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Inputs of a case."""

    make: MakeNode
    root: Path
    patch: pytest.MonkeyPatch
    stored: Callable[[], ProbedNode]


Case = Callable[[World], ProbedNode]


def checked(*names: str, check: VerifyResult = GOOD, **more: Any) -> Case:
    return lambda world: world.make(checks=dict.fromkeys(names, check), **more)


def neuron_ls(*, chips: int) -> Case:
    def case(world: World) -> ProbedNode:
        listed = [{"neuron_device": n, "nc_count": 2, "memory_size": 2**35} for n in range(chips)]
        program = write(world.root, "bin/neuron-ls", f"#!/bin/sh\necho '{json.dumps(listed)}'\n")
        program.chmod(0o755)
        world.patch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return world.make()

    return case


def devices(*, chips: int = 16, efa: int = 8, driver: str = "2.28.0.0", **more: Any) -> Case:
    def case(world: World) -> ProbedNode:
        for index in range(chips):
            link = world.root / f"dev/neuron{index}"
            link.parent.mkdir(exist_ok=True)
            link.symlink_to("/dev/null")
        for index in range(efa):
            link = world.root / f"dev/infiniband/uverbs{index}"
            link.parent.mkdir(exist_ok=True)
            link.symlink_to("/dev/null")
            write(world.root, f"sys/class/infiniband/rdmap{index}")
        write(world.root, "sys/module/neuron/version", f"{driver}\n")
        return world.make(**more)

    return case


def plain_file_for_a_device(world: World) -> ProbedNode:
    node = devices(env=BATCH)(world)
    (world.root / "dev/neuron3").unlink()
    write(world.root, "dev/neuron3")
    return node


def memory(path: str, limit: str) -> Case:
    def case(world: World) -> ProbedNode:
        write(world.root, path, f"{limit}\n")
        return world.make(env=BATCH)

    return case


def limits(*, shm: int = TYPE.shared_memory_mib, env: Mapping[str, str], **more: Any) -> Case:
    def case(world: World) -> ProbedNode:
        world.patch.setattr(Host, "shared_memory_mib", lambda host: shm)
        return world.make(env=dict(env), **more)

    return case


def mounted(kind: str, env: Mapping[str, str]) -> Case:
    def case(world: World) -> ProbedNode:
        write(world.root, "proc/mounts", f"fs@tcp:/abc /fsx {kind} rw 0 0\n")
        (world.root / "fsx").mkdir()
        return world.make(env=dict(env), lustre="/fsx")

    return case


def with_file(path: str, text: str, **more: Any) -> Case:
    def case(world: World) -> ProbedNode:
        write(world.root, path, text)
        return world.make(**more)

    return case


def metadata(*, answers: bool, method: str = container.CONTAINER_ROLE, **more: Any) -> Case:
    def case(world: World) -> ProbedNode:
        answer = "the metadata service answers with 200" if answers else None
        world.patch.setattr(container, "request_metadata_token", lambda url: answer)
        world.patch.setattr(container, "credentials_method", lambda: method)
        return world.make(**more)

    return case


def resolving(address: str | None, **more: Any) -> Case:
    def case(world: World) -> ProbedNode:
        write(world.root, "etc/resolv.conf", "search ec2.internal\nnameserver 10.0.0.2\n")
        world.patch.setattr(container, "look_up", lambda name: address)
        return world.make(**more)

    return case


def pod(first: str) -> Case:
    def case(world: World) -> ProbedNode:
        write(world.root, "proc/1/comm", f"{first}\n")
        ports = ",".join(map(str, RESERVED_PORTS))
        write(world.root, "proc/sys/net/ipv4/ip_local_reserved_ports", f"{ports}\n")
        return world.make(env=EKS)

    return case


def packages(*names: str, broken: bool = False) -> Case:
    def case(world: World) -> ProbedNode:
        for name in names:
            # Restored afterwards, so that tests do not see each other's imports.
            world.patch.delitem(sys.modules, name, raising=False)
            text = "raise ImportError('no such symbol')" if broken else ""
            write(world.root, f"site/{name}/__init__.py", text)
            write(world.root, f"site/{name}-1.dist-info/METADATA", f"Name: {name}\nVersion: 1\n")
        world.patch.syspath_prepend(str(world.root / "site"))
        return world.make()

    return case


def torch_neuronx(*names: str) -> Case:
    def case(world: World) -> ProbedNode:
        world.patch.delitem(sys.modules, "torch_neuronx", raising=False)
        functions = "".join(f"def {name}(): ...\n" for name in names)
        write(world.root, "site/torch_neuronx/__init__.py", functions)
        world.patch.syspath_prepend(str(world.root / "site"))
        return world.make(device=DeviceKind.TORCH_NEURON)

    return case


def health(code: int, said: str) -> Case:
    def case(world: World) -> ProbedNode:
        world.patch.setattr(container, "check_health", lambda: (code, said))
        return world.make()

    return case


class _Obstinate:
    """Storage that ignores conditions and permissions."""

    def __init__(self, node: ProbedNode) -> None:
        self._storage = node.storage

    def put(self, key: str, data: bytes, **conditions: Any) -> str:
        return self._storage.put(key, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class _Refusing(_Obstinate):
    """Storage that answers every request with 403."""

    def put(self, key: str, data: bytes, **conditions: Any) -> str:
        raise StorageRefused("AccessDenied")

    def get(self, key: str) -> bytes:
        raise StorageRefused("AccessDenied")


def with_storage(kind: Callable[[ProbedNode], Any] | None = None) -> Case:
    def case(world: World) -> ProbedNode:
        node = world.make()
        return node if kind is None else replace(node, storage=kind(node))

    return case


def stored(world: World) -> ProbedNode:
    return world.stored()


def unchanged(world: World) -> ProbedNode:
    """S3 that ignores If-Match."""
    node = world.stored()
    client = node.s3()

    class Ignorant:
        def get_object(self, *, IfMatch: str, **kwargs: Any) -> Any:
            return client.get_object(**kwargs)

    return replace(node, s3=Ignorant)


def cached(*keys: str) -> Case:
    def case(world: World) -> ProbedNode:
        node = world.make(checks={"parity": GOOD})
        for key in keys:
            node.storage.put(key, b"neff")
        return node

    return case


def made(**values: Any) -> Case:
    return lambda world: world.make(**values)


TWO = {"num_nodes": 2}
CASES: dict[str, tuple[Case, Case]] = {
    "chips-and-memory": (neuron_ls(chips=16), neuron_ls(chips=15)),
    "logical-cores": (checked("sums"), checked("sums", processes_per_node=16)),
    "preflight-on-device": (devices(), devices(driver="2.29.0.0")),
    "eks-image-efa": (devices(env=EKS), devices(env=EKS, efa=7)),
    "device-path": (devices(env=BATCH), plain_file_for_a_device),
    "container-memory": (
        memory("sys/fs/cgroup/memory.max", str(TYPE.container_memory_mib * 2**20)),
        memory("sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**33)),
    ),
    "shared-memory": (limits(env=BATCH), limits(env=BATCH, shm=64)),
    "eks-memlock": (limits(env=EKS), limits(env=EKS, memlock=65536)),
    "no-huge-pages": (
        with_file("proc/meminfo", "HugePages_Free: 0\n", env=EKS, checks={"sums": GOOD}, **TWO),
        with_file("proc/meminfo", "HugePages_Free: 0\n", env=EKS, checks={"sums": BAD}, **TWO),
    ),
    "lustre-client": (mounted("lustre", BATCH), mounted("ext4", BATCH)),
    "lustre-in-container": (mounted("lustre", BATCH), mounted("ext4", BATCH)),
    "static-volume": (mounted("lustre", EKS), mounted("overlay", EKS)),
    "batch-environment": (
        made(env=BATCH, **TWO),
        made(env={name: BATCH[name] for name in BATCH if name != "AWS_BATCH_JQ_NAME"}, **TWO),
    ),
    "main-address": (
        made(env=CHILD, **TWO),
        made(env={**CHILD, "AWS_BATCH_JOB_NODE_INDEX": "0"}, **TWO),
    ),
    "single-node-multi-node-job": (
        made(env={**BATCH, "AWS_BATCH_JOB_NUM_NODES": "1"}),
        made(env={"AWS_BATCH_JOB_ID": "job"}),
    ),
    "nodes-join": (
        made(env=BATCH, **TWO),
        made(env={**BATCH, "AWS_BATCH_JOB_NUM_NODES": "3"}, **TWO),
    ),
    "job-without-imds": (metadata(answers=False, env=BATCH), metadata(answers=True, env=BATCH)),
    "pod-without-imds": (
        metadata(answers=False, env=EKS),
        metadata(answers=False, method="iam-role", env=EKS),
    ),
    "pod-identity-s3-clients": (
        metadata(answers=False, env=EKS, checks={"cache": GOOD}),
        metadata(answers=False, method="iam-role", env=EKS, checks={"cache": GOOD}),
    ),
    "endpoints-admit-tasks": (
        checked("cache", env=BATCH),
        checked("cache", check=BAD, env=BATCH),
    ),
    "node-dns": (resolving("52.92.1.1"), resolving(None)),
    "pod-name-in-dns": (
        resolving("10.0.0.9", env=POD, node_index=1, **TWO),
        resolving(None, env=POD, node_index=1, **TWO),
    ),
    "reserved-ports-on-host": (
        with_file("proc/sys/net/ipv4/ip_local_reserved_ports", "\n", env=BATCH),
        with_file("proc/sys/net/ipv4/ip_local_reserved_ports", "41000\n", env=BATCH),
    ),
    "pod-security": (pod("pause"), pod("python")),
    "image-contents": (
        health(0, "health: 12 workloads can be imported"),
        health(1, "health: neuronxcc cannot be imported: ImportError: no such symbol"),
    ),
    "boto3-beside-s3fs": (packages("s3fs"), packages("s3fs", broken=True)),
    "torchneuron-fallback": (
        torch_neuronx("clear_op_tracking", "get_fallback_ops"),
        torch_neuronx("get_fallback_ops"),
    ),
    "conditional-writes": (stored, with_storage(_Obstinate)),
    "missing-object-answer": (stored, with_storage(_Refusing)),
    "s3-if-match-read": (stored, unchanged),
    "least-rights": (with_storage(_Refusing), with_storage()),
    "cache-shared": (cached("cache/neuron/MODULE_1/model.neff"), cached("cache/verify/x")),
    "device-all-reduce": (checked("sums"), checked("sums", check=BAD)),
    "nxd-semantics": (
        checked("gradients", "parity", "resume"),
        checked("gradients", "parity", "resume", num_ranks=1),
    ),
    "eager-attention-compiles": (checked("parity"), checked("parity", check=BAD)),
    "nxd-upload": (checked("resume"), checked("resume", check=BAD)),
    "first-step-compiles": (checked("gradients"), checked("gradients", check=BAD)),
    "one-graph-a-step": (checked("graphs"), checked("graphs", check=BAD)),
    "nxd-input-gradients": (checked("gradients"), checked("gradients", check=BAD)),
    "data-parallel-gradients": (
        checked("data-parallel"),
        checked("data-parallel", check=BAD),
    ),
}  # fmt: skip


@pytest.fixture
def world(
    make_node: MakeNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> World:
    return World(
        make=make_node,
        root=tmp_path,
        patch=monkeypatch,
        stored=lambda: request.getfixturevalue("stored_node"),
    )


def test_every_probe_has_its_cases() -> None:
    assert set(CASES) == set(PROBES.by_id)


@pytest.mark.parametrize("name", CASES)
def test_a_probe_is_green_if_its_claim_holds(name: str, world: World) -> None:
    node = CASES[name][0](world)
    assert set(PROBES.by_id[name].needs) <= node.met_requirements

    finding = PROBES.run(name, node, node.met_requirements)

    assert finding.state is State.GREEN, finding


@pytest.mark.parametrize("name", CASES)
def test_a_probe_is_red_if_its_claim_does_not_hold(name: str, world: World) -> None:
    node = CASES[name][1](world)

    finding = PROBES.run(name, node, PROBES.by_id[name].needs)

    assert finding.state is State.RED, finding
    assert finding.seen and finding.expected
    assert finding.seen != finding.expected


def test_a_node_without_a_device_offers_no_probe_that_needs_one(make_node: MakeNode) -> None:
    met = make_node(device=DeviceKind.CPU, instance_type=None).met_requirements

    assert not met & {"neuron", "torch_xla", "EFA"}


def test_an_emulated_bucket_is_not_aws(make_node: MakeNode) -> None:
    assert "AWS" in make_node().met_requirements
    assert "AWS" not in make_node(endpoint_url="http://127.0.0.1:1").met_requirements


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("print('health: Python'); print('health: all')", (0, "health: all")),
        ("import sys; print('health: a'); sys.exit('health: no torch')", (1, "health: no torch")),
        ("", (0, "no output")),
    ],
)
def test_the_last_output_of_the_health_check_is_kept(
    program: str, found: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "training/__init__.py")
    write(tmp_path, "training/diagnostics/health.py", program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert container.check_health() == found


class _Answering(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        return


def test_a_metadata_service_that_refuses_is_reachable() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Answering)
    Thread(target=server.handle_request, daemon=True).start()

    said = container.request_metadata_token(
        f"http://127.0.0.1:{server.server_port}/latest/api/token"
    )

    assert said == "the metadata service answers with 401"
    server.server_close()
    assert container.request_metadata_token(f"http://127.0.0.1:{server.server_port}/latest") is None


def test_container_credentials_are_distinguished_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")

    assert container.credentials_method() == "env"
