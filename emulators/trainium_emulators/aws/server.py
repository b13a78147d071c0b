"""The rehearsal's AWS: moto with our models and our job scheduler, in one process.

Prints its events, one JSON object per line (emulators/trainium_emulators/nodes/events.py).
"""

import argparse
import gc
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
from trainium_emulators.aws import functions, host_images, permissions, quotas
from trainium_emulators.aws.batch import api
from trainium_emulators.aws.batch.gang import CloudWatchStream, NodeSettings
from trainium_emulators.aws.batch.scheduler import JobScheduler, take_fault
from trainium_emulators.aws.cloudformation import registry
from trainium_emulators.aws.cloudformation.contributions import AccountRegion
from trainium_emulators.aws.cloudformation.eks_cluster import CLUSTER
from trainium_emulators.aws.host_images import IMAGE_IDS
from trainium_emulators.nodes.events import emit
from trainium_emulators.nodes.faults import NodeFault
from trainium_emulators.nodes.node import Engine

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class ConditionalWrites:
    """WSGI middleware that serializes conditional requests.

    S3 checks the condition and writes atomically; moto does not.
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
    """Publish the ids of the dated AMIs, as AWS does."""
    ids = {
        release.ecs_ami_ssm_parameter: IMAGE_IDS[release.ecs_ami_name]
        for release in NEURON_RELEASES.values()
    }
    for region in regions:
        for name, image_id in sorted(ids.items()):
            # Not through the API: only AWS may write under /aws.
            parameter = Parameter(
                account_id=account_id,
                name=name,
                value=image_id,
                parameter_type="String",
                description="",
                allowed_pattern=None,
                keyid=None,
                last_modified_date=datetime.now(UTC),
                version=1,
                data_type="text",
            )
            ssm_backends[account_id][region]._parameters[name].append(parameter)
    for name, image_id in sorted(ids.items()):
        emit("seeded", name=name, value=image_id)


def take_anywhere(run: str) -> NodeFault | None:
    """Remove and return the fault armed for a run in any region."""
    backends = ssm_backends[DEFAULT_ACCOUNT_ID].values()
    return next(filter(None, (take_fault(backend, run) for backend in backends)), None)


def open_stream(region: str, group: str, name: str) -> CloudWatchStream:
    """Open a log stream of the rehearsal's account."""
    place = AccountRegion(account_id=DEFAULT_ACCOUNT_ID, region=region)
    return CloudWatchStream(place=place, group=group, stream=name)


def start_cluster(settings: NodeSettings, claims: Path) -> kubernetes.ClusterEmulator:
    """Start the Kubernetes cluster; pods run like Batch's nodes and share their files."""
    cluster = kubernetes.serve(
        kubernetes.EmulatorSettings(
            aws_endpoint=settings.endpoint,
            processes_per_node=settings.processes_per_node,
            processes_of=settings.processes_of,
            addresses=settings.addresses,
            engine=settings.engine,
            niceness=settings.niceness,
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
    """Select pip's variables for finding packages: its own, proxies and certificates."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    return {
        name: value
        for name, value in env.items()
        if name.startswith("PIP_") or name.upper() in names
    }


def options(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trainium_emulators.aws.server", description=__doc__
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on (0: a free one)")
    parser.add_argument("--processes-per-node", type=int, default=1)
    parser.add_argument(
        "--processes-of", action="append", default=[], metavar="WORKLOAD=N",
        help="processes per node of one workload; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--addresses",
        default="127.0.0",
        help="first three octets of the nodes' addresses, which end in .2 and up",
    )
    parser.add_argument("--niceness", type=int, default=0, help="niceness of the nodes' processes")
    parser.add_argument("--stop-timeout-s", type=float, default=120.0)
    parser.add_argument("--runnable-clock", type=float, default=1.0)
    parser.add_argument("--container-engine", default="podman")
    parser.add_argument("--container-image")
    return parser.parse_args(argv)


def cache_routes() -> None:
    """Remember each host name's service; moto lists its own folders for every request."""
    moto = threaded_moto_server.DomainDispatcherApplication
    moto.get_backend_for_host = cache(moto.get_backend_for_host)


def main(argv: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT."""
    given = options(argv)
    # Loaded modules are never freed, so exclude their objects from garbage collections, which
    # pause every request.
    gc.freeze()
    # moto creates a session for many requests, and each would reread botocore's large files.
    botocore.session.create_loader = cache(botocore.session.create_loader)
    # No container engine: we run nodes and functions ourselves, and model the CDK's own functions.
    default_user_config["lambda"] = {"use_docker": False}
    registry.install()
    quotas.install()
    host_images.install()
    permissions.install()
    cache_routes()
    settings: list[NodeSettings] = []
    files = tempfile.TemporaryDirectory(prefix="rehearsal-files-")
    claims = Path(files.name)
    # Files left behind by killed nodes are deleted with the server, like the /tmp of a container.
    temporary = claims / "tmp"
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    functions.install(lambda: settings[0].endpoint)
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
            niceness=given.niceness,
            lustre=claims / NAMESPACE / LUSTRE_CLAIM,
            index=index_of(os.environ),
        )
    )

    def end_jobs() -> None:
        """End running jobs before their stacks are destroyed."""
        scheduler.stop()
        CLUSTER.end_jobs()
        emit("jobs-ended", left=scheduler.leftovers())

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
    # Skip freeing moto's objects, which would take seconds: everything has shut down.
    sys.stdout.flush()
    os._exit(0)
