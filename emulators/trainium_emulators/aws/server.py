"""The rehearsal's AWS: moto with our models and the multi-node executor, in one process.

Prints one JSON object a line (emulators/trainium_emulators/nodes/events.py); ends with its parent.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.config import default_user_config
from moto.moto_server import threaded_moto_server
from moto.server import ThreadedMotoServer
from moto.ssm.models import Parameter, ssm_backends

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.kubernetes import LUSTRE_CLAIM, NAMESPACE
from trainium_catalogue.releases import NEURON_RELEASES
from trainium_emulators import kubernetes
from trainium_emulators.aws import permissions, quotas
from trainium_emulators.aws.batch import api
from trainium_emulators.aws.batch.gang import CloudWatchStream, NodeSettings
from trainium_emulators.aws.batch.scheduler import JobScheduler, take_fault
from trainium_emulators.aws.cloudformation import registry
from trainium_emulators.aws.cloudformation.contributions import AccountRegion
from trainium_emulators.aws.cloudformation.eks_cluster import CLUSTER
from trainium_emulators.nodes.events import emit
from trainium_emulators.nodes.faults import NodeFault
from trainium_emulators.nodes.node import Engine

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
AMI = "ami-0e1e2e3e4e5e6e7e8"
"""Image id used for every public host image."""


class ConditionalWrites:
    """WSGI middleware that lets one conditional request in at a time.

    moto checks the condition and writes in two steps, S3 in one.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        if environ.get("HTTP_IF_NONE_MATCH") or environ.get("HTTP_IF_MATCH"):
            with self._lock:
                return self._application(environ, start_response)
        return self._application(environ, start_response)


def seed_public_parameters(account_id: str, regions: Sequence[str]) -> None:
    """Publish the ids of the dated host images, as AWS does."""
    names = sorted({release.ecs_ami_ssm_parameter for release in NEURON_RELEASES.values()})
    for region in regions:
        for name in names:
            # Not through the API: only AWS may write below /aws.
            parameter = Parameter(
                account_id=account_id,
                name=name,
                value=AMI,
                parameter_type="String",
                description="",
                allowed_pattern=None,
                keyid=None,
                last_modified_date=datetime.now(UTC),
                version=1,
                data_type="text",
            )
            ssm_backends[account_id][region]._parameters[name].append(parameter)
    for name in names:
        emit("seeded", name=name, value=AMI)


def take_anywhere(run: str) -> NodeFault | None:
    """Take the fault that is armed for a run in any region, once."""
    backends = ssm_backends[DEFAULT_ACCOUNT_ID].values()
    return next(filter(None, (take_fault(backend, run) for backend in backends)), None)


def open_stream(region: str, group: str, name: str) -> CloudWatchStream:
    """Open a log stream of the rehearsal's account."""
    place = AccountRegion(account_id=DEFAULT_ACCOUNT_ID, region=region)
    return CloudWatchStream(place=place, group=group, stream=name)


def start_cluster(settings: NodeSettings, claims: Path) -> kubernetes.ClusterEmulator:
    """Start the Kubernetes cluster; pods run like Batch's nodes, on the same files."""
    cluster = kubernetes.serve(
        kubernetes.EmulatorSettings(
            aws_endpoint=settings.endpoint,
            processes_per_node=settings.processes_per_node,
            processes_of=settings.processes_of,
            addresses=settings.addresses,
            engine=settings.engine,
            take_fault=take_anywhere,
            claims=claims,
            open_stream=open_stream,
            count_nodes=True,
            identify=permissions.caller_of,
        )
    )
    emit("kubernetes-ready", endpoint=cluster.endpoint)
    return cluster


def index_of(env: Mapping[str, str]) -> dict[str, str]:
    """Select the variables by which pip finds packages: its own, proxies and certificates."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    return {
        name: value
        for name, value in env.items()
        if name.startswith("PIP_") or name.upper() in names
    }


def options(argv: Sequence[str]) -> argparse.Namespace:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trainium_emulators.aws.server", description=__doc__
    )
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--processes-per-node", type=int, default=1)
    parser.add_argument(
        "--processes-of", action="append", default=[], metavar="WORKLOAD=N",
        help="processes per node of one workload; repeatable",
    )  # fmt: skip
    parser.add_argument("--addresses", default="127.0.0", help="nodes are <addresses>.2 and up")
    parser.add_argument("--stop-timeout-s", type=float, default=120.0)
    parser.add_argument("--runnable-clock", type=float, default=1.0)
    parser.add_argument("--container-engine", default="podman")
    parser.add_argument("--container-image")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    """Serve until SIGTERM or the parent's exit."""
    given = options(argv)
    # moto makes a session for many a request, and each would read botocore's large files again.
    botocore.session.create_loader = cache(botocore.session.create_loader)
    # No container engine: we run the nodes, and the only Lambda function has a model.
    default_user_config["lambda"] = {"use_docker": False}
    registry.install()
    quotas.install()
    permissions.install()
    settings: list[NodeSettings] = []
    files = tempfile.TemporaryDirectory(prefix="rehearsal-files-")
    claims = Path(files.name)
    # What a killed node leaves goes with the server, as a container's /tmp goes with it.
    temporary = claims / "tmp"
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    scheduler = JobScheduler(lambda: settings[0])
    api.install(scheduler)
    moto = threaded_moto_server.DomainDispatcherApplication
    threaded_moto_server.DomainDispatcherApplication = lambda make: ConditionalWrites(moto(make))
    server = ThreadedMotoServer("127.0.0.1", given.port, verbose=False)
    server.start()
    endpoint = f"http://localhost:{server.get_host_and_port()[1]}"
    image = given.container_image
    settings.append(
        NodeSettings(
            endpoint=endpoint,
            processes_per_node=given.processes_per_node,
            processes_of={
                name: int(number)
                for name, _, number in (pair.partition("=") for pair in given.processes_of)
            },
            addresses=given.addresses,
            stop_timeout_s=given.stop_timeout_s,
            runnable_clock=given.runnable_clock,
            engine=Engine(program=given.container_engine, image=image) if image else None,
            lustre=claims / NAMESPACE / LUSTRE_CLAIM,
            index=index_of(os.environ),
        )
    )

    def end_jobs() -> None:
        """End what still runs, before its stacks are destroyed."""
        scheduler.stop()
        CLUSTER.end_jobs()
        emit("jobs-ended", left=scheduler.left())

    CLUSTER.use(lambda: start_cluster(settings[0], claims))
    regions = sorted({region for t in INSTANCE_TYPES.values() for region in t.zone_ids})
    seed_public_parameters(DEFAULT_ACCOUNT_ID, regions)
    done = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=end_jobs).start())
    emit("ready", endpoint=endpoint)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    done.wait()
    scheduler.stop()
    CLUSTER.stop()
    server.stop()
    files.cleanup()


if __name__ == "__main__":
    main(sys.argv[1:])
    # Everything has shut down; letting Python free moto's objects would take seconds more.
    sys.stdout.flush()
    os._exit(0)
