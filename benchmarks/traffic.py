"""S3 requests of a user program's launchers, counted by the server.

The main node is a real launcher with a program. The other nodes share a process, in which each runs
the real code: its side of the connection, its courier, and a ``SnapshotWriter`` with a folder.
"""

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import ThreadedMotoServer

from benchmarks.pairs import Comparison
from benchmarks.peers import SimulatedJob
from benchmarks.processes import ROOT, bundle_of
from training.core.contract import DeviceKind, NodeContract
from training.core.host import raise_file_limit
from training.launcher.courier import Courier
from training.launcher.messages import hello
from training.launcher.peers import PeerMessage, Spoke
from training.program.snapshots import writer
from training.program.snapshots.manifest import JobSnapshot, snapshot_key, snapshot_numbers
from training.program.snapshots.process import SnapshotSettings, open_snapshots
from training.storage import Objects, StorageAccess
from trainium_catalogue import contract

_FEW, *_MANY = 4, 64, 512
NAMES = tuple(f"traffic-{num_nodes}" for num_nodes in _MANY)
_BUCKET, _REGION = "traffic", "us-east-1"
_SNAPSHOT_EVERY_S = 20.0
# Long enough for a snapshot: in 5 s a busy machine sent no request, which gives no ratio.
_OBSERVED_S, _SMALL_OBSERVED_S = 30.0, _SNAPSHOT_EVERY_S
_SMALL_NODES = 16
_SNAPSHOT_TIMEOUT_S = 600.0
_PEER_TIMEOUT_S = 300.0
"""A long timeout, because hundreds of nodes share few cores."""
_TICK_S = 0.1
_PROGRAM = """
import time
open("checkpoints/main.pt", "w").write("x")
for step in range(1, 100000):
    print(f"step {step} loss {1 / step:.4f}", flush=True)
    time.sleep(1)
"""


@contextmanager
def _counted_bucket(requests: Counter[str]) -> Iterator[str]:
    """Serve an empty bucket; count requests by their access key."""
    original = DomainDispatcherApplication.__call__
    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    def counted(app: Any, environ: Any, start_response: Any) -> Any:
        # Credential=<key>/<date>/<region>/<service>/aws4_request
        credential = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2]
        requests[credential.partition("/")[0]] += 1
        return original(app, environ, start_response)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DomainDispatcherApplication, "__call__", counted)
        for name, value in _credentials("bench").items():
            patch.setenv(name, value)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.stop()


def _credentials(name: str) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": "testing"}


