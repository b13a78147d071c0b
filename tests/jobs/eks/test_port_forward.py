"""A port of a pod on this machine, against the websocket protocol that the API server speaks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest
from aiohttp import WSMsgType, web

from jobs.aws import Aws
from jobs.eks.cluster import Cluster
from jobs.eks.pod_streams import Forwarder, find_service_pod
from tests.support.limits import scaled

POD_PORT = 6006


class _Pod(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"curves " * 50_000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@dataclass
class ApiServer:
    """Serves one service, one pod, and port-forward to it (v4.channel.k8s.io)."""

    pod_port: int
    ready: str = "True"
    name: str = "tb-1"

    def application(self) -> web.Application:
        app = web.Application()
        base = "/api/v1/namespaces/trainium"
        app.router.add_get(f"{base}/services/tensorboard", self.service)
        app.router.add_get(f"{base}/pods", self.pods)
        app.router.add_get(f"{base}/pods/{{name}}/portforward", self.forward)
        return app

    async def service(self, request: web.Request) -> web.Response:
        return web.json_response({"spec": {"selector": {"app": "tensorboard"}}})

    async def pods(self, request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "app=tensorboard"
        status = {"conditions": [{"type": "Ready", "status": self.ready}]}
        return web.json_response({"items": [{"metadata": {"name": self.name}, "status": status}]})

    async def forward(self, request: web.Request) -> web.WebSocketResponse:
        if request.match_info["name"] != self.name:
            raise web.HTTPNotFound
        assert request.query["ports"] == str(POD_PORT)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        # Both channels begin with the port that they belong to.
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + POD_PORT.to_bytes(2, "little"))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.pod_port)

        async def answer() -> None:
            while data := await reader.read(4096):
                await socket.send_bytes(b"\0" + data)

        answering = asyncio.create_task(answer())
        async for message in socket:
            if message.type == WSMsgType.BINARY:
                writer.write(message.data[1:])
        answering.cancel()
        writer.close()
        return socket


@pytest.fixture
def api() -> Iterator[tuple[ApiServer, Cluster]]:
    pod = ThreadingHTTPServer(("127.0.0.1", 0), _Pod)
    threading.Thread(target=pod.serve_forever, daemon=True).start()
    server = ApiServer(pod.server_address[1])
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.1)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server, cluster_at(url)
    pod.shutdown()
    pod.server_close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    with contextlib.suppress(Exception):
        loop.run_until_complete(runner.cleanup())
    loop.close()


def cluster_at(url: str) -> Cluster:
    """The door to a server that asks for no credentials."""

    class Eks:
        def describe_cluster(self, **_: Any) -> dict[str, Any]:
            return {"cluster": {"endpoint": url}}

    class Account:
        def eks(self) -> Eks:
            return Eks()

        def sts(self) -> Any:
            import boto3

            return boto3.client(
                "sts", region_name="us-west-2", aws_access_key_id="a", aws_secret_access_key="b"
            )

    return Cluster(cast(Aws, Account()), "cluster", "trainium")


def test_the_ready_pod_behind_a_service_is_found(api: tuple[ApiServer, Cluster]) -> None:
    server, cluster = api

    assert find_service_pod(cluster, "tensorboard") == "tb-1"
    server.ready = "False"
    assert find_service_pod(cluster, "tensorboard") is None


def test_a_service_that_is_not_there_has_no_pod(api: tuple[ApiServer, Cluster]) -> None:
    assert find_service_pod(api[1], "other") is None


def test_several_connections_are_carried_whole(api: tuple[ApiServer, Cluster]) -> None:
    forwarder = Forwarder(api[1], "tensorboard", "tb-1", POD_PORT, port=0)
    threading.Thread(target=forwarder.serve, daemon=True).start()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"http://127.0.0.1:{forwarder.port}/"
    pages = [opener.open(url, timeout=scaled(20)).read() for _ in range(3)]

    assert pages == [b"curves " * 50_000] * 3


def test_a_pod_that_was_replaced_is_found_again(api: tuple[ApiServer, Cluster]) -> None:
    forwarder = Forwarder(api[1], "tensorboard", "tb-1", POD_PORT, port=0)
    threading.Thread(target=forwarder.serve, daemon=True).start()
    api[0].name = "tb-2"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    page = opener.open(f"http://127.0.0.1:{forwarder.port}/", timeout=scaled(20)).read()

    assert page.startswith(b"curves ")


def test_a_pod_that_refuses_is_said_before_a_browser_asks(api: tuple[ApiServer, Cluster]) -> None:
    from kubernetes.client.exceptions import ApiException

    with pytest.raises(ApiException):
        Forwarder(api[1], "tensorboard", "gone", POD_PORT, port=0)