@contextmanager
def _job(num_nodes: int, url: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a job with ``num_nodes`` nodes; yield once a snapshot covers all of them."""
    with tempfile.TemporaryDirectory() as folder:
        run, job_id = f"simulated-{num_nodes}", uuid.uuid4().hex
        code = _put_program(url, run)
        job = SimulatedJob(num_nodes=num_nodes, environment=environment, host=num_nodes % 250)
        overrides = {
            contract.ENV_BUCKET: _BUCKET,
            contract.ENV_REGION: _REGION,
            contract.ENV_RUN: run,
            "AWS_REGION": _REGION,
            "AWS_ENDPOINT_URL": url,
            # Otherwise torchrun's agents would also exchange their numbers of workers.
            "TORCH_ELASTIC_WORKER_IDENTICAL": "1",
        }
        args = ["program", "--code", code, "--script", "train.py"]
        args += ["--checkpoint-dir=checkpoints", f"--snapshot-every-s={_SNAPSHOT_EVERY_S}"]
        args.append(f"--peer-timeout-s={_PEER_TIMEOUT_S}")
        full = job.batch_environment(job_id) | overrides
        log = Path(folder, "log")
        with log.open("wb") as output:
            main = subprocess.Popen(
                [sys.executable, "-m", "training.launch", *args],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=full | _credentials(f"main-{num_nodes}"),
            )
            others = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.traffic", str(num_nodes), job.address, job_id],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=full | _credentials(f"others-{num_nodes}") | {"TMPDIR": folder},
            )
            try:
                storage = StorageAccess(root=f"s3://{_BUCKET}", region=_REGION, endpoint_url=url)
                snapshots = open_snapshots(storage.open_root(), run)
                _wait_for_snapshot(snapshots, num_nodes, main, others, log)
                yield
            finally:
                for process in (others, main):
                    process.kill()
                    process.wait()


def _put_program(url: str, run: str) -> str:
    """Upload the program's bundle to the bucket; return its digest."""
    bundle, digest = bundle_of(_PROGRAM)
    client = boto3.client("s3", endpoint_url=url, region_name=_REGION)
    client.create_bucket(Bucket=_BUCKET)  # which may already exist
    client.put_object(Bucket=_BUCKET, Key=contract.bundle_key(run, digest), Body=bundle)
    return digest


def _wait_for_snapshot(
    snapshots: Objects,
    num_nodes: int,
    main: subprocess.Popen[bytes],
    others: subprocess.Popen[bytes],
    log: Path,
) -> None:
    """Wait for a snapshot with every node's files."""
    deadline = time.monotonic() + _SNAPSHOT_TIMEOUT_S
    while time.monotonic() < deadline and main.poll() is None and others.poll() is None:
        for number in snapshot_numbers(snapshots):
            if len(JobSnapshot.decode(snapshots.get(snapshot_key(number))).files) == num_nodes:
                return
        time.sleep(1)
    raise RuntimeError(f"no snapshot of {num_nodes} nodes was taken:\n{log.read_text()[-5000:]}")


class _Child:
    """One of the other nodes."""

    def __init__(self, node: NodeContract, scratch: Path) -> None:
        self._node, self._scratch = node, scratch
        scratch.mkdir()
        self._spoke = Spoke(node, timeout_s=_PEER_TIMEOUT_S)
        self._courier = Courier(scratch, is_main=False)

    def turn(self) -> str:
        """Run one iteration of the node's launcher; return a new rendezvous's port, if any."""
        port = ""
        if not self._spoke.connected and not self._spoke.connect(hello(self._node, None), 0.5):
            return port
        for event in self._spoke.poll(0):
            if not isinstance(event, PeerMessage):
                raise RuntimeError(f"node {self._node.node_index}: {event.how}")
            self._courier.receive(event.node, event.message)
            if event.message["type"] == "start":
                port = str(event.message["port"])
                self._spoke.send({"type": "prepared"})
            elif event.message["type"] == "go":
                threading.Thread(target=self._write_snapshots, daemon=True).start()
        for message in self._courier.outgoing():
            self._spoke.send(message)
        return port

    def _write_snapshots(self) -> None:
        checkpoints = self._scratch / "checkpoints"
        checkpoints.mkdir()
        (checkpoints / f"{self._node.node_index}.pt").write_text(f"{self._node.node_index}")
        node = self._node
        settings = SnapshotSettings(
            storage=StorageAccess.of(node), run=node.run, job_id=node.job_id, attempt=node.attempt,
            node=node.node_index, main=node.main_index, num_nodes=node.num_nodes,
            scratch=self._scratch, checkpoints=checkpoints, cache=self._scratch / "cache",
            every_s=_SNAPSHOT_EVERY_S, keep=3, mib_per_s=200.0, limit_gib=100.0,
        )  # fmt: skip
        writer.SnapshotWriter(settings).run()


def _run_others(num_nodes: int, address: str, job_id: str) -> None:
    """Simulate every node except the main one."""
    raise_file_limit()
    # Reduce the local work of hundreds of nodes on few cores: watching a folder sends no requests
    # to S3, and there are no programs whose open files have to be checked.
    writer._SCAN_SHARE = 0.02
    writer.SnapshotWriter._pids = lambda self: []  # type: ignore[method-assign]
    # Share one client, because creating one takes 0.1 s of CPU time.
    StorageAccess.open_root = cache(StorageAccess.open_root)  # type: ignore[method-assign]
    node = NodeContract(
        job_id=job_id, attempt=1, node_index=0, num_nodes=num_nodes, main_index=0,
        main_address=address, run=os.environ[contract.ENV_RUN], deployment="default",
        device=DeviceKind.CPU, processes_per_node=1, bucket=_BUCKET, region=_REGION,
        endpoint_url=os.environ["AWS_ENDPOINT_URL"],
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp())
    children = [
        _Child(replace(node, node_index=index), folder / f"{index}")
        for index in range(1, num_nodes)
    ]
    while True:
        for port in {port for child in children if (port := child.turn())}:
            threading.Thread(
                target=_join_rendezvous, args=(num_nodes, address, int(port)), daemon=True
            ).start()
        time.sleep(_TICK_S)


def _join_rendezvous(num_nodes: int, address: str, port: int) -> None:
    """Connect to the store of the main node's torchrun, which waits for all agents."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with ThreadPoolExecutor(num_nodes) as pool:
        stores = list(
            pool.map(lambda _: TCPStore(address, port, num_nodes, False), range(1, num_nodes))
        )
    while stores:  # keeps their connections open
        time.sleep(60)


def comparisons(
    stack: ExitStack,
    environment: Mapping[str, str],
    note: Callable[[str], None],
    *,
    small: bool,
) -> list[Comparison]:
    """Compare the launchers' requests on many nodes and on 4; ``small`` reduces the former."""
    requests: Counter[str] = Counter()
    url = stack.enter_context(_counted_bucket(requests))

    @cache
    def start(num_nodes: int) -> None:
        stack.enter_context(_job(num_nodes, url, environment))

    def measure(num_nodes: int) -> float:
        num_nodes = min(num_nodes, _SMALL_NODES) if small else num_nodes
        start(num_nodes)
        before, seconds = requests.copy(), _SMALL_OBSERVED_S if small else _OBSERVED_S
        time.sleep(seconds)
        keys = {side: f"{side}-{num_nodes}" for side in ("main", "others")}
        rates = {side: (requests[key] - before[key]) * 60 / seconds for side, key in keys.items()}
        note(
            f"{num_nodes} nodes: {rates['main']:.0f} requests per minute from the main node, "
            f"{rates['others']:.0f} from all others together"
        )
        return sum(rates.values())

    return [
        Comparison(
            name=name,
            product=f"S3 requests by a program's launchers, {num_nodes} nodes",
            baseline=f"the same, {_FEW} nodes",
            target=1.2,
            measure_product=partial(measure, num_nodes),
            measure_baseline=partial(measure, _FEW),
        )
        for name, num_nodes in zip(NAMES, _MANY, strict=True)
    ]


if __name__ == "__main__":
    _run_others(int(sys.argv[1]), *sys.argv[2:4])
